"""Where the blocks of a Native stream begin and end, of which only the types tell.

A table's rows come as one stream of any length. It is cut between blocks, unread otherwise, so that
never more than some of them are in memory. What a server has to say in the middle of a stream, as
when it runs out of memory, is no block of the columns that were asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sluice.core.errors import TerminalError, TransientError
from sluice.decode.engine.native import read_varint
from sluice.decode.engine.types import GEO_TYPES, TypeNode, parse_type, size_of

#: Of a LowCardinality's block: its own dictionary stands in it; one that is shared would not.
_OWN_KEYS, _SHARED_KEYS = 1 << 9, 1 << 8


class BrokenStreamError(TransientError):
    """A stream of rows ended in the middle, or the server said something in it."""

    hint = "It is read again; the server's log says why."


def can_be_cut(type_text: str) -> bool:
    """Whether columns of this type may stand in a stream that is cut."""
    node = _plain(parse_type(type_text))
    if node.name in ("Nullable", "LowCardinality", "Array", "Tuple"):
        return bool(node.parts()) and all(can_be_cut(part.text) for part in node.parts())
    return node.name in ("String", "Nothing") or size_of(node) is not None


def blocks(pieces: Iterable[bytes], columns: Sequence[str], rows: int) -> Iterator[bytes]:
    """Whole blocks, as many together as have so many rows.

    :param pieces: of the stream.
    :param columns: names of its columns, in their order.
    :param rows: fewer only at the end; the last block of them may bring more.
    :raises BrokenStreamError: the stream breaks off, or says something else.
    :raises TerminalError: of a type whose length nobody knows here.
    """
    stream = _Stream(pieces)
    found = 0
    while stream.more():
        found += _skip_block(stream, columns)
        if found >= rows:
            yield stream.taken()
            found = 0
    if found:
        yield stream.taken()


class _Stream:
    """What was read of a stream, and up to where it is understood."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._data = bytearray()
        self._at = 0

    def more(self) -> bool:
        """Whether it goes on."""
        while self._at >= len(self._data):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._data += piece
        return True

    def taken(self) -> bytes:
        """What is understood, which is then forgotten."""
        found = bytes(memoryview(self._data)[: self._at])
        del self._data[: self._at]
        self._at = 0
        return found

    def skip(self, count: int) -> int:
        """Go on by so many bytes; gives where they begin."""
        begin = self._at
        self._at += count
        while len(self._data) < self._at:
            self._read_on()
        return begin

    def size(self) -> int:
        """A variable-length number."""
        while True:
            try:
                value, self._at = read_varint(self._data, self._at)
                return value
            except IndexError:
                self._read_on()

    def number(self) -> int:
        """A number of 8 bytes."""
        begin = self.skip(8)
        return int.from_bytes(self._data[begin : begin + 8], "little")

    def text(self) -> str:
        """A short text."""
        begin = self.skip(self.size())
        return self._data[begin : self._at].decode(errors="replace")

    def said(self) -> str:
        """What stands there instead of a block."""
        return self._data[self._at :][:500].decode(errors="replace").strip()

    def skip_texts(self, count: int) -> None:
        """Go on by so many texts: the one loop over values, so nothing is called in it."""
        data, at = self._data, self._at
        for _ in range(count):
            while True:
                try:
                    size = data[at]
                    if size < 0x80:
                        at += 1 + size
                    else:
                        size, begin = read_varint(data, at)
                        at = begin + size
                    break
                except IndexError:
                    self._read_on()
        self._at = at
        self.skip(0)

    def _read_on(self) -> None:
        piece = next(self._pieces, None)
        if piece is None:
            raise BrokenStreamError("a stream of rows ends in the middle of a block")
        self._data += piece


def _skip_block(stream: _Stream, columns: Sequence[str]) -> int:
    """Go on by one block; gives how many rows it has."""
    said = stream.said()
    count, rows = stream.size(), stream.size()
    if count != len(columns):
        raise BrokenStreamError(f"in the middle of its rows a server says: {said}")
    for name in columns:
        if stream.text() != name:
            raise BrokenStreamError(f"in the middle of its rows a server says: {said}")
        node = parse_type(stream.text())
        if rows:
            _skip_prefix(stream, node)
            _skip(stream, node, rows)
    return rows


def _skip_prefix(stream: _Stream, node: TypeNode) -> None:
    """What stands once before a column's values."""
    node = _plain(node)
    if node.name == "LowCardinality":
        stream.skip(8)
    else:
        for part in node.parts():
            _skip_prefix(stream, part)


def _skip(stream: _Stream, node: TypeNode, rows: int) -> None:
    """Go on by the values of a column."""
    node = _plain(node)
    if node.name == "String":
        stream.skip_texts(rows)
    elif node.name == "Nullable":
        stream.skip(rows)
        _skip(stream, node.inner(), rows)
    elif node.name == "LowCardinality":
        _skip_indexed(stream, node.inner(), rows)
    elif node.name == "Array":
        stream.skip(8 * (rows - 1))
        _skip(stream, node.inner(), stream.number() if rows else 0)
    elif node.name == "Tuple" and node.arguments:
        for part in node.parts():
            _skip(stream, part, rows)
    else:
        stream.skip(_bytes_of(node) * rows)


def _skip_indexed(stream: _Stream, inner: TypeNode, rows: int) -> None:
    """The values of a LowCardinality: a dictionary, and a place in it for each."""
    inner = inner.inner() if inner.name == "Nullable" else inner
    while rows:
        kind = stream.number()
        if kind & _SHARED_KEYS:
            raise TerminalError(
                "a server shares the dictionary of a LowCardinality between blocks",
                "This is a bug: report it with the server's version.",
            )
        if kind & _OWN_KEYS:
            _skip(stream, inner, stream.number())
        found = stream.number()
        stream.skip(found << (kind & 0xFF))
        rows -= found


def _bytes_of(node: TypeNode) -> int:
    """Of one value."""
    size = 1 if node.name == "Nothing" else size_of(node)
    if size is None:
        raise TerminalError(
            f"rows with a {node.text} cannot be read in blocks",
            "Build the key of other columns.",
        )
    return size


def _plain(node: TypeNode) -> TypeNode:
    """The type itself, where this is one by another name."""
    if node.name in GEO_TYPES:
        return parse_type(GEO_TYPES[node.name])
    return node.inner(1) if node.name == "SimpleAggregateFunction" else node
