"""What is read only when somebody asks over HTTP: dead letters, and the ledger's history of a
partition or a block. One look at a time, for some seconds, some lines of it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

from sluice.config import Configuration
from sluice.kafka.tail import TooMuchToReadError
from sluice.machine.clock import now_ms
from sluice.ops.dead_letters import Found, advice, find, summarise, with_topic
from sluice.ops.http.bodies import DeadLettersQuestion, HistoryQuestion
from sluice.ops.ledger_view import LedgerSelection, check, read_ledger

#: A look that takes longer answers with what it has read.
LOOK_SECONDS = 10.0
PREVIEW_CHARACTERS, WHOLE_CHARACTERS = 200, 64 * 1024
_HOUR_MS = 3_600_000

_Read = TypeVar("_Read")


def look_at_dead_letters(
    configuration: Configuration, asked: DeadLettersQuestion
) -> dict[str, Any]:
    """How many there are of which table and reason, and the newest of those that are meant.

    Where `[dead_letters] mask` names anything, no payload, key or header is shown: what of them a
    masked column is made of only who decodes them knows.
    """
    selection = asked.selection(time.monotonic() + LOOK_SECONDS)
    shown: deque[Found] = deque(maxlen=asked.limit)
    reading = _Reading(find(with_topic(configuration, asked.of), selection), shown.append)
    counts = summarise(reading.read())
    masked = bool(configuration.masked)
    length = WHOLE_CHARACTERS if asked.whole else PREVIEW_CHARACTERS
    return {
        "complete": reading.is_complete,
        "masked": masked,
        "counts": [asdict(count) for count in counts],
        "dead_letters": [_fields(found, masked, length) for found in reversed(shown)],
    }


def look_at_history(configuration: Configuration, asked: HistoryQuestion) -> dict[str, Any]:
    """The newest entries of the ledger that are about these partitions, the oldest first."""
    words = asked.model_dump(exclude={"limit", "since_ms"})
    since_ms = now_ms() - _HOUR_MS if asked.since_ms is None else asked.since_ms
    until = time.monotonic() + LOOK_SECONDS
    selection = LedgerSelection(**words, since_ms=since_ms, until=until)
    check(configuration, selection)
    shown: deque[dict[str, Any]] = deque(maxlen=asked.limit)
    reading = _Reading(read_ledger(configuration, selection), shown.append)
    count = sum(1 for _ in reading.read())
    entries = [entry for entry in shown if entry["type"] != "load_spec"]
    return {"complete": reading.is_complete, "found": count, "entries": entries}


class _Reading:
    """Reads to the end, or until there was no more time."""

    def __init__(self, found: Iterable[_Read], keep: Callable[[_Read], None]) -> None:
        self._found, self._keep = found, keep
        self.is_complete = True

    def read(self) -> Iterator[Any]:
        """All of it; the last ones are kept."""
        try:
            for each in self._found:
                self._keep(each)
                yield each
        except TooMuchToReadError:
            self.is_complete = False


def _fields(found: Found, masked: bool, length: int) -> dict[str, Any]:
    letter, first = found.letter, found.letter.first
    value = letter.value or b""
    return {
        "connector": found.connector,
        "table": letter.table,
        "column": letter.column,
        "reason": letter.reason,
        "error": letter.error,
        "topic": first.topic,
        "partition": first.partition,
        "offset": first.offset,
        "attempt": letter.attempt,
        "at_ms": found.stored.written_at_ms,
        "replayed_at_ms": None if found.replayed is None else found.replayed.at_ms,
        "replayed_by": None if found.replayed is None else found.replayed.by,
        "bytes": len(value),
        "sample": None if masked else _text(value, length),
        "key": None if masked or letter.key is None else _text(letter.key, length),
        "headers": [
            [name, "" if content is None else _text(content, PREVIEW_CHARACTERS)]
            for name, content in (() if masked else letter.headers)
        ],
        "advice": advice(found),
    }


def _text(value: bytes, length: int) -> str:
    """The beginning of it, as text."""
    text = value[: length * 4].decode(errors="backslashreplace")
    return text if len(text) <= length else text[: length - 1] + "…"
