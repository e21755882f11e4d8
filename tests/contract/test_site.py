"""The guide as a site: it builds without a warning, reads well on a phone and in the dark, and loads no other host."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
pytestmark = pytest.mark.slow  # builds the site, which `make site` does too
LOADED = "return document.readyState === 'complete'"
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'qsft[site]'")
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run([sys.executable, "-m", "mkdocs", *words], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_no_page_scrolls_sideways_on_a_phone(site, chromium):
    for page in (site / f"{source.stem}.html" for source in sorted((REPO / "docs").glob("*.md"))):
        chromium.open(page, width=390, height=844, ready=LOADED)
        assert chromium.js(TOO_WIDE) == 0, page.name
        assert chromium.errors() == [], page.name


@pytest.mark.parametrize("dark", [False, True])
def test_it_follows_the_theme_of_the_system(site, chromium, dark):
    chromium.open(site / "index.html", dark=dark, ready=LOADED)
    assert chromium.js("return document.body.dataset.mdColorScheme") == ("slate" if dark else "default")


def test_it_loads_nothing_from_another_host(site):
    for page in site.glob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)\b[^>]*\b(?:src|href)="([^"]+)"', page.read_text(encoding="utf-8"))
        assert loaded
        assert [address for address in loaded if "//" in address] == [], page.name
