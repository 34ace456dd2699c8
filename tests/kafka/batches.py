"""Record batches as a broker would send them, made by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from sluice.kafka.wire import native

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
APPEND_TIME, TRANSACTIONAL, CONTROL = 8, 16, 32


@dataclass(frozen=True, slots=True)
class Entry:
    """A message: its offset, and what it holds; no value is a tombstone.

    :param at_ms: -1: it has no timestamp.
    :param headers: their names and values.
    """

    offset: int
    value: bytes | None
    key: bytes | None = None
    at_ms: int = -1
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def varint(value: int) -> bytes:
    number = (value << 1) ^ (value >> 63)
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _sized(value: bytes | None) -> bytes:
    return varint(-1) if value is None else varint(len(value)) + value


def record(
    delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: bytes = b"\0",
    after_ms: int = 0,
) -> bytes:
    body = b"\0" + varint(after_ms) + varint(delta) + _sized(key) + _sized(value) + headers
    return varint(len(body)) + body


def _headers(entry: Entry) -> bytes:
    pairs = (_sized(name) + _sized(value) for name, value in entry.headers)
    return varint(len(entry.headers)) + b"".join(pairs)


def sealed(
    records: bytes,
    base: int,
    delta: int,
    count: int,
    attributes: int = 0,
    producer: int = -1,
    times_ms: tuple[int, int] = (0, 0),
) -> bytes:
    """A batch around records, its checksum right.

    :param times_ms: of the first record, and the largest.
    """
    head = struct.pack(">hiqqqhii", attributes, delta, *times_ms, producer, 0, 0, count)
    covered = head + records
    crc = compiled_crc32c(covered, by_table=False)  # which has a test of its own
    return struct.pack(">qiibI", base, len(covered) + 9, 0, 2, crc) + covered


def batch(
    entries: Sequence[Entry],
    base: int | None = None,
    last: int | None = None,
    codec: str = "",
    producer: int = -1,
    appended_ms: int = -1,
) -> bytes:
    """A batch of messages; `base` and `last` where compaction took its first or last ones.

    :param appended_ms: the broker's time, which counts instead of the producers'; -1: it does not.
    """
    base = entries[0].offset if base is None else base
    last = entries[-1].offset if last is None else last
    first_ms = entries[0].at_ms if entries else 0
    records = b"".join(
        record(x.offset - base, x.key, x.value, _headers(x), x.at_ms - first_ms) for x in entries
    )
    if codec:
        records = bytes(pa.compress(records, codec=codec, asbytes=True))
    attributes = CODECS.get(codec, 0) | (TRANSACTIONAL if producer >= 0 else 0)
    attributes |= APPEND_TIME if appended_ms >= 0 else 0
    times_ms = first_ms, appended_ms
    return sealed(records, base, last - base, len(entries), attributes, producer, times_ms)


def marker(offset: int, producer: int, commit: bool) -> bytes:
    """The control batch that ends a transaction."""
    key = struct.pack(">hh", 0, int(commit))
    value = struct.pack(">hi", 0, 0)
    return sealed(record(0, key, value), offset, 0, 1, CONTROL | TRANSACTIONAL, producer)


def crc32c(data: bytes) -> int:
    """Bit by bit, so that it shares nothing with the compiled one."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def compiled_crc32c(data: bytes, by_table: bool) -> int:
    memory = bytearray(data or b"\0")
    return int(native.library().sluice_crc32c(native.address_of(memory), len(data), by_table))


def compiled_lz4(packed: bytes, room: int) -> bytes | None:
    """What the compiled part unpacks of a frame; None: it leaves it to the library."""
    memory, window = bytearray(packed or b"\0"), bytearray(room or 1)
    addresses = native.address_of(memory), native.address_of(window)
    count = native.library().sluice_lz4_frame(addresses[0], len(packed), addresses[1], room)
    return None if count < 0 else bytes(window[:count])


def joined(batches: Iterable[bytes]) -> bytes:
    return b"".join(batches)
