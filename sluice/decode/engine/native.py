"""The bytes of a Native block: columns, rows, then name, type and data of each column."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import SOURCE, SOURCE_TYPES
from sluice.producer.wire import varint

#: Integer types of the server: numpy's type and the highest value.
_NUMBERS = {
    f"{sign}Int{bits}": (f"<{'u' if sign else 'i'}{bits // 8}", 2 ** (bits - (sign == "")) - 1)
    for sign in ("", "U")
    for bits in (8, 16, 32, 64)
}
_CHECKSUM_WORDS = 1024


def read_header(block: memoryview) -> tuple[int, int, int]:
    """Columns, rows, and where the first column begins."""
    columns, position = read_varint(block, 0)
    rows, position = read_varint(block, position)
    return columns, rows, position


def read_varint(
    block: bytes | bytearray | memoryview, position: int, bytes_max: int = 10
) -> tuple[int, int]:
    """A number of LEB128, as sizes are written, and where it ends.

    :raises IndexError: the block ends before.
    :raises ValueError: it has more bytes.
    """
    value = 0
    for place in range(bytes_max):
        byte = block[position + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, position + place + 1
    raise ValueError(f"a number of more than {bytes_max} bytes")


def fixed_columns(blocks: bytes, kinds: Sequence[str]) -> list[NDArray[Any]]:
    """The columns of Native blocks that stand behind each other, if each has values of one width.

    :param kinds: numpy's type of each column.
    """
    view, types = memoryview(blocks), [np.dtype(kind) for kind in kinds]
    found: list[list[NDArray[Any]]] = [[np.empty(0, kind)] for kind in types]
    position = 0
    while position < len(view):
        _, rows, size = read_header(view[position:])
        position += size
        for kind, parts in zip(types, found, strict=True):
            for _ in ("name", "type"):
                size, position = read_varint(view, position)
                position += size
            end = position + rows * kind.itemsize
            parts.append(np.frombuffer(view[position:end], kind))
            position = end
    return [np.concatenate(parts) for parts in found]


def column_head(name: str, type_text: str) -> bytes:
    """Name and type of a column."""
    return b"".join(varint(len(part)) + part for part in (name.encode(), type_text.encode()))


def with_columns(
    block: bytes | memoryview, columns: Sequence[bytes]
) -> tuple[bytes | memoryview, ...]:
    """A Native block with more columns behind its own, in parts; empty if it is."""
    if not len(block):
        return ()
    count, rows, begin = read_header(memoryview(block))
    return varint(count + len(columns)) + varint(rows), memoryview(block)[begin:], *columns


def check_lineage_type(column: str, type_text: str) -> None:
    """Whether this server's type of a lineage column can be written.

    :raises TerminalError: it cannot.
    """
    if column == SOURCE:
        fits = type_text in SOURCE_TYPES
    elif column == "_topic":
        fits = type_text in ("String", "LowCardinality(String)")
    else:
        fits = type_text in _NUMBERS
    if not fits:
        raise TerminalError(
            f"lineage column {column} has type {type_text}, which cannot carry it",
            "Use String or LowCardinality(String) for _topic, UInt64 or these for _source, and an "
            "integer type for the others.",
        )


def repeated_texts(
    name: str,
    type_text: str,
    values: Sequence[str],
    of_rows: NDArray[np.int64] | None,
    rows: int,
) -> bytes:
    """A column that says one of a few texts in each row.

    :param of_rows: the place of each row's text in `values`; None: all say the first one.
    """
    distinct = list(dict.fromkeys(values))
    items = [varint(len(text)) + text for text in (value.encode() for value in distinct)]
    which: NDArray[np.int64] | None = None
    if len(distinct) > 1 and of_rows is not None:
        number = {value: place for place, value in enumerate(distinct)}
        which = np.array([number[value] for value in values], np.int64)[of_rows]
    head = column_head(name, type_text)
    if type_text == "String":
        if which is None:
            return head + items[0] * rows
        return head + b"".join([items[place] for place in which.tolist()])
    # LowCardinality: version 1; the width of an index, own dictionary; default and values; the
    # indexes.
    kind = np.dtype("<u1" if len(distinct) < 1 << 8 else "<u4")
    width = b"\x00" if kind.itemsize == 1 else b"\x02"
    words = (b"\x01", width + b"\x06", (len(distinct) + 1).to_bytes(8, "little"))
    prefix = b"".join(word.ljust(8, b"\x00") for word in words)
    indexes = np.ones(rows, kind) if which is None else (which + 1).astype(kind)
    size = rows.to_bytes(8, "little")
    return b"".join((head, prefix, b"\x00", *items, size, indexes.tobytes()))


def repeated_numbers(
    name: str,
    type_text: str,
    values: Sequence[int],
    of_rows: NDArray[np.int64] | None,
    rows: int,
) -> bytes:
    """A column that says one of a few integers in each row; see `repeated_texts`.

    :raises TerminalError: a value does not fit the server's type.
    """
    if of_rows is None or len(set(values)) == 1:
        return numbers(name, type_text, values[0], rows)
    return numbers(name, type_text, np.array(values, np.uint64)[of_rows], rows)


def numbers(name: str, type_text: str, values: NDArray[np.uint64] | int, rows: int) -> bytes:
    """A column of integers, or of one integer in each row.

    :raises TerminalError: a value does not fit the server's type.
    """
    kind, maximum = _NUMBERS[type_text]
    highest = values if isinstance(values, int) else int(values.max()) if rows else 0
    if highest > maximum:
        raise TerminalError(
            f"lineage column {name} {type_text} cannot hold {highest}",
            f"Widen it: ALTER TABLE … MODIFY COLUMN {name} UInt64.",
        )
    if isinstance(values, int):
        return column_head(name, type_text) + np.array([values], kind).tobytes() * rows
    return column_head(name, type_text) + values.astype(kind).tobytes()


def checksum(block: bytes | memoryview) -> str:
    """16 hexadecimal digits that tell blocks apart, at a tenth of a nanosecond a byte.

    Sums of 64-bit words over rows and over columns of a 1,024-word wide table, hashed: any
    single difference and any exchange of words shows. Not meant against forgery.
    """
    words = np.frombuffer(block, np.uint64, len(block) // 8)
    whole = len(words) // _CHECKSUM_WORDS * _CHECKSUM_WORDS
    table = words[:whole].reshape(-1, _CHECKSUM_WORDS)
    digest = hashlib.blake2b(digest_size=8)
    digest.update(len(block).to_bytes(8, "little"))
    digest.update(table.sum(axis=0, dtype=np.uint64).tobytes())
    digest.update(table.sum(axis=1, dtype=np.uint64).tobytes())
    digest.update(block[whole * 8 :])
    return digest.hexdigest()
