"""Protocol Buffers' wire format, read for many messages at once.

Every function takes positions of many elements and gives arrays. What does not look exactly as
the official encoders write it is not judged here: it is marked, and `envelope_plain` reads that
message byte by byte. Nothing reads beyond an element's end and believes it: what lies there is
compared with the end before it is used.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Mask = NDArray[np.bool_]
Bits = NDArray[np.uint64]

#: Behind the text, so that words can be read at every position of it.
_PADDING = b"\0" * 24
#: So few containers left to walk through are walked one by one.
_WALKED_TOGETHER_MIN = 48

_STOPS = np.uint64(0x8080808080808080)
_ONES = np.uint64(0x0101010101010101)
_ONE = np.uint64(1)
_SEVEN = (np.uint64(0x007F007F007F007F), np.uint64(0x7F007F007F007F00))
_FOURTEEN = (np.uint64(0x00003FFF00003FFF), np.uint64(0x3FFF00003FFF0000))
_TWENTY_EIGHT = (np.uint64(0x000000000FFFFFFF), np.uint64(0x0FFFFFFF00000000))


class Text:
    """Bytes that are read at many positions.

    :param content: kept.
    """

    def __init__(self, content: bytes) -> None:
        self.raw = content + _PADDING
        self.symbols = np.frombuffer(self.raw, np.uint8)
        # A word begins at every byte.
        self.words: Bits = np.ndarray((len(self.raw) - 7,), "<u8", self.raw, strides=(1,))


def varints(text: Text, positions: Positions) -> tuple[Bits, Positions, Mask | None]:
    """The numbers at these positions.

    :returns: the numbers, where each ends (exclusive; perhaps beyond its container), and
        which are sound; None: all of them.
    """
    first = text.symbols[positions]
    if not (first >= 0x80).any():
        return first.astype(np.uint64), positions + 1, None
    words = text.words[positions]
    stops = ~words & _STOPS
    # All ones up to and including the first byte without a continuation bit.
    upto = stops ^ (stops - _ONE)
    sizes = ((upto & _ONES) * _ONES) >> np.uint64(56)
    values = _packed(words & upto)
    ends = positions + sizes.astype(np.int64)
    if stops.all():
        return values, ends, None
    long = np.flatnonzero(stops == 0)
    tail = text.words[positions[long] + 8]
    ninth, tenth = tail & np.uint64(0xFF), tail >> np.uint64(8) & np.uint64(0xFF)
    goes_on = ninth >= 0x80
    values[long] = (
        _packed(words[long])
        | (ninth & np.uint64(0x7F)) << np.uint64(56)
        | np.where(goes_on, tenth & _ONE, 0).astype(np.uint64) << np.uint64(63)
    )
    ends[long] = positions[long] + 9 + goes_on
    sound = np.ones(len(positions), np.bool_)
    sound[long] = ~goes_on | (tenth <= 1)
    return values, ends, sound


def _packed(words: Bits) -> Bits:
    """The lower seven bits of each byte, put together."""
    words = words & _SEVEN[0] | (words & _SEVEN[1]) >> np.uint64(1)
    words = words & _FOURTEEN[0] | (words & _FOURTEEN[1]) >> np.uint64(2)
    return words & _TWENTY_EIGHT[0] | (words & _TWENTY_EIGHT[1]) >> np.uint64(4)


def lengths(text: Text, positions: Positions, ends: Positions) -> tuple[Positions, Positions, Mask]:
    """Contents with their length in front, which may not reach beyond these ends.

    :returns: where each content begins and ends, and which are sound; both are the given
        end where it is not.
    """
    sizes = text.symbols[np.minimum(positions, ends)].astype(np.int64)
    begins = positions + 1
    if (sizes >= 0x80).any():
        numbers, begins, fine = varints(text, np.minimum(positions, ends))
        # Above this a number is no length; so nothing wraps below.
        large = numbers >= np.uint64(1 << 40)
        sizes = np.where(large, 1 << 40, numbers).astype(np.int64)
        if fine is not None:
            sizes[~fine] = 1 << 40
    stops = begins + sizes
    sound = stops <= ends
    if not sound.all():
        begins, stops = np.where(sound, begins, ends), np.where(sound, stops, ends)
    return begins, stops, sound


def elements(
    text: Text, positions: Positions, ends: Positions, tag: int
) -> tuple[Positions, Positions, Mask]:
    """The same for contents that have a tag of one byte in front."""
    tagged = (text.symbols[np.minimum(positions, ends)] == tag) & (positions < ends)
    begins, stops, sound = lengths(text, positions + 1, ends)
    sound &= tagged
    return begins, stops, sound


@dataclass(frozen=True, slots=True)
class Children:
    """The elements of many containers, container by container, in their order.

    :param owners: for each element the place of its container.
    :param counts: for each container, how many elements it has.
    :param sound: containers that are elements with this tag from begin to end; the others
        have no elements here.
    """

    owners: Positions
    begins: Positions
    ends: Positions
    counts: Positions
    sound: Mask


def children(text: Text, begins: Positions, ends: Positions, tag: int) -> Children:
    """Walk through containers that hold nothing but elements with one tag."""
    sound = np.ones(len(begins), np.bool_)
    positions = begins.copy()
    left = np.flatnonzero(begins < ends)
    steps: list[tuple[Positions, Positions, Positions]] = []
    while len(left) >= _WALKED_TOGETHER_MIN:
        limits = ends[left]
        starts, stops, good = elements(text, positions[left], limits, tag)
        if not good.all():
            sound[left[~good]] = False
            left, starts, stops, limits = left[good], starts[good], stops[good], limits[good]
        steps.append((left, starts, stops))
        positions[left] = stops
        left = left[stops < limits]
    for owner in left.tolist():
        walked = _walk(text.raw, int(positions[owner]), int(ends[owner]), tag)
        if walked is None:
            sound[owner] = False
        else:
            starts, stops = (np.frombuffer(part, np.int64) for part in walked)
            steps.append((np.full(len(starts), owner, np.int64), starts, stops))
    return _in_order(steps, sound)


def _in_order(steps: list[tuple[Positions, Positions, Positions]], sound: Mask) -> Children:
    none = np.zeros(0, np.int64)
    owners, begins, ends = (
        np.concatenate([none, *(step[part] for step in steps)]) for part in range(3)
    )
    if len(steps) > 1:
        order = np.argsort(owners, kind="stable")
        owners, begins, ends = owners[order], begins[order], ends[order]
    if not sound.all():
        kept = sound[owners]
        owners, begins, ends = owners[kept], begins[kept], ends[kept]
    counts = np.bincount(owners, minlength=len(sound)).astype(np.int64)
    return Children(owners, begins, ends, counts, sound)


def _walk(raw: bytes, position: int, end: int, tag: int) -> tuple[array[int], array[int]] | None:
    """One container's elements; None if it is not sound."""
    begins, ends = array("q"), array("q")
    while position < end:
        if raw[position] != tag:
            return None
        size = raw[position + 1]
        position += 2
        if size >= 0x80:
            size, shift = size & 0x7F, 7
            while True:
                symbol = raw[position]
                position += 1
                size |= (symbol & 0x7F) << shift
                shift += 7
                if symbol < 0x80:
                    break
                if shift > 35:
                    return None
        begins.append(position)
        position += size
        if position > end:
            return None
        ends.append(position)
    return begins, ends


def same_as(text: Text, begins: Positions, content: bytes) -> Mask:
    """Whether this content stands at each of these positions (whose lengths are the same)."""
    same = np.ones(len(begins), np.bool_)
    size = len(content)
    # Whole words, the last of which may overlap the one before.
    for at in sorted({*range(0, size - 7, 8), size - 8} if size >= 8 else ()):
        word = np.uint64(int.from_bytes(content[at : at + 8], "little"))
        same &= text.words[begins + at] == word
    for at in range(size if size < 8 else 0):
        same &= text.symbols[begins + at] == content[at]
    return same


def gathered(text: Text, begins: Positions, ends: Positions) -> bytes:
    """The bytes of many stretches, one behind the other."""
    sizes = ends - begins
    total = int(sizes.sum())
    if not total:
        return b""
    if total > 64 * len(sizes):
        raw = memoryview(text.raw)
        return b"".join([raw[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)])
    shifts = (begins - (np.cumsum(sizes) - sizes)).astype(np.int32)
    places = np.repeat(shifts, sizes)
    places += np.arange(total, dtype=np.int32)
    content: bytes = text.symbols[places].tobytes()
    return content
