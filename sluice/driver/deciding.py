"""Hears of what persons decide for a driver that runs. What is frozen and limited is the loop's to
obey; the level of logs, and the end, are the process's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache

from sluice.core.decided import DRAIN, LOG_LEVEL, Decided
from sluice.core.errors import SluiceError
from sluice.driver.background import Background
from sluice.driver.ports import DecisionsRead
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.decisions import DecisionReader

_logger = logging.getLogger("sluice.decisions")
_all_loggers = logging.getLogger("sluice")

POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0


class DecisionWatch(Background):
    """Follows the decisions of one connector in a thread of its own.

    :param changed: takes what is decided, from that thread, whenever it has changed.
    :param drain: called when a person wants the driver to settle what is out, and to end.
    :param reload: called when a person wants it to look at the tables' columns and at topics.
    :param member: what the driver is called in its fleet; "": it is in none.
    :param known: what a former one of this process has heard: what was asked for since is done.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        changed: Callable[[DecisionsRead], None],
        drain: Callable[[], None],
        reload: Callable[[], None],
        member: str = "",
        known: Decided | None = None,
    ) -> None:
        super().__init__("decisions", "reading what is decided", 0)
        self._access, self._topic = access, topic
        self._changed, self._drain, self._reload = changed, drain, reload
        self._member = member
        self._reader: DecisionReader | None = None
        self._decided, self._is_first = known or Decided(), known is None

    def start(self) -> Decided:
        """Begin; gives what is decided by now. What was asked for before the process heard of
        anything is not done.

        :raises SluiceError: it cannot be read; nobody may go on without knowing.
        """
        try:
            decided = self._read_all()
        except BaseException:
            self._close()
            raise
        _use_log_level(self._decided, decided)
        if not self._is_first:
            self._do_asked(decided)
        self._decided = decided
        self._begin()
        return decided

    def _step(self) -> None:
        try:
            if self._reader is None:
                self._hear(self._read_all())
            elif self._reader.poll(POLL_SECONDS):
                self._hear(self._reader.decided)
        except SluiceError as error:
            _logger.warning("decisions cannot be read: %s. Try: %s", error, error.hint)
            self._close()
            self._ended.wait(RETRY_SECONDS)

    def _run(self) -> None:
        super()._run()
        self._close()

    def _read_all(self) -> Decided:
        self._reader = DecisionReader(self._access, self._topic, self._decided)
        return self._reader.read_all()

    def _hear(self, decided: Decided) -> None:
        if decided == self._decided:
            return
        _use_log_level(self._decided, decided)
        self._do_asked(decided)
        self._decided = decided
        self._changed(DecisionsRead(decided))

    def _do_asked(self, decided: Decided) -> None:
        """Do what was asked for since the last look."""
        for each in decided.asked - self._decided.asked:
            if each.member not in ("", self._member):
                continue
            if each.what == DRAIN:
                _logger.warning("drained by %s: %s. What is out is settled", each.by, each.why)
                self._drain()
            else:
                look = "the tables' columns, topics and replicas are looked at"
                _logger.warning("reload by %s: %s; %s", each.by, each.why, look)
                self._reload()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None


@cache
def _level_at_start() -> int:
    """The level before anybody has decided on one."""
    return _all_loggers.level


def _use_log_level(before: Decided, decided: Decided) -> None:
    """All connectors share the driver's logs: who decided last counts."""
    at_start, level = _level_at_start(), decided.value_of(LOG_LEVEL)
    if level != before.value_of(LOG_LEVEL):
        _all_loggers.setLevel(at_start if level is None else str(level).upper())
        _logger.warning("the log level is %s", level or "as at the start")
