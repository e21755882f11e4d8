"""The browser that opens the demo's page."""

from browser import browser, chromium  # noqa: F401  (fixtures)
