"""The messages of one range and table, as bytes in a memfd that the engine reads.

Python objects of messages live only for one poll: what stays is the text, 8 bytes of offset
and 8 bytes of position for each message.

How long the runs of digits in them are decides how integers may be read. Runs of up to 18 digits
fit Int64; up to 60 digits fit the 256-bit reader; longer ones would wrap there. Digits inside
strings count too: the tests only have to err on the safe side.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.brackets import has_digits, line_ends
from sluice.decode.messages.facts import MessageFacts
from sluice.decode.messages.framing import JSON_OBJECTS, Framing
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.messages.quick_look import QuickLook

#: Any integer of so many digits fits Int64.
SHORT_DIGITS_MAX = 18
#: A digit run this long may wrap in the 256-bit reader or be cut by the widest decimal.
OVERLONG_DIGITS = 61
_OVERLONG = re.compile(rb"[0-9]{%d,}" % OVERLONG_DIGITS)
STAND_IN = b"9" * 60


def has_long_run(chunk: bytes | memoryview) -> bool:
    """Whether 19 digits or more follow each other somewhere."""
    return has_digits(chunk, SHORT_DIGITS_MAX + 1)


def shorten_digits(value: bytes) -> bytes:
    """The message with over-long digit runs replaced by 60 nines.

    60 nines fit the readers without wrapping and fit no narrower integer; a fraction of 60
    nines is seen as cut. So the verdict on this text is the verdict on the message.
    """
    return _OVERLONG.sub(STAND_IN, value)


#: So much is looked at together, of text that is read again: it stays in the cache.
_INSPECTED_BYTES = 1 << 20
#: So much is read at once where messages are taken one after the other.
_PIECE_BYTES = 1 << 20

#: Behind JSON objects: near the end of its text the engine reads floats by other rules ("--1" is
#: -1 there), and the last messages would not be what they are elsewhere.
BEHIND = b"\n" * 512

#: A message's value; the class below has a property named `bytes`.
Value = bytes


@dataclass(frozen=True, slots=True)
class Piece:
    """Some messages as one text.

    :param first: the place of the first one among those that were asked for.
    :param text: the messages, a newline after each.
    :param ends: where each ends in the text, its newline included.
    """

    first: int
    text: Value
    ends: NDArray[np.int64]

    @property
    def bounds(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each message begins and ends in the text, its newline left out."""
        return np.concatenate(([0], self.ends[:-1])), self.ends - 1

    @property
    def places(self) -> slice:
        """Of the messages, among those that were asked for."""
        return slice(self.first, self.first + len(self.ends))


class MessageBuffer(MemoryFile):
    """Collects messages poll by poll.

    `clear()` keeps the memory for the next range; it never grows beyond the largest range.
    Not shared between threads.

    `long_digits`: indices of messages with a number that may be too long for 256 bits;
    `short_numbers`: no run of digits is longer than SHORT_DIGITS_MAX; `one_line_each`: no message
    holds a newline.
    """

    def __init__(self, framing: Framing = JSON_OBJECTS) -> None:
        super().__init__("messages")
        self.framing = framing
        self._reset()

    def _reset(self) -> None:
        #: What Kafka says besides the values, if the entry asks for it.
        self.facts: MessageFacts | None = None
        self._size = 0
        #: The size at which the file was ended; -1: it was not since it was cleared.
        self._ended_at = -1
        self._count = 0
        self._chunk_offsets: list[NDArray[np.uint64]] = []
        self._chunk_ends: list[NDArray[np.int64]] = []
        self._ends: NDArray[np.int64] | None = None
        self._faults: set[int] = set()
        self.one_line_each = True
        self.long_digits: list[int] = []
        self.short_numbers = True
        #: What is looked at in messages that come, and which of them are unclear.
        self._watched: dict[QuickLook, list[NDArray[np.int64]]] = {}
        os.lseek(self.file, 0, os.SEEK_SET)

    def add(self, values: list[Value], offsets: Sequence[int]) -> None:
        """Take the messages of one poll.

        :param values: no None among them (tombstones are the caller's to count).
        :param offsets: of the same messages, ascending over the life of the buffer.
        """
        if not values:
            return
        text = b"\n".join(values)
        ends = line_ends(text, len(values))
        if ends is None:
            self.one_line_each = False
            ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1) - 1
        self._take(text, _as_array(offsets), ends, may_be_long=True)

    def add_text(
        self,
        text: memoryview,
        offsets: NDArray[np.uint64],
        ends: NDArray[np.int64],
        may_be_long: bool,
    ) -> None:
        """Take messages that are joined already.

        :param text: at least one value, each with a newline after it; not kept.
        :param offsets: as in `add`; kept.
        :param ends: where each value ends in the text, exclusive.
        :param may_be_long: `has_long_run` would say so.
        """
        text = text[:-1]
        if line_ends(text, len(ends)) is None:
            self.one_line_each = False
        self._take(text, offsets, ends, may_be_long)

    def _take(
        self,
        text: Value | memoryview,
        offsets: NDArray[np.uint64],
        ends: NDArray[np.int64],
        may_be_long: bool,
    ) -> None:
        """Test messages with a newline between two of them, and keep them."""
        index, self._count = self._count, self._count + len(ends)
        self._chunk_offsets.append(offsets)
        starts = np.concatenate(([0], ends[:-1] + 1))
        faults = np.flatnonzero(self.framing.faults(text, starts, ends))
        self._faults.update((faults + index).tolist())
        if may_be_long and self.framing.inspects_digits:
            self._find_long(text, starts, ends, index)
        for look, unclear in self._watched.items():
            if len(found := look.unclear(text, np.ascontiguousarray(ends))):
                unclear.append(found + index)
        self._chunk_ends.append(ends + (self._size + 1))
        self._size += len(text) + 1
        self._ends = None
        self.append(text, b"\n")

    def _find_long(
        self,
        text: Value | memoryview,
        starts: NDArray[np.int64],
        ends: NDArray[np.int64],
        index: int,
    ) -> None:
        """Note the messages with too long a number."""
        if not has_long_run(text):
            return
        self.short_numbers = False
        if has_digits(text, OVERLONG_DIGITS):
            places = zip(starts.tolist(), ends.tolist(), strict=True)
            for number, (begin, end) in enumerate(places, index):
                if has_digits(text[begin:end], OVERLONG_DIGITS):
                    self.long_digits.append(number)

    @property
    def faults(self) -> list[int]:
        """The messages that the framing does not let stand beside others, ascending."""
        return sorted(self._faults)

    def watch(self, look: QuickLook) -> None:
        """Look at all messages when they come: while they are in the processor's cache, that costs
        a third. To be asked of an empty buffer."""
        if not self._count:
            self._watched.setdefault(look, [])

    def unclear(self, look: QuickLook) -> NDArray[np.int64]:
        """The messages that have to be judged, ascending."""
        if look in self._watched:
            return np.concatenate([np.zeros(0, np.int64), *self._watched[look]])
        found, first, ends = [np.zeros(0, np.int64)], 0, self.ends
        while first < self._count:
            begin = int(ends[first - 1]) if first else 0
            full = int(np.searchsorted(ends, begin + _INSPECTED_BYTES, side="right"))
            beyond = max(full, first + 1)
            chunk = os.pread(self.file, int(ends[beyond - 1]) - begin, begin)
            found.append(look.unclear(chunk, ends[first:beyond] - 1 - begin) + first)
            first = beyond
        return np.concatenate(found)

    @property
    def path(self) -> str:
        """Where this process reads the messages, joined by newlines."""
        if self._ended_at != self._size:
            # What a larger range before left behind must not be read, whatever its size was.
            os.ftruncate(self.file, self._size)
            os.pwrite(self.file, BEHIND if self.framing is JSON_OBJECTS else b"", self._size)
            self._ended_at = self._size
        return f"/proc/self/fd/{self.file}"

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

    def pieces(self, indices: NDArray[np.int64]) -> Iterator[Piece]:
        """The messages at these indices, in their order: at most a MiB at a time, or one message.

        Neighbours are read together.
        """
        if not len(indices):
            return
        all_ends = self.ends
        begins, ends = np.concatenate(([0], all_ends[:-1]))[indices], all_ends[indices]
        totals = np.cumsum(ends - begins)
        first = taken = 0
        while first < len(indices):
            beyond = int(np.searchsorted(totals, taken + _PIECE_BYTES, side="right"))
            part = slice(first, max(beyond, first + 1))
            reads = stretches(begins[part], ends[part])
            text = b"".join([os.pread(self.file, b - a, a) for a, b in reads])
            yield Piece(first, text, totals[part] - taken)
            first, taken = part.stop, int(totals[part.stop - 1])

    def iterate(self, indices: NDArray[np.int64]) -> Iterator[Value]:
        """The values at these indices, as they came from Kafka."""
        for piece in self.pieces(indices):
            begins, ends = piece.bounds
            for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
                yield piece.text[begin:end]

    def items(self, indices: NDArray[np.int64]) -> Iterator[tuple[int, Value]]:
        """These indices, each with its value."""
        return zip(indices.tolist(), self.iterate(indices), strict=True)

    def clear(self, framing: Framing | None = None) -> None:
        """Forget the messages, keep the memory.

        :param framing: of the messages that come next; None: as before.
        """
        self.framing = framing or self.framing
        self._reset()


def _as_array(offsets: Sequence[int]) -> NDArray[np.uint64]:
    if isinstance(offsets, range) and offsets.step == 1:
        return np.arange(offsets.start, offsets.stop, dtype=np.uint64)
    return np.array(offsets, np.uint64)


def stretches(begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The same stretches of a file, with adjacent ones as one."""
    gaps = np.flatnonzero(begins[1:] != ends[:-1])
    froms = begins[np.concatenate(([0], gaps + 1))].tolist()
    tos = ends[np.append(gaps, len(ends) - 1)].tolist()
    return zip(froms, tos, strict=True)
