"""What envelopes hold, many at once: the statement, the rows, a block, the hash of the schema."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.decode.envelope.wire import (
    Bits,
    Mask,
    Positions,
    Text,
    children,
    lengths,
    same_as,
    varints,
)
from sluice.producer.wire import (
    BINDINGS,
    BLOCK,
    LENGTH,
    ROW,
    SCHEMA_HASHCODE,
    SHARD,
    SQL,
    TABLE,
    VARINT,
    tag,
)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the parts of messages stand, one entry for each message.

    :param sound: laid out as the official encoders do it; the other entries mean nothing for
        the rest.
    :param has_block: it holds a Native block instead of a statement and rows.
    :param head_begins: where the statement begins, or the block; `head_ends` likewise.
    :param rows_begins: where the rows begin, each an element; `rows_ends` likewise.
    :param hashes: 64 bits of `schema_hashcode`.
    """

    sound: Mask
    table_begins: Positions
    table_ends: Positions
    has_block: Mask
    head_begins: Positions
    head_ends: Positions
    rows_begins: Positions
    rows_ends: Positions
    hashes: Bits


def read_layout(text: Text, begins: Positions, ends: Positions) -> Layout:
    """Find the parts of these messages."""
    sound = np.ones(len(begins), np.bool_)
    _, _, position = _optional(text, begins, ends, tag(SHARD, LENGTH), sound)
    table_begins, table_ends, position = _optional(text, position, ends, tag(TABLE, LENGTH), sound)
    symbols = text.symbols[np.minimum(position, ends)]
    has_block = symbols == tag(BLOCK, LENGTH)
    sound &= (has_block | (symbols == tag(BINDINGS, LENGTH))) & (position < ends)
    first, beyond, sized = lengths(text, position + 1, ends)
    sound &= sized
    hashes = _hashes(text, beyond, ends, sound)
    # A statement and a block's bytes have the same number in their messages.
    head_begins, head_ends, rows = _optional(text, first, beyond, tag(SQL, LENGTH), sound)
    if has_block.any():
        sound &= ~has_block | (rows == beyond)
    return Layout(
        sound,
        table_begins,
        table_ends,
        has_block,
        head_begins,
        head_ends,
        rows,
        beyond,
        hashes,
    )


def _optional(
    text: Text, positions: Positions, ends: Positions, tag_symbol: int, sound: Mask
) -> tuple[Positions, Positions, Positions]:
    """A field that may be absent: where its content begins and ends, and what is next."""
    there = (text.symbols[np.minimum(positions, ends)] == tag_symbol) & (positions < ends)
    if there.all():
        begins, stops, good = lengths(text, positions + 1, ends)
        sound &= good
        return begins, stops, stops
    begins, stops = positions.copy(), positions.copy()
    some = np.flatnonzero(there)
    if len(some):
        begins[some], stops[some], good = lengths(text, positions[some] + 1, ends[some])
        sound[some[~good]] = False
    return begins, stops, stops


def _hashes(text: Text, positions: Positions, ends: Positions, sound: Mask) -> Bits:
    """The last field; nothing may follow it."""
    hashes = np.zeros(len(positions), np.uint64)
    some = np.flatnonzero(positions != ends)
    if len(some):
        tagged = text.symbols[positions[some]] == tag(SCHEMA_HASHCODE, VARINT)
        values, stops, good = varints(text, np.minimum(positions[some] + 1, ends[some]))
        tagged &= stops == ends[some]
        sound[some[~tagged if good is None else ~(tagged & good)]] = False
        hashes[some] = values
    return hashes


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of messages, message by message.

    :param owners: for each row the place of its message.
    """

    owners: Positions
    begins: Positions
    ends: Positions


def read_rows(text: Text, layout: Layout) -> Rows:
    """Find the rows; a message that holds anything else becomes unsound."""
    usable = np.flatnonzero(layout.sound & ~layout.has_block)
    found = children(text, layout.rows_begins[usable], layout.rows_ends[usable], tag(ROW, LENGTH))
    layout.sound[usable[~found.sound]] = False
    return Rows(usable[found.owners], found.begins, found.ends)


def distinct(text: Text, begins: Positions, ends: Positions) -> tuple[list[bytes], Positions]:
    """The different contents, in order of appearance, and for each place which one it is."""
    numbers = np.full(len(begins), -1, np.int64)
    sizes = ends - begins
    contents: list[bytes] = []
    left = np.arange(len(begins))
    while len(left) and len(contents) < _COMPARED_TOGETHER:
        content = text.raw[begins[left[0]] : ends[left[0]]]
        candidates = left[sizes[left] == len(content)]
        same = candidates[same_as(text, begins[candidates], content)]
        numbers[same] = len(contents)
        contents.append(content)
        left = left[numbers[left] < 0]
    known: dict[bytes, int] = {}
    for place in left.tolist():
        content = text.raw[begins[place] : ends[place]]
        numbers[place] = known.setdefault(content, len(contents) + len(known))
    return [*contents, *known], numbers


#: More different contents than this are told apart one by one.
_COMPARED_TOGETHER = 16
