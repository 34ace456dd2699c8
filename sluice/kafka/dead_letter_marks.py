"""Marks in the dead-letter topic: which dead letters were replayed, and which were purged.

A mark stands in the partition of the dead-letter topic that holds its dead letters, behind them.
Kafka deletes from the front, so no mark is lost while a dead letter that it speaks of is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.core.ranges import Interval

KIND_HEADER = "sluice.kind"

#: Offsets in one mark: about 20 bytes each, and a message must be small enough for any topic.
_INTERVALS_MAX = 20_000

#: Source topic, its partition and the table entry of dead letters.
DeadLetterKey = tuple[str, int, str]
Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Replayed:
    """A dead letter went back into its source topic.

    :param offset: of the dead letter, in this partition of the dead-letter topic.
    :param by: who did it, as user@host.
    :param run: the replay that did it.
    """

    partition: int
    offset: int
    at_ms: int
    by: str
    run: str


@dataclass(frozen=True, slots=True)
class Purged:
    """Dead letters that were deleted, so that an audit still knows what became of their messages.

    :param before: everything below this offset of the dead-letter topic was to be deleted.
    :param offsets: of the messages whose dead letters stood there.
    :param is_done: whether the topic was cut there since; else the dead letters are still there.
    """

    partition: int
    before: int
    at_ms: int
    by: str
    offsets: Mapping[DeadLetterKey, tuple[Interval, ...]]
    is_done: bool = True


def replayed_headers(mark: Replayed, key: tuple[str, int, int, str]) -> Headers:
    """A mark as the headers of a message without key and value.

    :param key: topic, partition, offset and table entry of the dead letter, for other readers.
    """
    topic, partition, offset, table = key
    return [
        (KIND_HEADER, b"replayed"),
        ("sluice.letter", b"%d/%d" % (mark.partition, mark.offset)),
        ("sluice.at", b"%d" % mark.at_ms),
        ("sluice.by", mark.by.encode()),
        ("sluice.run", mark.run.encode()),
        ("sluice.topic", topic.encode()),
        ("sluice.partition", b"%d" % partition),
        ("sluice.offset", b"%d" % offset),
        ("sluice.table", table.encode()),
    ]


def purged_messages(mark: Purged) -> Iterator[tuple[Headers, bytes]]:
    """A mark as messages: headers and value; several where it is long."""
    headers: Headers = [
        (KIND_HEADER, b"purged"),
        ("sluice.before", b"%d" % mark.before),
        ("sluice.at", b"%d" % mark.at_ms),
        ("sluice.by", mark.by.encode()),
    ]
    for (topic, partition, table), intervals in sorted(mark.offsets.items()):
        for first in range(0, len(intervals), _INTERVALS_MAX):
            body = {
                "topic": topic,
                "partition": partition,
                "table": table,
                "offsets": intervals[first : first + _INTERVALS_MAX],
            }
            yield headers, json.dumps(body, separators=(",", ":")).encode()


def read_mark(
    partition: int, low: int, headers: Mapping[str, bytes], value: bytes | None
) -> Replayed | Purged | None:
    """The mark that a message of the dead-letter topic is; None if it is a dead letter.

    :param low: the first offset that the partition still holds.
    :raises ValueError, KeyError: it says it is a mark, and is none.
    """
    kind = headers.get(KIND_HEADER)
    if kind is None:
        return None
    at_ms, by = int(headers["sluice.at"]), headers["sluice.by"].decode()
    if kind == b"replayed":
        where, offset = headers["sluice.letter"].split(b"/")
        return Replayed(int(where), int(offset), at_ms, by, headers["sluice.run"].decode())
    if kind == b"purged":
        body = json.loads(value or b"")
        key = (str(body["topic"]), int(body["partition"]), str(body["table"]))
        intervals = tuple((int(begin), int(end)) for begin, end in body["offsets"])
        before = int(headers["sluice.before"])
        return Purged(partition, before, at_ms, by, {key: intervals}, is_done=before <= low)
    raise ValueError(f"a mark of the unknown kind {kind!r}")


def intervals_of(offsets: Iterable[int]) -> tuple[Interval, ...]:
    """Offsets in any order as intervals."""
    found: list[Interval] = []
    for offset in sorted(set(offsets)):
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)


def joined(
    parts: Sequence[Mapping[DeadLetterKey, tuple[Interval, ...]]],
) -> dict[DeadLetterKey, tuple[Interval, ...]]:
    """Several marks' offsets as one; they may overlap."""
    by_key: dict[DeadLetterKey, list[Interval]] = {}
    for part in parts:
        for key, intervals in part.items():
            by_key.setdefault(key, []).extend(intervals)
    merged: dict[DeadLetterKey, tuple[Interval, ...]] = {}
    for key, parts_of_key in by_key.items():
        found: list[Interval] = []
        for begin, end in sorted(parts_of_key):
            if found and begin <= found[-1][1]:
                found[-1] = (found[-1][0], max(end, found[-1][1]))
            else:
                found.append((begin, end))
        merged[key] = tuple(found)
    return merged
