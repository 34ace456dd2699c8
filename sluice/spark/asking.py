"""What a task refuses to insert, because the table may not be what its text says (rule 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.clickhouse.http import Server
from sluice.clickhouse.structure import read_structures
from sluice.core.dynamic import NewField, why_no_answer
from sluice.core.errors import InDoubtError, TransientError
from sluice.core.receipts import Outdated
from sluice.core.text import TableText
from sluice.decode.messages.decoded import BadMessage, Decoded
from sluice.decode.messages.fault import UNKNOWN_FIELD
from sluice.spark.assignment import Assignment
from sluice.spark.comparing import why_other_hash


class OutdatedTextError(TransientError):
    """The first attempt's task refused the text, and inserted nothing of this entry."""

    def __init__(self, entry: str, why: str) -> None:
        super().__init__(why, "The driver looks at the table; no action is needed.")
        self.entry = entry


class StructureChangedError(InDoubtError):
    """A server that hashes what it stores would not know this block again."""

    hint = "The driver looks at the table, and probes the range; no action is needed."


def ask_for_fields(assignment: Assignment, table: TableText, decoded: Decoded) -> None:
    """Refuse a first attempt in which messages have fields that no column of the text has.

    Nobody else was ever allowed to insert this range, so it may still be loaded under another
    text: the driver looks whether the table has such columns by now.

    :raises OutdatedTextError: there are such fields, and a look is worth it.
    """
    if not (assignment.looks_for_fields and assignment.is_first):
        return
    for bad in decoded.bad:
        if bad.reason == UNKNOWN_FIELD:
            raise OutdatedTextError(
                table.entry,
                f"{table.target} has no column {bad.column or '?'} for a field of the message at "
                f"offset {bad.offset}; the driver looks whether it has one by now",
            )


def asked_for_columns(
    tables: Iterable[TableText], fields: Mapping[str, tuple[NewField, ...]]
) -> Outdated:
    """The report of a range whose messages have fields that are to get columns (rule 14)."""
    refused = [table for table in tables if table.entry in fields]
    first = refused[0]
    names = ", ".join(field.name for field in fields[first.entry])
    why = f"{first.target} is to be asked for columns of new fields: {names}"
    return Outdated(first.entry, why[:300], (), fields)


def words_of(table: TableText, bad: BadMessage) -> str:
    """Why a message makes no row, and why its field got no column, where one might have."""
    if bad.reason != UNKNOWN_FIELD or table.dynamic is None:
        return bad.error
    columns = frozenset(column.name for column in table.columns)
    return bad.error + why_no_answer(table.dynamic, columns, bad.column)


def require_same_hash(server: Server, table: TableText, *, is_first: bool) -> None:
    """For a server without tokens: it must make of the block what it made of it before. Called
    directly before the block is sent.

    :param is_first: no other task was ever sent this range.
    :raises OutdatedTextError: it does not, and this is the only task that ever could insert.
    :raises StructureChangedError: it does not, and an earlier attempt may have inserted.
    """
    where = (table.database, table.table)
    found = read_structures(server, [where]).get(where)
    why = (
        f"{table.target} does not exist"
        if found is None
        else why_other_hash(table, found.columns, found.sorting_key)
    )
    if why is None:
        return
    if is_first:
        raise OutdatedTextError(table.entry, why)
    raise StructureChangedError(f"{why}: this block may have been stored before that")
