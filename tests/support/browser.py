"""A real headless Chromium for the tests, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


class Tab:
    """The last opened page, with the addresses it requested and its messages and errors (`complaints`)."""

    def __init__(self, chromium: Browser) -> None:
        self._chromium = chromium

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a file from disk in a window of this size, as a user who prefers this colour scheme."""
        self.requests, self.complaints = [], []
        view = {"viewport": {"width": width, "height": height}, "is_mobile": width < 600, "color_scheme": scheme}
        for context in self._chromium.contexts:
            context.close()
        self.page = self._chromium.new_page(**view, reduced_motion="reduce")
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(path.resolve().as_uri())

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, after promises have resolved."""
        return self.page.evaluate(expression)

    def print_on(self, width: int, scheme: str = "light") -> None:
        """Show the page as it is printed on a sheet of this width."""
        self.page.set_viewport_size({"width": width, "height": 900})
        self.page.emulate_media(media="print", color_scheme=scheme)


@contextmanager
def running() -> Iterator[Tab]:
    """Start Chromium, and stop it at the end; skip the test where none is installed."""
    program = next((path for name in NAMES if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no Chromium here (looked for {', '.join(NAMES)}); install Debian's package chromium")
    with sync_playwright() as playwright:
        yield Tab(playwright.chromium.launch(executable_path=program, args=["--disable-gpu"]))
