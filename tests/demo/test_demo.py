"""The demo through the command line, a few steps of everything."""

import json
from io import StringIO

import pytest
from rich.console import Console

from qsft.cli import main
from qsft.demo.foundation import make_models
from qsft.demo.kept import is_intact
from qsft.demo.scenario import Scenario
from qsft.demo.training import Phases
from qsft.teacher.format.shards import VERSION


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """One store for the module: the second run finds what the first one kept."""
    directory = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QSFT_CACHE", str(directory))
        yield directory


@pytest.fixture(scope="module")
def out(home, tmp_path_factory):
    """The results of a quick run of two methods over two seeds."""
    directory = tmp_path_factory.mktemp("out")
    words = ["demo", "--quick", "--seeds", "2", "--output_dir", str(directory)]
    assert main([*words, "--targets", "target_sft", "cft"]) == 0
    return directory


def test_a_cache_of_another_format_is_not_in_the_way(home, out):
    kept = [path.name.partition("-")[0] for path in (home / "demo").iterdir()]
    assert set(kept) == {"base", "teacher", f"cache{VERSION}"}


def test_results_hold_every_model(out):
    results = json.loads((out / "results.json").read_text())
    labels = ["base", "teacher", "Target-SFT", "cft"]
    assert [line["label"] for line in results["table"]] == labels
    assert [seed["seed"] for seed in results["seeds"]] == [0, 1]
    for seed in results["seeds"]:
        assert set(seed["models"]) == set(labels)
        assert all(len(model["scores"]) == 8 for model in seed["models"].values())
    assert "smoke test" in results["findings"][0]
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_the_page_has_the_tables_and_makes_no_request(out):
    page = (out / "index.html").read_text()
    for words in ("Target-SFT", "First error of a sampled solution", "token by token", "What to run next"):
        assert words in page
    assert 'src="http' not in page
    assert 'class="plot"' in page


def test_demonstrations_are_shown_token_by_token(out):
    page = (out / "seed-0" / "tokens.html").read_text()
    assert "Demonstrations, token by token" in page
    assert str(out / "seed-0" / "tokens.html") in (out / "index.html").read_text()


def test_models_can_be_loaded_by_anybody(out):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = out / "seed-0" / "target_sft-eta0.5"
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    ids = tokenizer("<bos> 7 +5 *3 -8 ?", return_tensors="pt")
    assert model.generate(**ids, max_new_tokens=3, do_sample=False).shape == (1, 9)


def test_a_second_run_keeps_base_and_teacher_and_trains_a_damaged_one_again(out):
    def make():
        console = Console(file=StringIO(), width=1000)
        models = make_models(Scenario().shortened(), Phases(console))
        return models, console.file.getvalue()

    (base, _), text = make()
    assert text.count("kept from an earlier run") == 2
    assert "does NOT meet the criterion (at least 98% of +/−, 75% of ×)" in text
    assert "does NOT meet the criterion (at least 98% of +/−, 100% ± 2% of ×)" in text
    (base / "config.json").write_text("{}")
    assert "is damaged: training it again" in make()[1]
    assert is_intact(base)


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_is_readable_in_a_browser_without_a_network(browser, out, width, dark):
    page = browser.open(out / "index.html", width=width, dark=dark)
    charts = page.all(".plot .main-svg")
    tables = page.all("table")
    assert charts
    assert all(one.is_displayed() for one in (*charts, *tables))
    assert "Target-SFT" in page.text("table")
    assert page.js("return document.documentElement.scrollWidth <= window.innerWidth")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--noise", "1.5"], "from 0 to 1"),
        (["--targets", "targt"], "there is no target 'targt'"),
        (["--seeds", "0"], "--seeds must be at least 1"),
        (["--scenarios", "--noise", "0.1"], "leave --noise and --wrong_teacher out"),
    ],
)
def test_invalid_options_raise(words, message, capsys):
    assert main(["demo", "--quick", *words]) == 2
    assert message in capsys.readouterr().err
