"""A browser that is offline, and a small data set with a student and a teacher's cache."""

import contextlib
import shutil

import numpy as np
import pytest

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1280,1000",
)
READY = "return document.documentElement.dataset.ready === 'true'"


class Browser:
    """Headless Chromium with the network off; it remembers what the console said."""

    def __init__(self, driver):
        self.driver = driver
        self.console = []

    def open(self, path, *, width=1280, height=1000, dark=False):
        """Open a local page and wait until it has drawn itself."""
        from selenium.webdriver.support.ui import WebDriverWait

        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")  # a page that differs in its fragment only would not be loaded again
        self.errors()
        self.driver.get(path.resolve().as_uri())
        WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(READY))
        return self

    def errors(self):
        """What the console complained about since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.one(selector).text

    def press(self, element, *keys):
        """Focus an element and press keys, as a keyboard user does."""
        self.js("arguments[0].focus()", element)
        element.send_keys(*keys)

    def slide(self, selector, steps):
        """Move a slider by steps with the arrow keys."""
        from selenium.webdriver.common.keys import Keys

        self.press(self.one(selector), *[Keys.ARROW_RIGHT if steps > 0 else Keys.ARROW_LEFT] * abs(steps))

    def hover(self, element):
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).scroll_to_element(element).move_to_element(element).perform()


@pytest.fixture(scope="session")
def chromium():
    if CHROMIUM is None or shutil.which("chromedriver") is None:
        pytest.skip("no chromium and chromedriver on this machine: install the packages chromium and chromium-driver")
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    from selenium.webdriver.chrome.service import Service

    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = selenium.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    driver.execute_cdp_cmd("Network.enable", {})
    offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    driver.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    yield Browser(driver)
    with contextlib.suppress(OSError):
        driver.quit()


@pytest.fixture
def browser(chromium):
    """The browser; a test fails when the console complained during it."""
    chromium.errors()
    yield chromium
    assert chromium.errors() == []


EVIL = "<script>window.hacked=1</script>"
IMAGE = "<img/src=x/onerror=window.hacked=1>"
WORDS = ("<pad>", "<eos>", "<unk>", EVIL, IMAGE, "</script>", *(f"w{i}" for i in range(26)))


@pytest.fixture(scope="session")
def tokenizer():
    """One word, one token; some words are HTML that means harm."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def random_model(noise=0.0):
    """A model of 32 tokens that is sure of some tokens and unsure of others; with noise it is another one, akin."""
    import torch
    from transformers import Olmo2Config, Olmo2ForCausalLM

    # Olmo2: its tokenizer is loaded again as it was saved; beside a Qwen2 config AutoTokenizer makes a BPE of it.
    config = Olmo2Config(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.4,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Olmo2ForCausalLM(config).eval()
        with torch.no_grad():
            model.lm_head.weight *= 2
            for weight in model.parameters() if noise else ():
                weight += noise * weight.std().nan_to_num() * torch.randn_like(weight)
        return model


@pytest.fixture(scope="session")
def student():
    return random_model()


@pytest.fixture(scope="session")
def teacher():
    return random_model(noise=0.5)


@pytest.fixture(scope="session")
def documents(student, teacher):
    """Twelve documents; most labels are what some model would write, so that all quadrants occur."""
    import torch

    random = np.random.default_rng(0)
    rows = []
    for number in range(12):
        ids = torch.from_numpy(random.integers(6, len(WORDS), size=(1, 3)))
        for _ in range(14):
            # Half of the tokens are the student's choice, a quarter the teacher's, the rest are anything.
            chooser = [student, student, teacher, None][random.integers(4)]
            with torch.no_grad():
                choice = random.integers(3, len(WORDS)) if chooser is None else int(chooser(ids).logits[0, -1].argmax())
            ids = torch.cat([ids, torch.tensor([[int(choice)]])], dim=1)
        input_ids = [*ids[0].tolist(), *((3, 4, 5) if number == 0 else ()), 1]
        rows.append({"input_ids": input_ids, "labels": [-100] * 3 + input_ids[3:]})
    return rows


@pytest.fixture(scope="session")
def cache(documents, tokenizer, teacher, tmp_path_factory):
    from qsft.teacher.build import build_cache

    path = tmp_path_factory.mktemp("explore") / "cache"
    return build_cache(documents, teacher, path, tokenizer=tokenizer, k=8, progress=False)
