"""Logs of partitions in memory, which answer fetches as a broker does."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import UnreadRangeError
from sluice.kafka.reader import ReadResult, Wanted
from sluice.kafka.wire import messages
from sluice.kafka.wire.messages import Cursor, Leader
from sluice.kafka.wire.reader import WireReader

SOURCE = TopicPartition("orders", 3)


@dataclass
class MemoryLog:
    """A partition's log.

    :param batches: in order; a fetch begins with the one that holds its offset.
    :param aborted: (producer id, first offset, offset of the marker).
    :param fetches: offset and size of each.
    :param error: what every fetch is refused with.
    """

    batches: Sequence[bytes]
    aborted: Sequence[tuple[int, int, int]] = ()
    end: int = 0
    source: TopicPartition = SOURCE
    fetches: list[tuple[int, int]] = field(default_factory=list)
    error: int = 0

    def records(self, offset: int, size: int, is_first: bool) -> bytes:
        """What a fetch brings: its first batch whole or not at all, later ones cut where it ends.

        :param is_first: nothing came of other partitions, so the first batch comes in any case.
        """
        found = b""
        for batch in self.batches:
            base, delta = struct.unpack_from(">q15xi", batch)
            if base + delta < offset:
                continue
            if not found and len(batch) > size and not is_first:
                return b""
            found += batch if not found else batch[: max(0, size - len(found))]
        return found

    def answer(self, offset: int, size: int, is_first: bool) -> tuple[bytes, int]:
        """The partition's part of an answer, and how many bytes of it are batches."""
        self.fetches.append((offset, size))
        records = b"" if self.error else self.records(offset, size, is_first)
        aborted = [pair for pair in self.aborted if pair[2] >= offset]
        parts = (
            struct.pack(">ihqqq", self.source.partition, self.error, self.end, self.end, 0),
            struct.pack(">i", len(aborted)),
            *(struct.pack(">qq", *pair[:2]) for pair in aborted),
            struct.pack(">ii", -1, len(records)) + records,
        )
        return b"".join(parts), len(records)


def asked_of(body: bytes) -> list[tuple[TopicPartition, int, int, int]]:
    """What a fetch asks for: partitions with epoch, offset and size."""
    cursor = Cursor(memoryview(body), struct.calcsize(">iiiibii"))
    found = []
    for _ in range(cursor.number("i")):
        topic = cursor.text()
        for _ in range(cursor.number("i")):
            partition, epoch, offset, _, size = cursor.numbers("iiqqi")
            found.append((TopicPartition(topic, partition), epoch, offset, size))
    return found


def fetch_answer(logs: Iterable[MemoryLog], body: bytes) -> bytes:
    """As a broker answers: filled in the order of the request, up to its size."""
    of = {log.source: log for log in logs}
    (left,) = struct.unpack_from(">i", body, 12)
    topics: dict[str, list[bytes]] = {}
    is_first = True
    for source, _, offset, size in asked_of(body):
        part, count = of[source].answer(offset, min(size, left), is_first)
        is_first = is_first and not count
        left = max(0, left - count)
        topics.setdefault(source.topic, []).append(part)
    whole = [struct.pack(">ihii", 0, 0, 0, len(topics))]
    for topic, partitions in topics.items():
        whole += messages.text(topic), struct.pack(">i", len(partitions)), *partitions
    return b"".join(whole)


class MemoryCluster:
    """Stands in for both the cluster and the connection to its only broker, which leads all."""

    slowed_until = 0.0

    def __init__(self, logs: Sequence[MemoryLog]) -> None:
        self.logs = logs
        self.dropped = 0
        self.requests = 0
        self._answers: list[bytearray] = []

    def find_leaders(self, _sources: Iterable[TopicPartition]) -> None:
        pass

    def leader(self, _source: TopicPartition) -> Leader:
        return Leader(7, 0)

    leader_of = leader

    def connection(self, _leader: Leader) -> MemoryCluster:
        self._answers.clear()
        return self

    def drop(self, _source: TopicPartition) -> None:
        self.dropped += 1

    def watermarks(self, source: TopicPartition) -> tuple[int, int]:
        return next((0, log.end) for log in self.logs if log.source == source)

    def send(self, kind: int, body: bytes) -> None:
        assert kind == messages.FETCH
        self.requests += 1
        self._answers.append(bytearray(fetch_answer(self.logs, body)))

    def receive(self) -> memoryview:
        return memoryview(self._answers.pop(0))

    @property
    def is_waiting(self) -> bool:
        return bool(self._answers)

    def close(self) -> None:
        self._answers.clear()


@dataclass
class Piece:
    """What was delivered at once."""

    text: bytes
    offsets: list[int]
    ends: NDArray[np.int64]
    may_be_long: bool

    @property
    def values(self) -> list[bytes]:
        begins = [0, *(self.ends[:-1] + 1).tolist()]
        return [self.text[a:b] for a, b in zip(begins, self.ends.tolist(), strict=True)]


def reader_of(*logs: MemoryLog) -> WireReader:
    reader = WireReader(KafkaAccess("dc1", "127.0.0.1:1"))
    reader._cluster = MemoryCluster(logs)  # type: ignore[assignment]
    return reader


def read(
    log: MemoryLog, begin: int, end: int, bytes_max: int = 1 << 40
) -> tuple[ReadResult, list[Piece]]:
    """What a new reader makes of a range."""
    wanted = [Wanted(Range(SOURCE, begin, end))]
    try:
        (result,), pieces = read_ranges(reader_of(log), wanted, bytes_max)
    except UnreadRangeError as unread:
        raise unread.reason from None
    return result, pieces


def read_ranges(
    reader: WireReader, wanted: Sequence[Wanted], bytes_max: int = 1 << 40
) -> tuple[tuple[ReadResult, ...], list[Piece]]:
    """What a reader makes of ranges."""
    pieces: list[Piece] = []

    def keep(
        text: memoryview,
        offsets: NDArray[np.uint64],
        ends: NDArray[np.int64],
        may_be_long: bool,
    ) -> None:
        pieces.append(Piece(bytes(text), offsets.tolist(), ends, may_be_long))

    return reader.read_text(wanted, bytes_max, keep), pieces
