"""A real browser, for one question at a time."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

#: A page that does not come within so many seconds of the machine's time is broken.
SECONDS = 180


def chromium(folder: Path, *words: str) -> str:
    """What Chromium prints; it is told to ask nobody but the page's server."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("needs Debian's package chromium: scripts/setup-tests")
    quiet = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
    options = ("--headless", "--no-sandbox", "--disable-gpu", *quiet, f"--user-data-dir={folder}")
    ended = subprocess.run(
        [found, *options, *words], capture_output=True, timeout=SECONDS, check=True
    )
    return ended.stdout.decode()


#: How a key is pressed: its code, its number, and the text that it writes.
_KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Space": ("Space", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""),
}


class Browser:
    """A Chromium that is driven by its DevTools protocol, over a pipe: no port, no library."""

    def __init__(self, folder: Path, width: int = 1000, height: int = 1000) -> None:
        found = shutil.which("chromium")
        if found is None:
            pytest.skip("needs Debian's package chromium: scripts/setup-tests")
        reads, self._to = os.pipe()
        self._from, writes = os.pipe()
        # Chromium reads commands from file 3, and writes answers to file 4.
        moved = f"{{os.dup2({reads}, 100): 3, os.dup2({writes}, 101): 4}}.items()"
        script = f"import os, sys\nfor old, new in {moved}: os.dup2(old, new)\n"
        shell = (sys.executable, "-c", f"{script}os.execv(sys.argv[1], sys.argv[1:])", found)
        options = ("--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}")
        size = f"--window-size={width},{height}"
        self._process = subprocess.Popen(
            [*shell, *options, size, "--remote-debugging-pipe", "about:blank"],
            pass_fds=(reads, writes),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(reads)
        os.close(writes)
        self._number, self._got, self._session = 0, b"", ""
        (page,) = (
            each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"
        )
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]

    def call(self, method: str, **words: Any) -> Any:
        """What a command is answered."""
        self._number += 1
        said: dict[str, Any] = {"id": self._number, "method": method, "params": words}
        said |= {"sessionId": self._session} if self._session else {}
        os.write(self._to, json.dumps(said).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while True:
            message, end, rest = self._got.partition(b"\0")
            if not end:
                ready, _, _ = select.select(
                    [self._from], [], [], max(0.0, until - time.monotonic())
                )
                assert ready, f"Chromium does not answer {method}"
                self._got += os.read(self._from, 1 << 20)
                continue
            self._got = rest
            told = json.loads(message)
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]

    def run(self, script: str) -> Any:
        """The value of an expression."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + SECONDS
        while not self.run(script):
            assert time.monotonic() < until, f"{script} did not come true"
            time.sleep(0.05)

    def open(self, url: str, ready: str) -> None:
        """Go to a page; `ready` is true once it is there."""
        self.call("Page.navigate", url=url)
        self.wait(ready)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Press a key; `modifiers` 8 is Shift."""
        code, number, text = _KEYS[key]
        words = {"key": " " if text == " " else key, "code": code, "modifiers": modifiers}
        words |= {"windowsVirtualKeyCode": number}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **words)
        self.call("Input.dispatchKeyEvent", type="keyUp", **words)

    def type(self, text: str) -> None:
        """Write where the focus is."""
        self.call("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """What is seen."""
        told = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(told["data"]))

    def close(self) -> None:
        """End it."""
        self._session = ""
        self.call("Browser.close")
        self._process.wait(60)
        os.close(self._to)
        os.close(self._from)
