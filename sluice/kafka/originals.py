"""Keys, headers and times of messages, which a dead letter carries.

With librdkafka, reading a range a second time for its bad messages costs as much as the first time
where they are spread over it, however few they are. So where the range before had bad messages,
what they need is kept for all messages of the next one. The native reader passes over all other
messages without an object for any, and reads again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import confluent_kafka as ck

from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter, DeadLetterReason
from sluice.kafka.headers import Headers, all_headers

#: Keys and headers beyond this are not worth their memory: the range is read again.
KEPT_BYTES_MAX = 16 * 1024 * 1024
#: What an empty key or header takes in Python.
_OBJECT_BYTES = 64

_key, _timestamp = ck.Message.key, ck.Message.timestamp


class Original(NamedTuple):
    """A message as it stands in its topic.

    :param value: None: it is a tombstone.
    """

    source: TopicPartition
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]

    def dead_letter(self, fault: DeadLetterReason, bytes_max: int) -> DeadLetter:
        """What becomes of it for one reason.

        :param bytes_max: with a longer value it is a pointer: no value, truncated.
        """
        is_pointer = self.value is not None and len(self.value) > bytes_max
        return DeadLetter(
            topic=self.source.topic,
            partition=self.source.partition,
            offset=self.offset,
            timestamp_ms=self.timestamp_ms,
            key=self.key,
            value=None if is_pointer else self.value,
            headers=tuple(self.headers),
            reason=fault.reason,
            error=fault.error,
            table=fault.entry,
            column=fault.column,
            truncated=is_pointer,
            into=fault.into,
            facts=fault.facts,
        )


class Letters:
    """The dead letters of a range, made of its originals in their order.

    :param faults: offset -> what is wrong with its message, once for each table entry.
    :param bytes_max: of all values together.
    """

    def __init__(self, faults: Mapping[int, Sequence[DeadLetterReason]], bytes_max: int) -> None:
        self._faults, self._left = faults, bytes_max
        self.made: list[DeadLetter] = []

    def take(self, original: Original) -> None:
        """Make those of one message."""
        for fault in self._faults.get(original.offset, ()):
            letter = original.dead_letter(fault, self._left)
            self._left -= len(letter.value or b"")
            self.made.append(letter)


@dataclass(frozen=True, slots=True)
class _Poll:
    """What is kept of a poll.

    :param kinds: of each message's timestamp; `stamps` are the timestamps.
    :param keys: empty if no message has one; `headers` likewise.
    """

    offsets: Sequence[int]
    kinds: tuple[int, ...]
    stamps: tuple[int, ...]
    keys: list[bytes | None]
    headers: list[Headers]


class Originals:
    """Collects poll by poll; forgets everything once it would hold too much."""

    def __init__(self) -> None:
        self._polls: list[_Poll] = []
        self._bytes = 0
        self.complete = True

    def add(self, offsets: Sequence[int], batch: list[ck.Message]) -> None:
        """Take the messages of a poll.

        :param offsets: theirs, ascending over all polls.
        """
        if not self.complete or not batch:
            return
        kinds, stamps = zip(*map(_timestamp, batch), strict=True)
        keys: list[bytes | None] = list(map(_key, batch))
        if keys.count(None) == len(keys):
            keys = []
        headers = all_headers(batch)
        if not any(headers):
            headers = []
        self._bytes += sum(len(key) + _OBJECT_BYTES for key in keys if key is not None)
        for some in headers:
            self._bytes += sum(len(name) + len(v or b"") + 2 * _OBJECT_BYTES for name, v in some)
        if self._bytes > KEPT_BYTES_MAX:
            self.complete = False
            self._polls = []
            return
        self._polls.append(_Poll(offsets, kinds, stamps, keys, headers))

    def dead_letters(
        self,
        source: TopicPartition,
        wanted: Mapping[int, Sequence[DeadLetterReason]],
        values: Mapping[int, bytes],
        bytes_max: int,
    ) -> tuple[DeadLetter, ...] | None:
        """The dead letters of these messages, by offset; None if one of them is not here.

        :param values: of the same messages.
        :param bytes_max: see `Letters`.
        """
        if not self.complete or wanted.keys() - values.keys():
            return None
        letters = Letters(wanted, bytes_max)
        polls = iter(self._polls)
        poll, last = None, -1
        for offset in sorted(wanted):
            while offset > last:
                poll = next(polls, None)
                if poll is None:
                    return None
                last = poll.offsets[-1]
            assert poll is not None
            place = bisect_left(poll.offsets, offset)
            if poll.offsets[place] != offset:
                return None
            has_time = poll.kinds[place] != ck.TIMESTAMP_NOT_AVAILABLE
            letters.take(
                Original(
                    source,
                    offset,
                    poll.stamps[place] if has_time else None,
                    poll.keys[place] if poll.keys else None,
                    values[offset],
                    poll.headers[place] if poll.headers else (),
                )
            )
        return tuple(letters.made)
