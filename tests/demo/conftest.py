"""The browser that the page is looked at with; benchmarks/, whose study the documents quote."""

import sys
from pathlib import Path

from browser import browser, chromium  # noqa: F401

sys.path.append(str(Path(__file__).parents[2]))  # benchmarks/ is no part of the package
