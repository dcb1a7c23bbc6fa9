"""A real headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import base64
import itertools
import shutil
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from websockets.sync.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from websockets.sync.client import ClientConnection

PATIENCE_SECONDS = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._numbers = itertools.count(1)
        self.errors: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: object) -> dict[str, Any]:
        """Call a method of the protocol, and record the errors that the page logs meanwhile."""
        number = next(self._numbers)
        self._connection.send(msgspec.json.encode({"id": number, "method": method, "params": parameters}).decode())
        while True:
            answer = msgspec.json.decode(self._connection.recv(PATIENCE_SECONDS))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(event["params"]["exceptionDetails"]))
        if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
            self.errors.append(str(event["params"]["entry"]))

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Change size and colour scheme."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address: str) -> None:
        """Open an address and wait until its document has a body: the answer precedes it."""
        self.call("Page.navigate", url=address)
        self.wait_for("document.body !== null")

    def evaluate(self, script: str) -> Any:  # a value of JavaScript
        """Return the value of an expression; a promise is awaited."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def text(self) -> str:
        """Return the visible text."""
        return str(self.evaluate("document.body.innerText"))

    def wait_for(self, script: str) -> Any:  # a value of JavaScript
        """Return the value of an expression as soon as it is true."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not (found := self.evaluate(script)):
            assert time.monotonic() < end, (script, self.text(), self.errors)
            time.sleep(0.1)
        return found

    def press(self, key: str) -> None:
        """Press a key by its name."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def save_screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write the page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def open_browser(program: str, profile: Path) -> Iterator[Page]:
    """Open a browser with an empty profile until the block ends."""
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    process = subprocess.Popen(
        [program, *options, *quiet, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = _find_tab(profile)
        with connect(address, max_size=None) as connection:
            yield Page(connection)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)


def _find_tab(profile: Path) -> str:
    from urllib.request import urlopen

    port_file = profile / "DevToolsActivePort"
    end = time.monotonic() + PATIENCE_SECONDS
    while not (port_file.exists() and port_file.read_text().strip()):
        assert time.monotonic() < end, "Chromium has not started"
        time.sleep(0.1)
    port = port_file.read_text().splitlines()[0]
    with urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        tabs = msgspec.json.decode(answer.read())
    return str(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
