"""The browser of tests/browser, for the page of a secured system."""

from tests.browser.conftest import chromium

__all__ = ["chromium"]
