"""Watching dead letters while they are only reported: how many, of what, and when too many.

A range is judged before it is settled. So a deployment that makes most messages bad stops its
partition with nothing written, where it would otherwise empty a topic into the dead letters.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from dataclasses import replace

from sluice.core.dead_letters import (
    PARKED,
    DeadLetterLimit,
    DeadLetterWindow,
    Excess,
    dead_letters_by_table,
    examples,
)
from sluice.core.errors import TerminalError
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetter, Loaded
from sluice.core.records import Record

_logger = logging.getLogger("sluice.loop")

#: A table entry of a partition is warned of at most so often.
WARN_EVERY_MS = 60_000
#: Of the limit, from where on it is warned of.
_WARN_SHARE = 0.5


class TooManyDeadLettersError(TerminalError):
    """More messages cannot become rows than [dead_letters] max_ratio allows.

    :param table: of this table entry; "" where they have no route.
    """

    def __init__(self, message: str, hint: str, table: str) -> None:
        super().__init__(message, hint)
        self.table = table


class DeadLetterLimiter:
    """Judges the ranges of one connector's loop. One thread uses it; others may read the counts.

    :param connector: as dead letters name it.
    """

    def __init__(self, connector: str, limit: DeadLetterLimit) -> None:
        self.windows: dict[TopicPartition, DeadLetterWindow] = {}
        #: Dead letters of loaded ranges, by table entry and reason.
        self.counts: dict[tuple[str, str], int] = {}
        self._connector = connector
        self._limit = limit
        self._warned_at_ms: dict[tuple[TopicPartition, str], int] = {}

    def take(self, block_range: Range, record: Record, loaded: Loaded, now_ms: int) -> Loaded:
        """The report with dead letters that say when and under what they were made.

        :param record: that the range was read under.
        :raises TooManyDeadLettersError: it must not be settled.
        """
        source = block_range.source
        window = self.windows.setdefault(source, DeadLetterWindow(self._limit))
        dead_letters = dead_letters_by_table(
            letter for letter in loaded.dead_letters if letter.reason != PARKED
        )
        if loaded.messages:
            excess = window.take(loaded.messages, dead_letters, loaded.passed)
            if excess is not None:
                raise self._too_many(block_range, loaded, excess)
        if not loaded.dead_letters and not loaded.copies:
            return loaded
        for letter in loaded.dead_letters:
            key = (letter.table, letter.reason)
            if key not in self.counts and letter.reason != PARKED:
                _tell_first(source, letter)
            self.counts[key] = self.counts.get(key, 0) + 1
        self._warn(source, window, loaded, dead_letters, now_ms)

        def signed(letters: Iterable[DeadLetter]) -> tuple[DeadLetter, ...]:
            return tuple(
                letter._replace(
                    attempted_at_ms=now_ms,
                    connector=self._connector,
                    spec=record.spec,
                    topic_id=record.topic_id,
                    generation=record.generation,
                )
                for letter in letters
            )

        return replace(
            loaded, dead_letters=signed(loaded.dead_letters), copies=signed(loaded.copies)
        )

    def would_stop(
        self, source: TopicPartition, table: str, dead_letters: int, messages: int
    ) -> bool:
        """Whether a range with so many dead letters of a table entry must not be settled.

        :param messages: of the range that the entry was given.
        """
        window = self.windows.get(source)
        window = DeadLetterWindow(self._limit) if window is None else copy.deepcopy(window)
        return window.take(max(1, messages), {table: dead_letters}) is not None

    def _too_many(
        self, block_range: Range, loaded: Loaded, excess: Excess
    ) -> TooManyDeadLettersError:
        source = block_range.source
        hint = (
            "Fix the table, its entry or the producer. To let them become dead letters, set "
            "[dead_letters] max_ratio higher (1.0 never stops) and start again; `sluice "
            "dead-letters replay` loads them once the cause is fixed."
        )
        if not loaded.receipts:
            connector = self._connector.rpartition(".")[2]
            hint += (
                " No row of the range was inserted: an altered table can also have it from "
                f"`sluice resolve CONFIG --connector {connector} --topic {source.topic} "
                f"--partition {source.partition} --as not-loaded`."
            )
        return TooManyDeadLettersError(
            f"{block_range}: {excess.dead_letters:,} of the last {excess.messages:,} messages "
            "cannot "
            f"become rows of table entry {excess.table or '(no route)'}: {excess.ratio:.0%}, and "
            f"[dead_letters] max_ratio is {self._limit.max_ratio:g}; none of this range was "
            f"written to the dead-letter topic. First of this range: "
            f"{examples(loaded.dead_letters, excess.table) or 'none, they came before it'}",
            hint,
            excess.table,
        )

    def _warn(
        self,
        source: TopicPartition,
        window: DeadLetterWindow,
        loaded: Loaded,
        dead_letters: dict[str, int],
        now_ms: int,
    ) -> None:
        """Say that a table entry comes near the limit."""
        for table in dead_letters:
            ratio, count = window.ratio(table), window.dead_letters[table]
            if ratio <= _WARN_SHARE * self._limit.max_ratio or count < self._limit.min_dead_letters:
                continue
            warned_at_ms = self._warned_at_ms.get((source, table))
            if warned_at_ms is not None and 0 <= now_ms - warned_at_ms < WARN_EVERY_MS:
                continue
            self._warned_at_ms[source, table] = now_ms
            _logger.warning(
                "%s: %.0f %% of the last %d messages are dead letters of table entry %s; from "
                "max_ratio = %g on the partition stops. %s",
                source,
                100 * ratio,
                window.messages_of(table),
                table or "(no route)",
                self._limit.max_ratio,
                examples(loaded.dead_letters, table),
            )


def _tell_first(source: TopicPartition, letter: DeadLetter) -> None:
    """Say it once in a run for each table entry and reason: a few dead letters are far from any
    limit, and who looks at a table that stays empty does not know of them."""
    _logger.warning(
        "%s offset %d becomes a dead letter of table entry %s: %s: %s",
        source,
        letter.offset,
        letter.table or "(no route)",
        letter.reason,
        letter.error,
        extra={
            "hint": "`sluice dead-letters list` and `show` tell of all. Others of this table "
            "entry with this reason are only counted."
        },
    )
