"""Kafka's requests and answers, as far as reading needs them. No I/O.

All are of versions before the flexible ones, which every broker from 2.3 to 4.x knows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
#: The versions that are spoken.
VERSIONS = {
    FETCH: 11,
    LIST_OFFSETS: 2,
    METADATA: 7,
    SASL_HANDSHAKE: 1,
    API_VERSIONS: 0,
    SASL_AUTHENTICATE: 0,
}
NAMES = {FETCH: "Fetch", LIST_OFFSETS: "ListOffsets", METADATA: "Metadata"}

READ_COMMITTED = 1
EARLIEST, LATEST = -2, -1

#: Of a batch: base offset, length of what follows it, and the leader's epoch.
_BATCH_HEAD = struct.Struct(">qii")

T = TypeVar("T")


class BrokenAnswerError(TransientError):
    """A broker answered what is no answer of Kafka's protocol."""

    hint = "Check that the address is a Kafka broker's, and security.protocol its listener's."


class Cursor:
    """Reads an answer; every length is checked against what is there."""

    def __init__(self, data: memoryview, at: int = 0) -> None:
        self._data = data
        self.at = at

    def numbers(self, form: str) -> tuple[int, ...]:
        """Big-endian integers, as `struct` names them."""
        try:
            values = struct.unpack_from(">" + form, self._data, self.at)
        except struct.error:
            raise BrokenAnswerError("an answer ends too early") from None
        self.at += struct.calcsize(">" + form)
        return values

    def number(self, form: str) -> int:
        """One of them."""
        return self.numbers(form)[0]

    def skip(self, count: int) -> int:
        """Step over bytes; the place where they begin."""
        begin = self.at
        if count < 0 or count > len(self._data) - begin:
            raise BrokenAnswerError("an answer ends too early")
        self.at += count
        return begin

    def text(self) -> str:
        """A string; null is empty."""
        length = self.number("h")
        begin = self.skip(max(length, 0))
        return bytes(self._data[begin : self.at]).decode("utf-8", "replace")

    def bytes(self) -> bytes:
        """Bytes; null is empty."""
        begin = self.skip(max(self.number("i"), 0))
        return bytes(self._data[begin : self.at])

    def array(self, element: Callable[[], T]) -> list[T]:
        """An array; null is empty."""
        count = self.number("i")
        if count > len(self._data) - self.at:  # no element is shorter than a byte
            raise BrokenAnswerError("an answer ends too early")
        return [element() for _ in range(count)]


def text(value: str) -> bytes:
    """A string as requests hold it."""
    encoded = value.encode()
    return struct.pack(">h", len(encoded)) + encoded


def request(kind: int, correlation: int, client: str, body: bytes) -> bytes:
    """A whole request, its length before it."""
    head = struct.pack(">hhi", kind, VERSIONS[kind], correlation) + text(client)
    return struct.pack(">i", len(head) + len(body)) + head + body


def fetch_body(
    source: TopicPartition, offset: int, leader_epoch: int, bytes_max: int, wait_ms: int
) -> bytes:
    """Ask for the batches of one partition from an offset on, without a session."""
    return b"".join(
        (
            struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, READ_COMMITTED, 0, -1),
            struct.pack(">i", 1) + text(source.topic),
            struct.pack(">iiiqqi", 1, source.partition, leader_epoch, offset, -1, bytes_max),
            struct.pack(">i", 0) + text(""),
        )
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch.

    :param aborted: (producer id, first offset) of aborted transactions.
    :param records: where the batches begin in the answer.
    """

    error: int
    aborted: tuple[tuple[int, int], ...]
    records: int
    records_bytes: int


def read_fetched(cursor: Cursor, source: TopicPartition) -> Fetched:
    """The one partition that was asked for."""
    _, error, _ = cursor.numbers("ihi")
    if error:
        return Fetched(error, (), 0, 0)
    if cursor.number("i") != 1 or cursor.text() != source.topic or cursor.number("i") != 1:
        raise BrokenAnswerError(f"an answer is not about {source}")
    partition, error, _, _, _ = cursor.numbers("ihqqq")
    if partition != source.partition:
        raise BrokenAnswerError(f"an answer is not about {source}")
    aborted = cursor.array(lambda: cursor.numbers("qq"))
    _, size = cursor.numbers("ii")
    size = max(size, 0)
    pairs = tuple(sorted(((pair[0], pair[1]) for pair in aborted), key=lambda pair: pair[1]))
    return Fetched(error, pairs, cursor.skip(size), size)


def leader_epochs(records: memoryview, end: int) -> Iterator[int]:
    """The epoch of each batch of a fetch that begins below `end`, markers included."""
    at = 0
    while at + _BATCH_HEAD.size <= len(records):
        base, length, epoch = _BATCH_HEAD.unpack_from(records, at)
        if base >= end or length < 0:
            return
        yield epoch
        at += 12 + length


def metadata_body(topic: str) -> bytes:
    """Ask who leads the partitions of a topic; it does not come into being."""
    return struct.pack(">i", 1) + text(topic) + struct.pack(">b", 0)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition now. `epoch` -1: not known."""

    broker: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Brokers by id, as (host, port); the topic's error, and its leaders by partition."""

    brokers: dict[int, tuple[str, int]]
    error: int
    leaders: dict[int, Leader]


def read_metadata(cursor: Cursor) -> Metadata:
    """The answer about one topic."""

    def broker() -> tuple[int, tuple[str, int]]:
        identity = cursor.number("i")
        address = cursor.text(), cursor.number("i")
        cursor.text()
        return identity, address

    def partition() -> tuple[int, int, Leader]:
        error, index, leader, epoch = cursor.numbers("hiii")
        for _ in ("replicas", "in sync", "offline"):
            cursor.array(lambda: cursor.number("i"))
        return index, error, Leader(leader, epoch)

    cursor.number("i")
    brokers = dict(cursor.array(broker))
    cursor.text()
    cursor.number("i")
    if cursor.number("i") != 1:
        raise BrokenAnswerError("an answer is not about one topic")
    error = cursor.number("h")
    cursor.text()
    cursor.number("b")
    partitions = cursor.array(partition)
    leaders = {index: leader for index, _, leader in partitions if leader.broker >= 0}
    return Metadata(brokers, error, leaders)


def list_offsets_body(source: TopicPartition, which: int) -> bytes:
    """Ask for the first offset, or the stable end."""
    return b"".join(
        (
            struct.pack(">ibi", -1, READ_COMMITTED, 1) + text(source.topic),
            struct.pack(">iiq", 1, source.partition, which),
        )
    )


def read_list_offsets(cursor: Cursor) -> tuple[int, int]:
    """Error and offset."""
    if cursor.numbers("ii")[1] != 1:
        raise BrokenAnswerError("an answer is not about one topic")
    cursor.text()
    count, _, error, _, offset = cursor.numbers("iihqq")
    if count != 1:
        raise BrokenAnswerError("an answer is not about one partition")
    return error, offset


def read_api_versions(cursor: Cursor) -> dict[int, tuple[int, int]]:
    """Request -> lowest and highest version that the broker knows."""
    cursor.number("h")
    known = cursor.array(lambda: cursor.numbers("hhh"))
    return {kind: (lowest, highest) for kind, lowest, highest in known}
