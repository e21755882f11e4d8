"""The browser that the page is looked at with."""

from browser import browser, chromium  # noqa: F401
