"""Kafka's requests and answers, as far as reading needs them, and `doctor`, which asks what a user
may write. No I/O.

All are of versions before the flexible ones, which every broker from 2.3 to 4.x knows, but for the
one that tells the ids of topics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.producer.wire import varint

FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
SASL_HANDSHAKE, API_VERSIONS, SASL_AUTHENTICATE = 17, 18, 36
ADD_OFFSETS = 25
#: The versions that are spoken.
VERSIONS = {
    FETCH: 11,
    LIST_OFFSETS: 5,
    METADATA: 7,
    SASL_HANDSHAKE: 1,
    API_VERSIONS: 0,
    SASL_AUTHENTICATE: 0,
    ADD_OFFSETS: 0,
}
#: Of METADATA, the first that tells the ids of topics; brokers from 2.8 on have any. In flexible
#: versions lengths are varints, one larger, and a list of tags ends each part, the head too.
METADATA_WITH_IDS = 10
NAMES = {FETCH: "Fetch", LIST_OFFSETS: "ListOffsets", METADATA: "Metadata"}

READ_COMMITTED = 1
EARLIEST, LATEST = -2, -1
#: In an answer about offsets: partition, error, time, offset, and the epoch of the leader.
OFFSETS = np.dtype(
    [("partition", ">i4"), ("error", ">i2"), ("time", ">i8"), ("offset", ">i8"), ("epoch", ">i4")]
)

#: Of a batch: base offset, length of what follows it, the leader's epoch, and the format. Older
#: formats have no epoch, and a checksum in its place.
_BATCH_HEAD = struct.Struct(">qiib")
_WITH_EPOCHS = 2

#: Of a partition that is asked for: index, leader epoch, offset, first offset of a follower, bytes.
_ASKED = struct.Struct(">iiqqi")
#: A partition that is asked for: its leader's epoch, the offset, and the bytes that it may bring.
Asked = tuple[TopicPartition, int, int, int]

_first_offset = itemgetter(1)

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

    def rows(self, layout: np.dtype[np.void], count: int) -> NDArray[np.void]:
        """Elements of one size."""
        begin = self.skip(max(count, 0) * layout.itemsize)
        return np.frombuffer(self._data[begin : self.at], layout)

    def varint(self) -> int:
        """Unsigned, seven bits in a byte, the lowest first."""
        value = shift = 0
        while True:
            byte = self._data[self.skip(1)]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 28:
                raise BrokenAnswerError("an answer holds a length that is none")

    def length(self) -> int:
        """Of what is flexible; null is empty."""
        return max(self.varint() - 1, 0)

    def flexible_text(self) -> str:
        """A string of a flexible version."""
        length = self.length()
        begin = self.skip(length)
        return bytes(self._data[begin : self.at]).decode("utf-8", "replace")

    def skip_tags(self) -> None:
        """Step over what older clients need not know."""
        for _ in range(self.varint()):
            self.varint()
            self.skip(self.varint())

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


def add_offsets_body(transactional_id: str, group: str) -> bytes:
    """Asks to add a group's offsets to the transaction of a producer that there cannot be: the
    broker refuses it, and says first which right is missing."""
    return text(transactional_id) + struct.pack(">qh", -1, -1) + text(group)


def request(
    kind: int, correlation: int, client: str, body: bytes, version: int | None = None
) -> bytes:
    """A whole request, its length before it.

    :param version: if it is not the one of `VERSIONS`.
    """
    version = VERSIONS[kind] if version is None else version
    head = struct.pack(">hhi", kind, version, correlation) + text(client)
    return struct.pack(">i", len(head) + len(body)) + head + body


def fetch_body(asked: Iterable[Asked], bytes_max: int, wait_ms: int) -> bytes:
    """Ask for batches of partitions, without a session. The broker fills its answer in this order,
    topic by topic; the first partition that has anything brings at least one batch."""
    topics: dict[str, list[bytes]] = {}
    for source, epoch, offset, size in asked:
        one = _ASKED.pack(source.partition, epoch, offset, -1, size)
        topics.setdefault(source.topic, []).append(one)
    parts = [struct.pack(">iiiibii", -1, wait_ms, 1, bytes_max, READ_COMMITTED, 0, -1)]
    parts.append(struct.pack(">i", len(topics)))
    for topic, partitions in topics.items():
        parts += text(topic), struct.pack(">i", len(partitions)), *partitions
    parts += struct.pack(">i", 0), text("")
    return b"".join(parts)


@dataclass(slots=True)
class Fetched:
    """What the answer to a fetch holds of one partition.

    :param aborted: (producer id, first offset) of aborted transactions.
    :param records: where the batches begin in the answer.
    """

    error: int
    aborted: Sequence[tuple[int, ...]] = ()
    records: int = 0
    records_bytes: int = 0


def read_fetched(cursor: Cursor) -> tuple[int, int, list[tuple[str, int, Fetched]]]:
    """For how many milliseconds a quota slows us down, the error of the whole answer, and topic,
    partition and what came of it. A broker that slows us down answers without any partition, and
    reads no request from this connection for so long (KIP-219)."""
    slowed_ms, error, _ = cursor.numbers("ihi")
    found: list[tuple[str, int, Fetched]] = []
    for _ in range(0 if error else cursor.number("i")):
        topic = cursor.text()
        for _ in range(cursor.number("i")):
            partition, refused, _, _, _, count = cursor.numbers("ihqqqi")
            aborted = [cursor.numbers("qq") for _ in range(count)]
            aborted.sort(key=_first_offset)
            _, size = cursor.numbers("ii")
            size = max(size, 0)
            found.append((topic, partition, Fetched(refused, aborted, cursor.skip(size), size)))
    return slowed_ms, error, found


def leader_epochs(records: memoryview, end: int) -> Iterator[int]:
    """The epoch of each batch of a fetch that begins below `end`, markers included; older formats
    have none."""
    at = 0
    while at + _BATCH_HEAD.size <= len(records):
        base, length, epoch, magic = _BATCH_HEAD.unpack_from(records, at)
        if base >= end or length < 0:
            return
        if magic == _WITH_EPOCHS:
            yield epoch
        at += 12 + length


def metadata_body(topics: Collection[str]) -> bytes:
    """Ask who leads the partitions of topics; none comes into being."""
    names = b"".join(map(text, topics))
    return struct.pack(">i", len(topics)) + names + struct.pack(">b", 0)


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads a partition now. `epoch` -1: not known."""

    broker: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """Brokers by id, as (host, port); the error of each topic, 0: none; and leaders."""

    brokers: dict[int, tuple[str, int]]
    errors: dict[str, int]
    leaders: dict[TopicPartition, Leader]


def read_metadata(cursor: Cursor) -> Metadata:
    """The answer about topics."""
    leaders: dict[TopicPartition, Leader] = {}

    def broker() -> tuple[int, tuple[str, int]]:
        identity = cursor.number("i")
        address = cursor.text(), cursor.number("i")
        cursor.text()
        return identity, address

    def partition() -> tuple[int, Leader]:
        _, index, leader, epoch = cursor.numbers("hiii")
        for _ in ("replicas", "in sync", "offline"):
            cursor.skip(4 * cursor.number("i"))
        return index, Leader(leader, epoch)

    def topic() -> tuple[str, int]:
        error, name = cursor.number("h"), cursor.text()
        cursor.number("b")
        for index, leader in cursor.array(partition):
            if leader.broker >= 0:
                leaders[TopicPartition(name, index)] = leader
        return name, error

    cursor.number("i")
    brokers = dict(cursor.array(broker))
    cursor.text()
    cursor.number("i")
    return Metadata(brokers, dict(cursor.array(topic)), leaders)


def topic_ids_body(topics: Collection[str]) -> bytes:
    """Ask for the ids of topics, of which at least one is given; none comes into being. The head's
    tags come first."""
    parts = [b"\0", varint(len(topics) + 1)]
    for topic in topics:
        encoded = topic.encode()
        parts += bytes(16), varint(len(encoded) + 1), encoded, b"\0"
    return b"".join(parts) + bytes(4)


def read_topic_ids(cursor: Cursor) -> dict[str, tuple[int, int]]:
    """The ids of the topics that there are, each as two signed numbers."""
    cursor.skip_tags()
    cursor.number("i")
    for _ in range(cursor.length()):
        cursor.number("i")
        cursor.flexible_text()
        cursor.number("i")
        cursor.flexible_text()
        cursor.skip_tags()
    cursor.flexible_text()
    cursor.number("i")
    found: dict[str, tuple[int, int]] = {}
    for left in range(cursor.length(), 0, -1):
        error, topic = cursor.number("h"), cursor.flexible_text()
        most, least = cursor.numbers("qq")
        if not error:
            found[topic] = most, least
        if left > 1:  # of the last one nothing more is wanted, however many partitions it has
            _skip_partitions(cursor)
    return found


def _skip_partitions(cursor: Cursor) -> None:
    """What follows the id of a topic."""
    cursor.skip(1)
    for _ in range(cursor.length()):
        cursor.skip(14)
        for _ in ("replicas", "in sync", "offline"):
            cursor.skip(4 * cursor.length())
        cursor.skip_tags()
    cursor.skip(4)
    cursor.skip_tags()


def list_offsets_body(sources: Iterable[TopicPartition], which: int) -> bytes:
    """Ask for the first offsets, or the last stable offsets. The epochs of the leaders are told,
    and not asked for: who asks for one is refused by a leader of a later one."""
    topics: dict[str, list[bytes]] = {}
    for source in sources:
        topics.setdefault(source.topic, []).append(struct.pack(">iiq", source.partition, -1, which))
    parts = [struct.pack(">ibi", -1, READ_COMMITTED, len(topics))]
    for topic, partitions in topics.items():
        parts += text(topic), struct.pack(">i", len(partitions)), *partitions
    return b"".join(parts)


def read_list_offsets(cursor: Cursor) -> Iterator[tuple[str, int, NDArray[np.void]]]:
    """Each topic, where its partitions begin in the answer, and these as `OFFSETS`."""
    cursor.number("i")
    for _ in range(cursor.number("i")):
        topic, count = cursor.text(), cursor.number("i")
        begin = cursor.at
        yield topic, begin, cursor.rows(OFFSETS, count)


def read_api_versions(cursor: Cursor) -> dict[int, tuple[int, int]]:
    """Request -> lowest and highest version that the broker knows."""
    cursor.number("h")
    known = cursor.array(lambda: cursor.numbers("hhh"))
    return {kind: (lowest, highest) for kind, lowest, highest in known}
