"""Headless Chromium without a network, for the tests that look at pages: `from browser import browser, chromium`."""

import contextlib
import shutil

import pytest
from take_pictures import QUIET_FLAGS, find_browser

CHROMIUM = find_browser()
FLAGS = (
    *QUIET_FLAGS,
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1280,1000",
)
READY = "return document.documentElement.dataset.ready === 'true'"
INVISIBLE = "\u202e\u2066\u2067\u2069\u200b\u200d\u2060\ufeff\u00ad\u061c"  # overrides, isolates, zero width


class Browser:
    """Headless Chromium with the network off; it keeps the messages of the console."""

    def __init__(self, driver):
        self.driver = driver
        self.console = []

    def open(self, path, *, width=1280, height=1000, dark=False, ready=READY):
        """Open a local page and wait until it is ready: one of ours has drawn itself."""
        from selenium.webdriver.support.ui import WebDriverWait

        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get("about:blank")  # a page that differs in its fragment only would not be loaded again
        self.errors()
        self.driver.get(path.resolve().as_uri())
        WebDriverWait(self.driver, 60).until(lambda driver: driver.execute_script(ready))
        return self

    def errors(self):
        """The warnings and errors of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def one(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.one(selector).text

    def body_text(self):
        """The text of the whole page, also of documents that are not drawn yet because they are not on the screen."""
        return self.js(
            "const all = document.createElement('style');"
            "all.textContent = '* { content-visibility: visible !important }';"
            "document.head.append(all);"
            "try { return document.body.innerText } finally { all.remove() }"
        )

    def invisible(self):
        """Return the bidirectional and zero-width characters in what the page shows, its title and its labels."""
        shown = self.js(
            "const labels = [...document.querySelectorAll('[title],[aria-label],option')];"
            "return document.title + labels.map(e => e.title + e.ariaLabel + e.text).join('')"
        )
        return sorted(set(shown + self.body_text()) & set(INVISIBLE))

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
    """The browser; a test fails when the console shows a warning or an error during it."""
    chromium.errors()
    yield chromium
    assert chromium.errors() == []
