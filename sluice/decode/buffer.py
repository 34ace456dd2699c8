"""The messages of one range and table, as bytes in a memfd that the engine reads.

Python objects of messages live only for one poll: what stays is the text, 8 bytes of offset
and 8 bytes of position for each message.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from sluice.decode.digits import has_long_run, is_overlong
from sluice.decode.framing import JSON_OBJECTS, Framing

#: So many messages are looked at together: numpy's temporaries stay in the cache.
_INSPECTED_MESSAGES = 500

#: A message's value; the class below has a property named `bytes`.
Value = bytes


class MessageBuffer:
    """Collects messages poll by poll.

    `clear()` keeps the memory for the next range; it never grows beyond the largest range.
    Not shared between threads.

    `faults`: indices of messages that the framing does not let stand beside others;
    `long_digits`: of those with a number that may be too long for 256 bits; `short_numbers`: no
    run of digits is longer than SHORT_DIGITS_MAX.
    """

    def __init__(self, framing: Framing = JSON_OBJECTS) -> None:
        self._file = os.memfd_create("sluice-messages", os.MFD_CLOEXEC)
        self.framing = framing
        self._reset()

    def _reset(self) -> None:
        self._size = 0
        self._count = 0
        self._chunk_offsets: list[NDArray[np.uint64]] = []
        self._chunk_ends: list[NDArray[np.int64]] = []
        self._ends: NDArray[np.int64] | None = None
        self.faults: list[int] = []
        self.long_digits: list[int] = []
        self.short_numbers = True
        os.lseek(self._file, 0, os.SEEK_SET)

    def add(self, values: list[Value], offsets: Sequence[int]) -> None:
        """Take the messages of one poll.

        :param values: no None among them (tombstones are the caller's to count).
        :param offsets: of the same messages, ascending over the life of the buffer.
        """
        if not values:
            return
        chunk = b"\n".join(values)
        index, self._count = self._count, self._count + len(values)
        self._chunk_offsets.append(_as_array(offsets))
        ends = self.framing.flat_ends(chunk, len(values))
        if ends is None:
            ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1) - 1
            starts = np.concatenate(([0], ends[:-1] + 1))
            faults = self.framing.faults(chunk, starts, ends)
            self.faults.extend((np.flatnonzero(faults) + index).tolist())
        if self.framing.inspects_digits and has_long_run(chunk):
            self.short_numbers = False
            self.long_digits.extend(n for n, v in enumerate(values, index) if is_overlong(v))
        self._chunk_ends.append(ends + (self._size + 1))
        self._size += len(chunk) + 1
        self._ends = None
        _write(self._file, chunk, b"\n")

    def add_text(
        self,
        text: memoryview,
        offsets: NDArray[np.uint64],
        ends: NDArray[np.int64],
        is_flat: bool,
        may_be_long: bool,
    ) -> None:
        """Take messages that are joined already.

        :param text: at least one value, each with a newline after it; not kept.
        :param offsets: as in `add`; kept.
        :param ends: where each value ends in the text, exclusive.
        :param is_flat: `boundaries.flat_ends` would prove the text: one JSON object each.
        :param may_be_long: `digits.has_long_run` would say so.
        """
        if self.framing is not JSON_OBJECTS:
            is_flat, may_be_long = False, self.framing.inspects_digits
        index, self._count = self._count, self._count + len(offsets)
        self._chunk_offsets.append(offsets)
        if may_be_long or not is_flat:
            self._inspect(bytes(text), ends, index, is_flat)
        self._chunk_ends.append(ends + (self._size + 1))
        self._size += len(text)
        self._ends = None
        _write(self._file, text)

    def _inspect(self, text: Value, ends: NDArray[np.int64], index: int, is_flat: bool) -> None:
        """The tests of `add`, in pieces of as many messages."""
        starts = np.concatenate(([0], ends[:-1] + 1))
        for first in range(0, len(ends), _INSPECTED_MESSAGES):
            piece = slice(first, first + _INSPECTED_MESSAGES)
            begin = int(starts[first])
            chunk = text[begin : int(ends[piece][-1])]
            if not is_flat and self.framing.flat_ends(chunk, len(ends[piece])) is None:
                faults = self.framing.faults(chunk, starts[piece] - begin, ends[piece] - begin)
                self.faults.extend((np.flatnonzero(faults) + index + first).tolist())
            if self.framing.inspects_digits and has_long_run(chunk):
                self.short_numbers = False
                for number, (a, b) in enumerate(zip(starts[piece], ends[piece], strict=True)):
                    if is_overlong(text[a:b]):
                        self.long_digits.append(index + first + number)

    @property
    def path(self) -> str:
        """Where this process reads the messages, joined by newlines."""
        if os.fstat(self._file).st_size != self._size:
            os.ftruncate(self._file, self._size)
        return f"/proc/self/fd/{self._file}"

    @property
    def messages(self) -> int:
        """How many messages are held."""
        return self._count

    @property
    def bytes(self) -> int:
        """The size of the values, separators left out."""
        return self._size - self._count

    @property
    def offsets(self) -> NDArray[np.uint64]:
        """The offset of each message, a copy."""
        return np.concatenate([np.zeros(0, np.uint64), *self._chunk_offsets])

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

    def clear(self, framing: Framing | None = None) -> None:
        """Forget the messages, keep the memory.

        :param framing: of the messages that come next; None: as before.
        """
        self.framing = framing or self.framing
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


def _as_array(offsets: Sequence[int]) -> NDArray[np.uint64]:
    if isinstance(offsets, range) and offsets.step == 1:
        return np.arange(offsets.start, offsets.stop, dtype=np.uint64)
    return np.array(offsets, np.uint64)


def _write(file: int, *parts: bytes | memoryview) -> None:
    """All of it; memfd writes may be short above 2 GiB."""
    written = os.writev(file, parts)
    if written < sum(map(len, parts)):
        rest = b"".join(parts)
        while written < len(rest):
            written += os.write(file, rest[written:])
