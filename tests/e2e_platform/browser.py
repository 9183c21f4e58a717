"""A real Chromium for the page."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine")
#: Timeout in milliseconds; generous for busy machines.
WITHIN = 30_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """A separate browser."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class BrowserPage:
    """An open page that records its errors and requests."""

    def __init__(self, browser: Browser, **wanted: Any) -> None:
        self._context = browser.new_context(ignore_https_errors=True, **wanted)
        self._context.set_default_timeout(WITHIN)
        self.page: Page = self._context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on(
            "console",
            lambda reported: self.wrong.append(reported.text) if reported.type in {"error", "warning"} else None,
        )
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, address: str, holding: str = "") -> Self:
        """Open an address, and wait until the page holds a text."""
        self.page.goto(address)
        return self.sees(holding)

    def go(self, route: str, holding: str = "") -> Self:
        """Go to another view of the open page."""
        self.page.evaluate("route => { location.hash = route }", route)
        return self.sees(holding)

    def sees(self, holding: str) -> Self:
        """Wait until the page shows a view that holds a text."""
        self.page.wait_for_function(
            "text => document.querySelector('main .page') && document.body.innerText.includes(text)", arg=holding
        )
        return self

    def text(self) -> str:
        """The visible text."""
        return str(self.page.inner_text("body"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.close()
