"""Compressed batches, unpacked piece by piece: a batch that shrank to a thousandth never is
in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from sluice.core.errors import TerminalError

#: Fills a part of the given memory; 0 at the end. Raises BrokenCompressionError.
Unpack = Callable[[memoryview], int]

_STREAMING = {1: "gzip", 3: "lz4", 4: "zstd"}
_SNAPPY = 2
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
#: The most that one block of snappy may become; a batch of snappy is one block, or many
#: small ones.
SNAPPY_BLOCK_BYTES_MAX = 256 * 1024 * 1024


class BrokenCompressionError(TerminalError):
    """The compressed records cannot be unpacked."""


def unpacker(codec: int, packed: memoryview) -> Unpack:
    """What unpacks the records of one batch.

    :param codec: as in the attributes of the batch.
    :param packed: must stay as it is until all is unpacked.
    """
    if codec == _SNAPPY:
        return _Snappy(packed)
    if codec not in _STREAMING:
        raise BrokenCompressionError(f"unknown compression {codec}")
    stream = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(packed)), _STREAMING[codec])

    def unpack(room: memoryview) -> int:
        try:
            return int(stream.readinto(room))
        except (OSError, pa.ArrowException) as error:
            raise BrokenCompressionError(f"{_STREAMING[codec]}: {error}") from None

    return unpack


class _Snappy:
    """One raw block, or the blocks that Java's library frames."""

    def __init__(self, packed: memoryview) -> None:
        self._packed = packed
        self._codec = pa.Codec("snappy")
        self._is_framed = bytes(packed[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC
        self._at = _XERIAL_HEADER_BYTES if self._is_framed else 0
        self._block = memoryview(b"")

    def __call__(self, room: memoryview) -> int:
        while not self._block:
            if self._at >= len(self._packed):
                return 0
            self._block = self._unpack(self._next_block())
        count = min(len(room), len(self._block))
        room[:count] = self._block[:count]
        self._block = self._block[count:]
        return count

    def _next_block(self) -> memoryview:
        if not self._is_framed:
            block, self._at = self._packed, len(self._packed)
            return block
        begin = self._at + 4
        self._at = begin + int.from_bytes(self._packed[self._at : begin], "big")
        if self._at > len(self._packed):
            raise BrokenCompressionError("snappy: a block is longer than the batch")
        return self._packed[begin : self._at]

    def _unpack(self, block: memoryview) -> memoryview:
        size = _snappy_size(block)
        if size > SNAPPY_BLOCK_BYTES_MAX:
            raise BrokenCompressionError(f"snappy: a block of {size} bytes")
        try:
            return memoryview(self._codec.decompress(pa.py_buffer(block), size)).cast("B")
        except (OSError, pa.ArrowException) as error:
            raise BrokenCompressionError(f"snappy: {error}") from None


def _snappy_size(block: memoryview) -> int:
    """The unpacked size, with which every raw block begins."""
    size = 0
    for shift, byte in enumerate(block[:5]):
        size |= (byte & 127) << (7 * shift)
        if byte < 128:
            return size
    raise BrokenCompressionError("snappy: a block without its size")
