"""Puts what an epoch staged in place of all rows of the target, at once.

One table is made for it before the mark is, and only who renamed it last may exchange it: a driver
that was overtaken names a table that is not there.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import (
    StagedRowsError,
    add_columns_of,
    altered,
    move_statement,
    read_parts,
    rename,
    stored_rows_of,
)
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import stored_rows
from sluice.clickhouse.statements import Statements
from sluice.stream.marks import Mark, drop_table, statements_about
from sluice.stream.names import new_prefix
from sluice.stream.staging import CREATE_SETTINGS

#: How often a table may change its name under us.
LOOKS = 20
#: A server may list a table under neither name while it renames it [measured, 26.9].
LOOKS_WHILE_RENAMED = 5


@dataclass(frozen=True, slots=True)
class Replacer:
    """One client that puts tables in place.

    :param prefix: see `names.query_prefix`.
    :param claim: drawn for this client.
    """

    server: Server
    database: str
    prefix: str
    claim: str

    def prepare(self, table: str, number: int) -> str:
        """Make the empty table for the mark with this number; gives its uuid."""
        name = f"{new_prefix(self.prefix, number)}{self.claim}"
        self.server.execute(
            f"CREATE TABLE {qualified(self.database, name)} AS {qualified(self.database, table)}",
            settings=CREATE_SETTINGS,
        )
        return self._tables(name)[name]

    def put_in_place(self, mark: Mark) -> None:
        """Exchange the target for a table with exactly what the mark names, unless that is done.

        :raises StagedRowsError: what is needed for it is gone.
        :raises ServerError: of any kind; another client goes on.
        """
        prefix = new_prefix(self.prefix, mark.number)
        statements = statements_about(self.server, self.database, prefix)
        for _ in range(LOOKS):
            name = self._new_table(statements, mark)
            if not name:
                return
            held = f"{prefix}{self.claim}"
            if name != held:
                if not rename(statements, name, held):
                    continue
                statements.wait_for_others()
            if self._tables(held).get(held) == mark.replaces:
                return
            self._fill(statements, held, mark)
            self._require_like(held, mark)
            statements.run(f"EXCHANGE TABLES {self._of(held)} AND {self._of(mark.table)}")
            return
        raise StagedRowsError(
            f"the table that replaces {self.database}.{mark.table} changes its name all the time",
            "Several drivers commit the same epoch at once: stop all but one.",
        )

    def drop(self, number: int) -> None:
        """Remove what is left of this mark's table and of those before it: the rows that were
        replaced."""
        last = f"{new_prefix(self.prefix, number)}~"
        for name in self._tables(f"{self.prefix}new_"):
            if name < last:
                drop_table(self.server, self.database, name)

    def _new_table(self, statements: Statements, mark: Mark) -> str:
        """Its name now; "" if it was dropped after the exchange."""
        for _ in range(LOOKS_WHILE_RENAMED):
            for name, uuid in self._tables(new_prefix(self.prefix, mark.number)).items():
                if uuid in (mark.replaces, mark.puts):
                    return name
            if self._tables(mark.table).get(mark.table) == mark.puts:
                return ""
            statements.wait_for_others()
        raise StagedRowsError(
            f"the table that was to replace {self.database}.{mark.table} on {self.server.url} is "
            "gone",
            f"{self.database}.{mark.table} is as it was before, or somebody exchanged it. Drop the "
            f"newest of the tables {self.prefix}mark_… and start the query with a new checkpoint.",
        )

    def _fill(self, statements: Statements, held: str, mark: Mark) -> None:
        statements.run(f"TRUNCATE TABLE {self._of(held)}")
        target = describe_table(self.server, self.database, mark.table)
        for table in (held, *(each.table for each in mark.winners)):
            add = add_columns_of(self.server, target, self.database, table)
            if add is not None:
                statements.run(add)
        for each in mark.winners:
            source, to = (self.database, each.table), (self.database, held)
            for partition in stored_rows_of(read_parts(self.server, *source)):
                statements.run(move_statement(source, to, partition, moves=False))
        found = stored_rows(self.server, self.database, [held])[held]
        if found != mark.rows:
            raise StagedRowsError(
                f"{self.database}.{held} on {self.server.url} has {found} rows, and {mark.rows} "
                "were staged",
                f"{self.database}.{mark.table} is as it was. Start the query again: the other is "
                "filled anew.",
            )

    def _require_like(self, held: str, mark: Mark) -> None:
        """:raises StagedRowsError: the table that is to take the target's place is another one than
        the target is by now: an ALTER would be taken back."""
        target = describe_table(self.server, self.database, mark.table)
        new = describe_table(self.server, self.database, held)
        if (new.columns, new.sorting_key, new.partition_key) != (
            *(target.columns, target.sorting_key),
            target.partition_key,
        ):
            tables = [held, *(each.table for each in mark.winners)]
            raise altered(target, map(self._of, tables), "they have other columns or keys")

    def _tables(self, prefix: str) -> dict[str, str]:
        rows = self.server.query(
            "SELECT name, toString(uuid) AS uuid FROM system.tables "
            "WHERE database = {database:String} AND startsWith(name, {prefix:String})",
            {"database": self.database, "prefix": prefix},
        )
        return {str(row["name"]): str(row["uuid"]) for row in rows}

    def _of(self, name: str) -> str:
        return qualified(self.database, name)
