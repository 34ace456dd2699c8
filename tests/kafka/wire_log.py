"""A partition's log in memory, which answers fetches as a broker does."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.reader import ReadResult
from sluice.kafka.wire import messages, native
from sluice.kafka.wire.reader import WireReader

SOURCE = TopicPartition("orders", 3)


@dataclass
class MemoryLog:
    """Stands in for both the cluster and the connection to the leader.

    :param batches: in order; a fetch begins with the one that holds its offset.
    :param aborted: (producer id, first offset, offset of the marker).
    """

    batches: Sequence[bytes]
    aborted: Sequence[tuple[int, int, int]] = ()
    end: int = 0
    fetches: list[tuple[int, int]] = field(default_factory=list)
    dropped: int = 0
    _answers: list[bytearray] = field(default_factory=list)
    _answer: bytearray = field(default_factory=bytearray)

    def leader(self, _source: TopicPartition) -> tuple[MemoryLog, int]:
        self._answers.clear()
        return self, 0

    def drop(self, _source: TopicPartition) -> None:
        self.dropped += 1

    def watermarks(self, _source: TopicPartition) -> tuple[int, int]:
        return 0, self.end

    def send(self, kind: int, body: bytes) -> None:
        assert kind == messages.FETCH
        offset, _, size = struct.unpack_from(">qqi", body, len(body) - 26)
        self.fetches.append((offset, size))
        self._answers.append(bytearray(self._fetched(offset, size)))

    def receive(self) -> memoryview:
        self._answer = self._answers.pop(0)
        return memoryview(self._answer)

    @property
    def answer_address(self) -> int:
        return native.address_of(self._answer)

    def _fetched(self, offset: int, size: int) -> bytes:
        records = b""
        for batch in self.batches:
            base, delta = struct.unpack_from(">q15xi", batch)
            if base + delta < offset:
                continue
            # The first batch comes whole; later ones are cut where the fetch ends.
            records += batch if not records else batch[: max(0, size - len(records))]
        aborted = [pair for pair in self.aborted if pair[2] >= offset]
        return b"".join(
            (
                struct.pack(">ihii", 0, 0, 0, 1) + messages.text(SOURCE.topic),
                struct.pack(">iihqqq", 1, SOURCE.partition, 0, self.end, self.end, 0),
                struct.pack(">i", len(aborted)),
                *(struct.pack(">qq", *pair[:2]) for pair in aborted),
                struct.pack(">ii", -1, len(records)) + records,
            )
        )


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


def reader_of(log: MemoryLog) -> WireReader:
    reader = WireReader(KafkaAccess("dc1", "127.0.0.1:1"))
    reader._cluster = log  # type: ignore[assignment]
    return reader


def read(
    log: MemoryLog, begin: int, end: int, bytes_max: int = 1 << 40
) -> tuple[ReadResult, list[Piece]]:
    """What a new reader makes of a range."""
    pieces: list[Piece] = []

    def keep(
        text: memoryview,
        offsets: NDArray[np.uint64],
        ends: NDArray[np.int64],
        may_be_long: bool,
    ) -> None:
        pieces.append(Piece(bytes(text), offsets.tolist(), ends, may_be_long))

    result = reader_of(log).read_text(Range(SOURCE, begin, end), bytes_max, keep)
    return result, pieces
