"""A target that is altered between the seal of an epoch and its last move."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import add_columns_of
from sluice.core.errors import SluiceError
from sluice.stream.errors import StagedRowsError


def add_columns(
    server: Server, target: TableFacts, table: str, refused: SluiceError | None = None
) -> None:
    """Give a table that was made like the target the columns that the target got since: what it
    holds has their defaults, as rows of the target that are as old.

    :param refused: why that is needed.
    :raises StagedRowsError: there are none, and it is needed.
    :raises ServerError: of any kind.
    """
    facts = describe_table(server, target.database, target.table)
    statement = add_columns_of(server, facts, target.database, table)
    if statement is not None:
        server.execute(statement)
    elif refused is not None:
        raise altered(target, [table], refused) from refused


def altered(target: TableFacts, tables: Sequence[str], why: object) -> StagedRowsError:
    """An ALTER of the target that is more than new columns, and that nobody can follow."""
    names = ", ".join(qualified(target.database, each) for each in tables)
    return StagedRowsError(
        f"{target.target} on {target.url} was altered after rows for it were staged and sealed, "
        f"and what was staged does not fit any more: {why}",
        f"Alter {names} as the target was, or alter the target back until the query has ended this "
        "epoch; then start the query again. Nothing is lost, and nothing is there twice.",
    )
