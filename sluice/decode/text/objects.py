"""Rows of CSV, TSV, JSON arrays and plain lines as JSON objects, compiled (objects.c).

So one reader of values, one proof of where a row ends and one search for bad rows serve all text
formats. What a row does not say is not in its object, and becomes the column's DEFAULT.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.types import TypeNode, parse_type
from sluice.decode.messages.brackets import Positions
from sluice.decode.messages.fault import Fault
from sluice.machine.compiled import Library


class Dialect(IntEnum):
    """How the values of a row are written. A plain line is one value, whatever stands in it."""

    CSV = 0
    TSV = 1
    ARRAYS = 2
    PLAIN = 3


class _Kind(IntEnum):
    """What stands in an object for a value: nothing; a text; of CSV, a text without single quotes
    and blanks around it; true, false, a number or brackets as they are; brackets; an object."""

    SKIPPED = 0
    TEXT = 1
    NUMBER = 2
    WORD = 3
    NEST = 4
    OBJECT = 5


_ELEMENT, _NULLABLE, _OTHERS_SHIFT = 16, 32, 8
#: Of `Objects.codes`: the row is not written as its format has it.
GARBAGE = -1


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """The values of a row, in their order.

    :param values: rows of (kind, begin and end of what stands before it in `keys`, how many
        brackets it closes), see objects.c.
    """

    values: NDArray[np.int64]
    keys: bytes

    @classmethod
    def of(cls, names: Sequence[str], types: Mapping[str, str], dialect: Dialect) -> ValueLayout:
        """Of columns; what has no type is skipped.

        :param types: by name.
        """
        values: list[tuple[int, int, int, int]] = []
        keys = b""
        for name in names:
            if name not in types:
                values.append((_Kind.SKIPPED, 0, 0, 0))
                continue
            node, key = parse_type(types[name]), f"{json.dumps(name, ensure_ascii=False)}:"
            cells = list(_cells(node, key, dialect))
            first, before, closes = cells[0]
            cells[0] = (first & ~_ELEMENT | len(cells) - 1 << _OTHERS_SHIFT, before, closes)
            for kind, before, closes in cells:
                begin, keys = len(keys), keys + before.encode()
                values.append((kind, begin, len(keys), closes))
        return cls(np.array(values, np.int64).reshape(-1, 4), keys)


def _cells(node: TypeNode, before: str, dialect: Dialect) -> Iterator[tuple[int, str, int]]:
    """The values that a column takes: kind, what stands before it, how many brackets it closes.
    A tuple has a value for each element in CSV."""
    if dialect is not Dialect.CSV or node.name != "Tuple":
        yield _kind(node), before, 0
        return
    before, parts = f"{before}[", node.parts()
    for place, part in enumerate(parts):
        inner = list(_cells(part, before, dialect))
        for last, (kind, head, closes) in enumerate(inner, 1):
            is_end = place == len(parts) - 1 and last == len(inner)
            is_nullable = part.text.startswith(("Nullable(", "LowCardinality(Nullable("))
            more = _ELEMENT | (_NULLABLE if is_nullable else 0)
            yield kind | more, head, closes + is_end
        before = ""


def _kind(node: TypeNode) -> _Kind:
    node = node.bare()
    if node.parts() or node.name in ("QBit", "Geometry"):
        return _Kind.NEST
    if node.name in ("Bool", "Variant", "Dynamic"):
        return _Kind.WORD
    if node.name in ("JSON", "Object"):
        return _Kind.OBJECT
    is_text = node.name.startswith(("String", "FixedString", "Enum"))
    return _Kind.TEXT if is_text else _Kind.NUMBER


@dataclass(frozen=True, slots=True)
class Parts:
    """What of a piece has rows.

    :param begins: of each part in the text; `ends` are exclusive.
    :param owners: the message of each, within the piece; ascending.
    :param layouts: of rows; `chosen` says which one each part has.
    :param faults: messages without rows, by their places in the piece.
    """

    text: bytes
    begins: Positions
    ends: Positions
    owners: Positions
    layouts: Sequence[ValueLayout]
    chosen: Positions
    faults: dict[int, Fault] = field(default_factory=dict)

    @classmethod
    def of_one(
        cls, layout: ValueLayout, text: bytes, begins: Positions, ends: Positions, owners: Positions
    ) -> Parts:
        """Of rows that are all alike."""
        return cls(text, begins, ends, owners, [layout], np.zeros(len(begins), np.int64))


@dataclass(frozen=True, slots=True)
class Objects:
    """The rows of messages.

    :param text: the objects, a newline behind each.
    :param ends: of each, exclusive.
    :param owners: the message of each.
    :param codes: 0, or how many values a row has that has not as many as it should, or GARBAGE; its
        object is empty then.
    :param faults: of each message, see objects.c; 0: none.
    """

    text: bytes
    ends: Positions
    owners: Positions
    codes: Positions
    faults: NDArray[np.uint8]

    def without(self, parts: Positions) -> Objects:
        """The same without the rows of these parts."""
        kept = np.isin(self.owners, parts, invert=True)
        sizes = np.diff(self.ends, prepend=-1)  # the newlines with them
        text = np.frombuffer(self.text, np.uint8)[np.repeat(kept, sizes)].tobytes()
        ends = np.cumsum(sizes[kept]) - 1
        return replace(self, text=text, ends=ends, owners=self.owners[kept], codes=self.codes[kept])


_LIBRARY = Library(__file__, "_objects")


def objects_of(parts: Parts, dialect: Dialect, delimiter: bytes, null: bytes) -> Objects:
    """The rows of parts of a text. Owners are the places of parts.

    :param delimiter: of the values of CSV.
    :param null: the text of lines that means null.
    """
    text, layouts = parts.text, parts.layouts
    counts = np.array([len(layout.values) for layout in layouts], np.int64)
    firsts = np.cumsum(counts) - counts
    key_begins = np.cumsum([0, *(len(layout.keys) for layout in layouts)])
    values = np.concatenate(
        [
            layout.values + np.array([0, begin, begin, 0])
            for layout, begin in zip(layouts, key_begins.tolist(), strict=False)
        ]
    )
    bounds = np.stack([firsts, counts], axis=1)
    rows_max = len(parts.begins) + text.count(b"\n")
    room = 2 * len(text) + _room(layouts, rows_max, len(text) + rows_max)
    out, scratch = np.empty(room, np.uint8), np.empty(len(text) + 1, np.uint8)
    row_ends, owners, codes = (np.empty(rows_max, np.int64) for _ in range(3))
    faults, size = np.empty(len(parts.begins), np.uint8), np.zeros(1, np.int64)
    rows = _LIBRARY.call(
        *("objects", text, len(parts.begins), parts.begins, parts.ends, parts.chosen),
        *(bounds, values, b"".join(layout.keys for layout in layouts)),
        *(dialect, delimiter[0], null, len(null)),
        *(scratch, out, row_ends, owners, codes, faults, size),
    )
    written = out[: int(size[0])].tobytes()
    return Objects(written, row_ends[:rows], owners[:rows], codes[:rows], faults)


def _room(layouts: Sequence[ValueLayout], rows: int, cells: int) -> int:
    """For what stands around so many values, at most, in so many rows."""
    whole = widest = 0
    for layout in layouts:
        more = np.diff(layout.values[:, 1:3]).sum(axis=1) + layout.values[:, 3]
        whole, widest = max(whole, int(more.sum())), max(widest, int(more.max(initial=0)))
    return min(rows * whole, cells * widest) + 8 * cells
