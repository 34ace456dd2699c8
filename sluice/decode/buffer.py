"""The messages of one range and table, as bytes in a memfd that the engine reads.

Python objects of messages live only for one poll: what stays is the text, 8 bytes of offset
and 8 bytes of position for each message.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sluice.decode.boundaries import flat_ends, structure_faults

#: A digit run this long may wrap in the 256-bit reader or be cut by the widest decimal.
_LONG_DIGITS = re.compile(rb"[0-9]{61,}")
LONG_DIGITS_STAND_IN = b"9" * 60
#: One aligned word of 8 bytes in 32: a run of 39 digits or more fills one of them.
_WORD_STRIDE = 4
_HIGH_NIBBLES = np.uint64(0xF0F0F0F0F0F0F0F0)
_HIGH_NIBBLES_OF_DIGITS = np.uint64(0x3030303030303030)
_SIX_EACH = np.uint64(0x0606060606060606)


#: A message's value; the class below has a property named `bytes`.
Value = bytes


class MessageBuffer:
    """Collects messages poll by poll.

    `clear()` keeps the memory for the next range; it never grows beyond the largest range.
    Not shared between threads.
    """

    def __init__(self) -> None:
        self._file = os.memfd_create("sluice-messages", os.MFD_CLOEXEC)
        self._reset()

    def _reset(self) -> None:
        self._size = 0
        self._offsets = array("Q")
        self._chunk_ends: list[NDArray[np.int64]] = []
        self._ends: NDArray[np.int64] | None = None
        self.faults: list[int] = []
        self.long_digits: list[int] = []
        os.lseek(self._file, 0, os.SEEK_SET)

    def add(self, values: list[Value], offsets: list[int]) -> None:
        """Take the messages of one poll.

        :param values: no None among them (tombstones are the caller's to count).
        :param offsets: of the same messages, ascending over the life of the buffer.
        """
        if not values:
            return
        chunk = b"\n".join(values)
        index = len(self._offsets)
        self._offsets.extend(offsets)
        ends = flat_ends(chunk, len(values))
        if ends is None:
            ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1) - 1
            starts = np.concatenate(([0], ends[:-1] + 1))
            faults = structure_faults(chunk, starts, ends)
            self.faults.extend((np.flatnonzero(faults) + index).tolist())
        if _may_hold_long_digits(chunk):
            found = (n for n, value in enumerate(values, index) if _LONG_DIGITS.search(value))
            self.long_digits.extend(found)
        self._chunk_ends.append(ends + (self._size + 1))
        self._size += len(chunk) + 1
        self._ends = None
        _write(self._file, chunk)

    @property
    def path(self) -> str:
        """Where this process reads the messages, joined by newlines."""
        if os.fstat(self._file).st_size != self._size:
            os.ftruncate(self._file, self._size)
        return f"/proc/self/fd/{self._file}"

    @property
    def messages(self) -> int:
        """How many messages are held."""
        return len(self._offsets)

    @property
    def bytes(self) -> int:
        """The size of the values, separators left out."""
        return self._size - len(self._offsets)

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """The offset of each message, a copy."""
        return np.array(self._offsets, np.uint64)

    @property
    def ends(self) -> NDArray[np.int64]:
        """Where each message ends in the file, its newline included."""
        if self._ends is None:
            parts = self._chunk_ends or [np.zeros(0, np.int64)]
            self._ends = np.concatenate(parts)
        return self._ends

    def message(self, index: int) -> Value:
        """The value as it came from Kafka."""
        ends = self.ends
        begin = int(ends[index - 1]) if index else 0
        return os.pread(self._file, int(ends[index]) - 1 - begin, begin)

    def iterate(self, indices: NDArray[np.int64]) -> Iterator[Value]:
        """The values at these indices; reads in pieces of a few MiB."""
        ends = self.ends
        begins = np.concatenate(([0], ends[:-1]))
        window, window_begin = b"", 0
        for begin, end in zip(begins[indices].tolist(), ends[indices].tolist(), strict=True):
            if not (window_begin <= begin and end <= window_begin + len(window)):
                window, window_begin = os.pread(self._file, max(1 << 22, end - begin), begin), begin
            yield window[begin - window_begin : end - 1 - window_begin]

    def subset(self, indices: NDArray[np.int64]) -> MessageBuffer:
        """A buffer of its own with these messages, in this order; the caller closes it."""
        subset = MessageBuffer()
        offsets = self.offsets[indices]
        values = list(self.iterate(indices))
        for begin in range(0, len(values), 500):
            end = begin + 500
            subset.add(values[begin:end], offsets[begin:end].tolist())
        return subset

    def clear(self) -> None:
        """Forget the messages, keep the memory."""
        self._reset()

    def close(self) -> None:
        """Give the memory back. Safe to repeat."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> MessageBuffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.close()


def shorten_digits(value: bytes) -> bytes:
    """The message with over-long digit runs replaced by 60 nines.

    60 nines fit the readers without wrapping and fit no narrower integer; a fraction of 60
    nines is seen as cut. So the verdict on this text is the verdict on the message.
    """
    return _LONG_DIGITS.sub(LONG_DIGITS_STAND_IN, value)


def _may_hold_long_digits(chunk: bytes) -> bool:
    """False proves that no run of 61 digits is in there. Reads a fourth of the bytes.

    Such a run fills six aligned words in a row, one of them sampled: so three more on one
    side of a sampled word are digits too. Identifiers of up to 31 digits never come so far.
    """
    words = np.frombuffer(chunk, np.uint64, len(chunk) // 8)
    sampled = words[::_WORD_STRIDE]
    hits = np.flatnonzero((sampled & _HIGH_NIBBLES) == _HIGH_NIBBLES_OF_DIGITS) * _WORD_STRIDE
    hits = hits[_are_digits(words[hits])]
    if not len(hits):
        return False
    last = len(words) - 1
    after = before = np.ones(len(hits), np.bool_)
    for distance in (1, 2, 3):
        after = after & (hits + distance <= last)
        after &= _are_digits(words[np.minimum(hits + distance, last)])
        before = before & (hits >= distance)
        before &= _are_digits(words[np.maximum(hits - distance, 0)])
    return bool((after | before).any())


def _are_digits(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether all eight bytes are digits: 0x30 to 0x39 stay below 0x40 with six added."""
    plain = (words & _HIGH_NIBBLES) == _HIGH_NIBBLES_OF_DIGITS
    result: NDArray[np.bool_] = plain & (
        ((words + _SIX_EACH) & _HIGH_NIBBLES) == _HIGH_NIBBLES_OF_DIGITS
    )
    return result


def _write(file: int, chunk: bytes) -> None:
    """All of the chunk and a newline; memfd writes may be short above 2 GiB."""
    written = os.writev(file, (chunk, b"\n"))
    while written < len(chunk) + 1:
        written += os.write(file, (chunk + b"\n")[written:])
