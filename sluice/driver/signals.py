"""What a running driver does on signals."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

_logger = logging.getLogger("sluice.pipeline")


def on_signals(stopping: threading.Event, refresh: Callable[[], None]) -> None:
    """SIGTERM and SIGINT settle and stop; SIGHUP looks at the tables' columns and at
    topics at once. On a terminal SIGHUP keeps its meaning: the terminal is gone."""

    def read_again(number: int, frame: FrameType | None) -> None:
        _logger.info("asked to look at the tables' columns and at topics again")
        refresh()

    def stop(number: int, frame: FrameType | None) -> None:
        _logger.info("asked to stop by %s; settling", signal.Signals(number).name)
        stopping.set()

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        if not sys.stderr.isatty():
            signal.signal(signal.SIGHUP, read_again)
