"""A thread beside the loops does not end on a bug."""

from __future__ import annotations

import threading

import pytest

from sluice.driver import background
from sluice.driver.background import Background


class Counting(Background):
    def __init__(self) -> None:
        super().__init__("counting", "counting", 0.001)
        self.steps = 0
        self.went_on = threading.Event()

    def start(self) -> None:
        self._begin()

    def _step(self) -> None:
        self.steps += 1
        if self.steps == 2:
            raise KeyError("a bug")
        if self.steps == 4:
            self.went_on.set()

    def has_ended(self) -> bool:
        self._thread.join(30)
        return not self._thread.is_alive()


def test_a_bug_is_logged_and_the_thread_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_PAUSE_SECONDS", 0.01)
    counting = Counting()
    counting.start()
    assert counting.went_on.wait(30), "no step after the one that failed"
    counting.stop()
    assert counting.has_ended(), "the thread does not end when it is told to"
    told = [record.getMessage() for record in caplog.records]
    assert told == ["counting ends on a bug, and is tried again"]
