"""Change events of Debezium: what columns may ask of them, and why one makes no row."""

from __future__ import annotations

from sluice.core.load_spec import TableSpec
from sluice.decode.messages.fault import NO_ROW, UNAVAILABLE_VALUE, Fault

#: Fields of a row that the event says, beside those of the row itself: `op`, whether it is "d",
#: `ts_ms`, and `source`.
OPERATION, DELETED, TIME_MS, SOURCE = "__op", "__deleted", "__ts_ms", "__source"
ADDED = (OPERATION, DELETED, TIME_MS, SOURCE)
#: What Debezium writes for a value that did not change and that the log does not hold.
UNAVAILABLE = "__debezium_unavailable_value"


def tells_deletes(table: TableSpec) -> bool:
    """Whether a row of the table says that it was deleted.

    :param table: whose columns are the fields that are read.
    """
    return any(column.name in (OPERATION, DELETED) for column in table.columns)


def no_row(why: str) -> Fault:
    """Of an event without a row that the table could take."""
    return Fault(NO_ROW, f"the change event makes no row: {why}")


def unavailable(column: str) -> Fault:
    """Of a row whose value the event does not know."""
    return Fault(
        UNAVAILABLE_VALUE,
        f"column {column} did not change, and Debezium does not know its value; in PostgreSQL set "
        "REPLICA IDENTITY FULL for the table",
        column,
    )
