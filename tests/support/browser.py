"""A real headless Chromium for the tests, driven through the pipe of its DevTools protocol. Standard library only.

Protocol: https://chromedevtools.github.io/devtools-protocol/. A message is JSON followed by a zero byte; the browser
reads from its file descriptor 3 and writes to 4.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Key codes: https://www.w3.org/TR/uievents-code/ and the Windows codes that the protocol also requires.
KEYS = {
    "Tab": 9,
    "Escape": 27,
    "End": 35,
    "Home": 36,
    "ArrowLeft": 37,
    "ArrowUp": 38,
    "ArrowRight": 39,
    "ArrowDown": 40,
}


class BrowserError(RuntimeError):
    """The browser exited, timed out, or rejected a command."""


def find() -> str | None:
    """Return the path of a Chromium; None if none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of a running Chromium, with the addresses it requested and its console messages (`complaints`)."""

    def __init__(self, process: subprocess.Popen[bytes], to_browser: int, from_browser: int) -> None:
        self._process, self._out, self._in = process, to_browser, from_browser
        self._pending, self._number, self._session = b"", 0, ""
        self.events: list[str] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its answer; events that arrive first are recorded."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])

    def open(self, path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> None:
        """Load a file from disk in a window of this size."""
        self.requests.clear()
        self.complaints.clear()
        self.events.clear()
        self.resize(width, height, scheme)
        self.call("Page.navigate", url=path.resolve().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._receive()

    def resize(self, width: int, height: int = 900, scheme: str = "light") -> None:
        """Set the size of the window and the colour scheme that the user prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", media="", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, after promises have resolved."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release a key."""
        for kind in ("rawKeyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key])

    def picture(self) -> bytes:
        """Return a PNG of the whole page."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self._pending:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise BrowserError(f"no answer within {TIMEOUT_SECONDS:g} s")
            if not (chunk := os.read(self._in, 1 << 20)):
                raise BrowserError(f"the browser exited with code {self._process.wait()}")
            self._pending += chunk
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._record(message["method"], message["params"])
        return message

    def _record(self, method: str, event: dict[str, Any]) -> None:
        self.events.append(method)
        if method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Log.entryAdded":
            self.complaints.append(event["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(event["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str([argument.get("value") for argument in event["args"]]))


@contextmanager
def running(program: str, profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile and no background network traffic; stop it at the end."""
    to_read, to_browser = os.pipe()
    from_browser, to_write = os.pipe()
    options = [
        "--headless=new",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--force-prefers-reduced-motion",
    ]
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium's sandbox does not start as root; the page is our own file
    command = ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{to_write}', "bash", program, *options]
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(command, pass_fds=(to_read, to_write), stdout=log, stderr=log)
    os.close(to_read)
    os.close(to_write)
    try:
        yield Browser(process, to_browser, from_browser)
    finally:
        os.close(to_browser)  # Chromium exits when its pipe closes
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)


VIEWS = tuple((width, scheme) for width in (1280, 360) for scheme in ("light", "dark"))
"""Width in CSS pixels and colour scheme: a desktop and a phone."""


def check_views(program: str, page: Path, profile: Path) -> None:
    """Open a page in every view; fail on a message, on a request beside the page, on sideways scrolling, and if the
    page has the same background in both schemes."""
    papers = {}
    with running(program, profile) as opened:
        for width, scheme in VIEWS:
            opened.open(page, width, scheme=scheme)
            assert opened.complaints == []
            assert opened.requests == [page.resolve().as_uri()]
            assert opened.value("document.documentElement.scrollWidth <= window.innerWidth")
            papers[scheme] = opened.value("getComputedStyle(document.body).backgroundColor")
    assert papers["light"] != papers["dark"]
