"""Claims are made again in a process that may hang, and may take as long as it goes on."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from sluice.driver import claims_rebuild
from sluice.driver.claims_rebuild import RebuildFailedError, _run

LINE = "print('orders: 200000 rows read', file=sys.stderr, flush=True)"


def python(text: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time\n{text}"]


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims_rebuild, "SILENT_SECONDS_MAX", 3.0)
    monkeypatch.setattr(claims_rebuild, "_LOOK_SECONDS", 0.05)


def test_one_that_hangs_is_killed() -> None:
    began = time.monotonic()
    with pytest.raises(RebuildFailedError, match="said nothing for 3 s, and was killed: orders:"):
        _run(python(f"{LINE}\ntime.sleep(60)"), {})
    assert time.monotonic() - began < 30


def test_one_that_goes_on_is_waited_for() -> None:
    """It takes longer than it may be silent."""
    _run(python(f"for _ in range(8):\n    {LINE}\n    time.sleep(0.6)"), {})


def test_one_that_cannot_be_killed_has_claimed_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for a disk: nobody knows how far it came."""
    monkeypatch.setattr(subprocess.Popen, "kill", lambda child: None)
    monkeypatch.setattr(claims_rebuild, "_KILLED_SECONDS", 0.1)
    with pytest.raises(RebuildFailedError, match="said nothing for 3 s, and was killed"):
        _run(python("time.sleep(6)"), {})


def test_one_that_fails_says_why() -> None:
    with pytest.raises(RebuildFailedError, match="ended with 1: no such table"):
        _run(python("sys.exit('no such table')"), {})
