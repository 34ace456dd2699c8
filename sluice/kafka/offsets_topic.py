"""What stands in `__consumer_offsets`: the keys and values of every version a broker writes.

Read from Kafka's own schemas (`common/message/*.json` of the group coordinator, up to 4.1).
A key begins with two bytes that name the kind of record: 0 and 1 are committed offsets, all
others are not (2 a classic group's members, 3 to 8 and 16 consumer groups, 9 to 15 share
groups, 17 to 23 streams groups) and are skipped, whatever is to come. A value begins with its
own version:

====  =========================================================================
0     offset, metadata, commit time
1     the same and a time of expiry
2     as 0
3     offset, leader epoch, metadata, commit time
4     as 3, with a compact string and tagged fields (the topic's id, since 4.1)
====  =========================================================================

A missing value is a tombstone: the offset expired, or was deleted with its group or topic.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from sluice.core.errors import TerminalError

OFFSETS_TOPIC = "__consumer_offsets"

_COMMIT_KEYS = (0, 1)
_VERSION_MAX = 4


class UnknownCommitFormatError(TerminalError):
    """A committed offset is written in a way that this version cannot read."""

    hint = "Use `--source ledger`, or a Sluice that knows this version of Kafka."


@dataclass(frozen=True, slots=True)
class CommitKey:
    """Whose committed offset it is."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommitValue:
    """A committed offset.

    :param leader_epoch: -1 where the version has none.
    :param committed_at_ms: the broker's wall time.
    """

    version: int
    offset: int
    leader_epoch: int
    metadata: str
    committed_at_ms: int


class _Reader:
    """Takes fields off bytes, front to back."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def number(self, code: str) -> int:
        """A number in network order; the code is struct's."""
        (value,) = struct.unpack_from(f">{code}", self._content, self._at)
        self._at += struct.calcsize(f">{code}")
        return int(value)

    def text(self) -> str:
        """A string behind two bytes of length."""
        return self._taken(self.number("h"))

    def compact_text(self) -> str:
        """A string behind a varint of its length and one."""
        length = shift = 0
        while True:
            byte = self.number("B")
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return self._taken(length - 1)

    def _taken(self, length: int) -> str:
        content = self._content[self._at : self._at + length]
        if length < 0 or len(content) < length:
            raise ValueError(f"a string of {length} bytes, {len(content)} are there")
        self._at += length
        return content.decode()


def parse_key(key: bytes | None) -> CommitKey | None:
    """Whose committed offset a message is about; None for every other kind of record.

    :raises UnknownCommitFormatError: it has the key of a committed offset and is none.
    """
    if key is None or len(key) < 2:
        return None
    try:
        reader = _Reader(key)
        if reader.number("h") not in _COMMIT_KEYS:
            return None
        return CommitKey(reader.text(), reader.text(), reader.number("i"))
    except (struct.error, ValueError) as error:
        raise UnknownCommitFormatError(f"a key of {OFFSETS_TOPIC} is damaged: {error}") from None


def parse_value(value: bytes) -> CommitValue:
    """A committed offset.

    :raises UnknownCommitFormatError: the version is not known, or the bytes do not fit it.
    """
    try:
        reader = _Reader(value)
        version = reader.number("h")
        if not 0 <= version <= _VERSION_MAX:
            raise UnknownCommitFormatError(
                f"version {version} of a committed offset is not known (up to {_VERSION_MAX} is)"
            )
        offset = reader.number("q")
        leader_epoch = reader.number("i") if version >= 3 else -1
        metadata = reader.compact_text() if version >= 4 else reader.text()
        return CommitValue(version, offset, leader_epoch, metadata, reader.number("q"))
    except (struct.error, ValueError) as error:
        raise UnknownCommitFormatError(f"a committed offset is damaged: {error}") from None


def partition_of(group: str, partitions: int) -> int:
    """The partition of the offsets topic that holds a group: Java's hash of its name."""
    code = 0
    units = group.encode("utf-16-be")
    for (unit,) in struct.iter_unpack(">H", units):
        code = (31 * code + unit) & 0xFFFFFFFF
    signed = code - (1 << 32) if code >= 1 << 31 else code
    return 0 if signed == -(1 << 31) else abs(signed) % partitions
