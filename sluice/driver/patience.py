"""Repeating what fails transiently, until it works or somebody stops it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TypeVar

from sluice.core.errors import TransientError

_logger = logging.getLogger("sluice.pipeline")

_RETRY_SECONDS_MAX = 30.0

_Made = TypeVar("_Made")


def patiently(
    what: str,
    attempt: Callable[[], _Made],
    stopping: threading.Event,
    failed: Callable[[TransientError], None] = lambda error: None,
) -> _Made:
    """Repeat what fails transiently, without end, until asked to stop.

    :param what: for the log: who is doing what.
    :param failed: called with each failure.
    :raises TransientError: it failed, and is to stop.
    """
    seconds = 0.5
    while True:
        try:
            return attempt()
        except TransientError as error:
            if stopping.is_set():
                raise
            failed(error)
            _logger.warning("%s (next in %.1f s): %s", what, seconds, error)
            stopping.wait(seconds)
            seconds = min(seconds * 2, _RETRY_SECONDS_MAX)
