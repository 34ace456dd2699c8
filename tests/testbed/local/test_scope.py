"""How a run on the local stack is interrupted."""

from __future__ import annotations

import signal
import sys
import threading
import time

import pytest

from sluice.testbed.local.lifetime import interruptible


def handlers() -> list[object]:
    return [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_once(number: signal.Signals) -> None:
    before = handlers(), sys.unraisablehook
    ended = False
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            ended = True
    assert ended
    assert (handlers(), sys.unraisablehook) == before


class Interrupted:
    """What is collected just when the signals come; it takes a while, too."""

    def __del__(self) -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            time.sleep(0.05)


def test_a_signal_whose_exception_python_ignores_ends_the_run() -> None:
    before = handlers(), sys.unraisablehook
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), interruptible():
        found = Interrupted()
        del found
        time.sleep(30)
    assert time.monotonic() - began < 10
    assert (handlers(), sys.unraisablehook) == before


def test_other_ignored_exceptions_are_told_as_before() -> None:
    told: list[object] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda found: told.append(found.exc_type)
    try:
        with interruptible():
            found = type("Broken", (), {"__del__": lambda self: 1 / 0})()
            del found
    finally:
        sys.unraisablehook = before
    assert told == [ZeroDivisionError]


def test_another_thread_takes_no_signals() -> None:
    seen: list[bool] = []
    before = handlers()

    def run() -> None:
        with interruptible():
            seen.append(handlers() == before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]
