"""Other views of a buffer's messages: some of them, or all but some.

Neighbours are handled together. Only a gap between messages costs a step of Python.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from sluice.decode.messages.buffer import MessageBuffer, Piece, Value, stretches
from sluice.decode.messages.framing import JSON_OBJECTS, Framing

Indices = NDArray[np.int64]


@contextmanager
def without(buffer: MessageBuffer, indices: Indices) -> Iterator[None]:
    """Within this context the engine sees spaces in place of these messages.

    Spaces between rows mean nothing to it, so the others need not be copied.
    """
    if not len(indices):
        yield
        return
    ends = buffer.ends
    begins = np.concatenate(([0], ends[:-1]))[indices]
    with mmap.mmap(buffer.file, int(ends[-1])) as text:
        saved = [(a, b, text[a:b]) for a, b in stretches(begins, ends[indices])]
        try:
            for begin, end, _ in saved:
                text[begin:end] = b" " * (end - begin)
            yield
        finally:
            for begin, end, values in saved:
                text[begin:end] = values


def subset(buffer: MessageBuffer, indices: Indices) -> MessageBuffer:
    """A buffer of its own with these messages, in this order; the caller closes it."""
    chosen = MessageBuffer(buffer.framing)
    if buffer.facts is not None:
        chosen.facts = buffer.facts.some(indices.tolist())
    offsets = buffer.offsets[indices]
    for piece in buffer.pieces(indices):
        chosen.add_text(
            memoryview(piece.text),
            offsets[piece.places],
            piece.ends - 1,
            may_be_long=not buffer.short_numbers,
        )
    return chosen


def replaced(buffer: MessageBuffer, values: Mapping[int, Value]) -> MessageBuffer:
    """A buffer of its own with all messages, these in place of theirs; the caller closes it."""
    made = MessageBuffer(buffer.framing)
    made.facts = buffer.facts
    offsets = buffer.offsets
    for piece in buffer.pieces(np.arange(buffer.messages)):
        begins, ends = piece.bounds
        places = zip(begins.tolist(), ends.tolist(), strict=True)
        messages = [
            values[index] if index in values else piece.text[begin:end]
            for index, (begin, end) in enumerate(places, piece.first)
        ]
        made.add(messages, offsets[piece.places].tolist())
    return made


def lines_of(piece: Piece) -> bytes:
    """The text with a space for each newline inside a message."""
    if piece.text.count(b"\n") == len(piece.ends):
        return piece.text
    symbols = np.frombuffer(bytearray(piece.text), np.uint8)
    symbols[symbols == ord("\n")] = ord(" ")
    symbols[piece.ends - 1] = ord("\n")
    return symbols.tobytes()


def buffer_of(values: list[bytes], framing: Framing = JSON_OBJECTS) -> MessageBuffer:
    """A buffer of messages whose offsets do not matter."""
    buffer = MessageBuffer(framing)
    for begin in range(0, len(values), 500):
        part = values[begin : begin + 500]
        buffer.add(part, range(begin, begin + len(part)))
    return buffer
