"""How commands end: by exit statuses, which are a contract with scripts, or by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import FrameType


class ExitStatus(IntEnum):
    """What a command reports to the shell."""

    #: Everything asked for is done, and settled.
    DONE = 0
    #: A promise is broken, a partition stopped, or a person said no.
    BROKEN = 1
    #: The configuration or the command line cannot be used.
    CONFIGURATION = 2
    #: Stopped with intents in doubt, or Spark ended; the next start goes on.
    IN_DOUBT = 3
    #: Another owner took the partitions over.
    OWNER_CHANGED = 4
    #: Ended by Ctrl-C, as shells count it.
    INTERRUPTED = 130
    #: The reader of the output went away, as shells count it.
    BROKEN_PIPE = 141


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Set on SIGINT and SIGTERM, which do not interrupt meanwhile."""
    stop = threading.Event()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
