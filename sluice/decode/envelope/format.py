"""The format `SQLBatchRequest`: eBay's envelope, rows bound to a statement, as relations.

Many messages are read at once. What a message becomes follows from the message and the table
alone. Values for columns that the table does not have are skipped.

Its statement says which columns the values are for: `INSERT INTO t (a, b) VALUES (?, ?)`, or
without columns: then the values are those of the first columns of the table. Which table the
statement names does not matter; routes decide that.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.envelope.columns import Relations
from sluice.decode.envelope.rows import RowReader, Statement, all_rows, shape_of
from sluice.decode.envelope.walk import Mask, fault_of, walk
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, OTHER_SCHEMA, UNKNOWN_FIELD, Fault
from sluice.decode.messages.format import Group, Indices, TypedFormat
from sluice.decode.messages.framing import BYTES
from sluice.decode.typed.blobs import Blobs
from sluice.producer.wire import LIMITS, Kind, schema_hashcode

_NAME = r"(?:`(?:[^`\\]|\\.|``)+`|\"(?:[^\"\\]|\\.|\"\")+\"|[^\W\d]\w*)"
_STATEMENT = re.compile(
    rf"\s*INSERT\s+INTO\s+(?:TABLE\s+)?{_NAME}(?:\s*\.\s*{_NAME})?\s*"
    rf"(?:\((?P<columns>\s*{_NAME}(?:\s*,\s*{_NAME})*\s*)\)\s*)?"
    r"VALUES\s*\((?P<marks>\s*\?(?:\s*,\s*\?)*\s*)\)\s*;?\s*",
    re.IGNORECASE,
)
_COLUMN = re.compile(_NAME)
#: Longer statements are refused before anything is searched in them.
_STATEMENT_BYTES_MAX = 1 << 20


def read_statement(sql: bytes, positional: tuple[str, ...]) -> tuple[str, ...] | Fault:
    """The columns of the values, in their order, or why there are none.

    :param positional: the columns that a statement without columns fills.
    """
    try:
        text = sql.decode()
    except UnicodeDecodeError:
        return _refused(sql)
    match = None if len(sql) > _STATEMENT_BYTES_MAX else _STATEMENT.fullmatch(text)
    if match is None:
        return _refused(sql)
    marks = match["marks"].count("?")
    if match["columns"] is None:
        if marks > len(positional):
            said = f"{marks} values for the {len(positional)} columns that can be inserted"
            return Fault(UNKNOWN_FIELD, f"the table has fewer columns: {said}")
        return positional[:marks]
    columns = tuple(_unquoted(name) for name in _COLUMN.findall(match["columns"]))
    if len(columns) != marks:
        return Fault(CANNOT_PARSE, f"{len(columns)} columns but {marks} ? in the statement")
    if len(set(columns)) != len(columns):
        twice = Counter(columns).most_common(1)[0][0]
        return Fault(CANNOT_PARSE, f"column {twice} is there twice", twice)
    return columns


def _unquoted(name: str) -> str:
    quote = name[0]
    if quote not in '`"':
        return name
    return re.sub(r"\\(.)", r"\1", name[1:-1].replace(quote * 2, quote))


def _refused(sql: bytes) -> Fault:
    shown = sql[:200].decode(errors="replace")
    said = f"the statement is not INSERT INTO table (columns) VALUES (?, …): {shown!r}"
    return Fault(CANNOT_PARSE, said)


#: So many statements are remembered from range to range.
_STATEMENTS_MAX = 256


class EnvelopeFormat(TypedFormat):
    """Envelopes of one table entry. What the engine reads is written here; only blocks are not.

    Options: `schema_hash`, what `schema_hashcode` may be, separated by commas: numbers, or
    `table` for `sluice.producer.schema_hashcode` of the table's columns. Without the option it
    is not compared.

    :raises TerminalError: an option is unknown or no hash.
    """

    def __init__(self, table: TableSpec) -> None:
        own = [column for column in table.columns if column.name not in table.lineage]
        insertable = [column for column in own if column.kind in ("", "DEFAULT")]
        self._positional = tuple(column.name for column in insertable)
        self._shapes = {
            column.name: shape_of(column.type)
            for column in own
            if column.kind in ("", "DEFAULT", "EPHEMERAL")
        }
        self._refuse_unknown = table.unknown_fields == "refuse"
        self._null_is_empty = table.on_null == "default"
        own_hash = schema_hashcode((column.name, column.type) for column in insertable)
        self._hashes = _accepted_hashes(table, own_hash)
        self._blocks = Blobs(table, "Native")
        self._meaning = lru_cache(_STATEMENTS_MAX)(self._statement)

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See `TypedFormat`."""
        relations = Relations()
        faults: dict[int, Fault] = {}
        blocks: list[tuple[int, bytes]] = []
        for piece in buffer.pieces(indices):
            here = indices[piece.places]
            bad, held = self._read(piece, here, relations)
            faults |= {int(here[place]): fault for place, fault in bad.items()}
            blocks += [(int(here[place]), block) for place, block in held]
        for relation in relations.by_key.values():
            with relation.group() as group:
                yield group
        for index, block in blocks:
            yield from self._block_groups(index, block)
        if faults:
            yield Group.without_messages(faults)

    def _read(
        self, piece: Piece, indices: Indices, relations: Relations
    ) -> tuple[dict[int, Fault], list[tuple[int, bytes]]]:
        """Read the messages of a text into relations.

        :returns: by their places in it, what is wrong with the bad ones, and Native blocks.
        """
        found, nodes = walk(piece.text, *piece.bounds, self._refuse_unknown)
        faults = self._refused(found)
        blocks: list[tuple[int, bytes]] = []
        by_statement = defaultdict[bytes, list[int]](list)
        heads = (found[name].tolist() for name in ("head_begin", "head_end", "has_block"))
        for place, (begin, end, is_block) in enumerate(zip(*heads, strict=True)):
            if place in faults:
                continue
            head = piece.text[begin:end]
            if is_block:
                blocks.append((place, head))
            else:
                by_statement[head].append(place)
        # Statements that are written differently may mean the same.
        bound: dict[tuple[str, ...], tuple[Statement, Mask]] = {}
        for sql, places in by_statement.items():
            meaning = self._meaning(sql)
            if isinstance(meaning, Fault):
                faults |= dict.fromkeys(places, meaning)
            else:
                nowhere = np.zeros(len(found), np.bool_)
                bound.setdefault(meaning.columns, (meaning, nowhere))[1][places] = True
        rows = all_rows(nodes, found["rows"])
        for statement, chosen in bound.values():
            read = RowReader(nodes, rows.of(chosen), statement, self._null_is_empty)
            members = np.flatnonzero(chosen)
            bad = relations.add(nodes, read, indices[members])
            faults |= {int(members[place]): fault for place, fault in bad.items()}
        return faults, blocks

    def _refused(self, found: NDArray[Any]) -> dict[int, Fault]:
        """Messages that are no envelopes, or whose hash the options do not name."""
        faults = {}
        bad = found["code"] != 0
        for place in np.flatnonzero(bad).tolist():
            faults[place] = fault_of(*found[["code", "holder", "number", "detail"]][place])
        if self._hashes is not None:
            others = ~np.isin(found["hash"], self._hashes) & ~bad
            for place in np.flatnonzero(others).tolist():
                hashcode = found["hash"][place]
                said = f"schema_hashcode {hashcode} is none of those in the option schema_hash"
                faults[place] = Fault(OTHER_SCHEMA, said)
        return faults

    def _block_groups(self, index: int, block: bytes) -> Iterator[Group]:
        """A Native block as if it were a message of that format."""
        with MessageBuffer(BYTES) as alone:
            alone.add([block], [0])
            for group in self._blocks.groups(alone, np.zeros(1, np.int64)):
                bad = {place + index: fault for place, fault in group.unreadable.items()}
                yield replace(group, messages=group.messages + index, unreadable=bad)

    def _statement(self, sql: bytes) -> Statement | Fault:
        """What the statement means for this table, or why the message is bad."""
        columns = read_statement(sql, self._positional)
        if isinstance(columns, Fault):
            return columns
        shapes = {name: self._shapes[name] for name in columns if name in self._shapes}
        strange = next((name for name in columns if name not in shapes), "")
        if strange and self._refuse_unknown:
            return Fault(UNKNOWN_FIELD, f"the table has no column {strange}", strange)
        return Statement(columns, shapes)


def _accepted_hashes(table: TableSpec, own_hash: int) -> list[int] | None:
    options = dict(table.options)
    accepted = options.pop("schema_hash", None)
    where = f"table {table.target}"
    if options:
        raise TerminalError(
            f"{where}: format SQLBatchRequest has no option {min(options)}",
            "Its only option is schema_hash.",
        )
    if accepted is None:
        return None
    hashes = []
    low, high = LIMITS[Kind.LONG]
    for part in (part.strip() for part in accepted.split(",")):
        if part != "table" and not (part.lstrip("-").isdecimal() and low <= int(part) <= high):
            raise TerminalError(
                f"{where}: option schema_hash: {part!r} is no hash",
                'Write a number of 64 bits or "table"; separate several by commas.',
            )
        hashes.append(own_hash if part == "table" else int(part))
    return hashes
