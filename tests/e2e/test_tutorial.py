"""The commands of docs/TUTORIAL.md, in one shell, with what they print."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.testbed.local.children import free_ports
from tests.e2e.test_dead_letters_document import matches

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = ROOT / "docs" / "TUTORIAL.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
#: What is printed between two blocks.
MARK = "-- the next block\n"
SECONDS = 600


@pytest.mark.long
def test_the_document(tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    for port, free in zip(("9092", "8123"), free_ports(2), strict=True):
        text = text.replace(port, str(free))
    blocks = BLOCK.findall(text)
    script = "set -e\n" + f"printf -- '{MARK[:-1]}\\n'\n".join(commands for commands, _ in blocks)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=(tmp_path / "errors").open("wb"),
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = shell.communicate(timeout=SECONDS)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
    said = (tmp_path / "errors").read_text()
    found = printed.split(MARK)
    assert (shell.returncode, len(found)) == (0, len(blocks)), printed + said
    for (commands, expected), got in zip(blocks, found, strict=True):
        if expected:
            assert matches(expected.splitlines(), got), f"{commands} printed:\n{got}"
