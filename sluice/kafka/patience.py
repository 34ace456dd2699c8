"""Ends the wait for a transaction call that hangs.

librdkafka's transaction calls may ignore their time-out: after a broker's restart, one of
the calls before the commit did not come back for 120 s [measured; which one is not known].
Such a call is left alone in its thread and its producer is never used again; initialising
the same transactional id in a new producer fences it, so whatever it still sends is refused.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TypeVar

from sluice.kafka.errors import UnknownCommitError

_logger = logging.getLogger("sluice.kafka")

#: Exit status "stopped with intents in doubt".
HUNG_EXIT_STATUS = 3
#: So many hanging calls at once are a process that cannot be trusted any more.
HANGING_MAX = 5

_T = TypeVar("_T")
_hanging: list[threading.Thread] = []


def within(action: str, seconds: float, call: Callable[[], _T]) -> _T:
    """Call, and return or raise what it does.

    :raises UnknownCommitError: it did not come back in time; its producer must be dropped.
    """
    answers: list[_T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=action, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _give_up(thread, action, seconds)
        raise UnknownCommitError(f"{action} did not come back within {seconds:.0f} s")
    if failures:
        raise failures[0]
    return answers[0]


def _give_up(thread: threading.Thread, action: str, seconds: float) -> None:
    _hanging[:] = [*(other for other in _hanging if other.is_alive()), thread]
    if len(_hanging) < HANGING_MAX:
        return
    _logger.critical(
        "%d Kafka calls hang, %s for %.0f s; the process ends so that its successor can go on",
        len(_hanging),
        action,
        seconds,
    )
    logging.shutdown()
    os._exit(HUNG_EXIT_STATUS)
