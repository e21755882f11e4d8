"""The guide as a site: it builds without a warning, and on a phone no page scrolls sideways."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
LOADED = "return document.readyState === 'complete'"
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'qsft[site]'")
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--quiet", "--no-directory-urls", "--site-dir", str(folder)]
    done = subprocess.run([sys.executable, "-m", "mkdocs", *words], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def test_no_page_scrolls_sideways_on_a_phone(site, chromium):
    pages = sorted(site.glob("*.html"))
    assert {page.stem for page in pages} >= {page.stem for page in (REPO / "docs").glob("*.md")}
    for page in pages:
        chromium.open(page, width=390, height=844, ready=LOADED)
        assert chromium.js(TOO_WIDE) == 0, page.name
