"""Moves staging tables into their target, each part once.

MOVE PARTITION alone is no such thing: it names the parts in the target first, and takes them out of
the other table then. A server that is killed between has them in both [measured, 26.9]; by its
source, an older one that gets two of these statements at once may have them twice. So one client at
a time may move a table: who renamed it last.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import (
    OTHER_STRUCTURE,
    TABLE_EXISTS,
    UNKNOWN_TABLE,
    are_there,
    move_statement,
    read_parts,
    stored_rows_of,
)
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.sql import literal, qualified
from sluice.clickhouse.window import read_insert_counter, read_server_run
from sluice.stream.altering import add_columns, altered
from sluice.stream.errors import OvertakenError, StagedRowsError
from sluice.stream.marks import wait_for_queries
from sluice.stream.names import Staged, moved_name, moving_name, parse_staged, run_key

#: How often a table may change its name under us.
_LOOKS = 20
#: A server may list a table under neither name while it renames it [measured, 26.9].
_LOOKS_WHILE_RENAMED = 5
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Mover:
    """One client that moves the tables of one mark, one after the other.

    :param target: a table of the MergeTree family that is not replicated.
    :param claim: 8 hexadecimal digits, drawn for this mover.
    :param run: the life of the server before it moves anything, see `names.run_key`.
    """

    server: Server
    target: TableFacts
    claim: str
    run: str

    def move(self, base: str) -> None:
        """Get all rows of a staging table into the target.

        :param base: its first name.
        :raises StagedRowsError: it is gone, or nobody can tell which of its rows are there.
        :raises ServerError: of any kind; another mover goes on from where this one came to.
        """
        for _ in range(_LOOKS):
            found = self._find(base)
            if found.is_moved:
                return
            held = self._take_over(found) if found.claim else self._take(found)
            if held is not None:
                self._move_all(held, base)
                return
        raise StagedRowsError(
            f"{self.target.database}.{base} on {self.server.url} changes its name all the time",
            "Several drivers commit the same epoch at once: stop all but one.",
        )

    def _take(self, found: Staged) -> str | None:
        """Take a table that nobody has moved yet; see `_take_over`."""
        block = read_insert_counter(self.server, self.target)
        held = moving_name(found.base, self.claim, block, self.run)
        return held if self._rename(found.name, held) else None

    def _find(self, base: str) -> Staged:
        for look in range(_LOOKS_WHILE_RENAMED):
            time.sleep(look * _PAUSE_SECONDS)
            rows = self.server.query(
                "SELECT name FROM system.tables WHERE database = {database:String} "
                "AND startsWith(name, {base:String})",
                {"database": self.target.database, "base": base},
            )
            for row in rows:
                found = parse_staged(str(row["name"]))
                if found is not None and found.base == base:
                    return found
        raise StagedRowsError(
            f"{self.target.database}.{base} on {self.server.url} is gone, which holds rows that "
            f"are committed and may not be in {self.target.target} yet",
            "Who dropped it? Compare the table with the query's source by hand; then drop the "
            f"newest of the tables {base[:20]}mark_… to go on without these rows.",
        )

    def _rename(self, name: str, to: str) -> bool:
        """False: it has another name by now."""
        database = self.target.database
        try:
            self.server.execute(
                f"RENAME TABLE {qualified(database, name)} TO {qualified(database, to)}"
            )
        except ServerError as error:
            if error.code not in (UNKNOWN_TABLE, TABLE_EXISTS):
                raise  # A server says either first where the new name is taken, the old one gone.
            return False
        return True

    def _move_all(self, held: str, base: str) -> None:
        database = self.target.database
        try:
            try:
                self._move_parts(held)
            except ServerError as error:
                if error.code != OTHER_STRUCTURE:
                    raise
                add_columns(self.server, self.target, held, error)
                self._move_parts(held)
        except ServerError as error:
            if error.code == OTHER_STRUCTURE:
                raise altered(self.target, [held], error) from error
            if error.code != UNKNOWN_TABLE:
                raise
        if not self._rename(held, moved_name(base)) and not self._find(base).is_moved:
            raise OvertakenError(
                f"another driver took {database}.{base} over, whose rows go into "
                f"{self.target.target}"
            )

    def _move_parts(self, held: str) -> None:
        source, to = (self.target.database, held), (self.target.database, self.target.table)
        for partition in stored_rows_of(read_parts(self.server, *source)):
            self.server.execute(move_statement(source, to, partition, moves=True))

    def _take_over(self, found: Staged) -> str | None:
        """Take a table from its mover, which can begin nothing then, and see what it had done.

        :returns: the name by which this mover holds it; None if another was faster.
        """
        held = moving_name(found.base, self.claim, found.block, found.run)
        if not self._rename(found.name, held):
            return None
        wait_for_queries(self.server, qualified(self.target.database, found.name))
        run = run_key(read_server_run(self.server))  # Only now: it may have been restarted since.
        if found.run == run:
            return held  # What a running server shows in the table is not in the target.
        self._drop_what_arrived(held, found)
        block = read_insert_counter(self.server, self.target)
        now = moving_name(found.base, self.claim, block, run)
        return now if self._rename(held, now) else None

    def _drop_what_arrived(self, held: str, found: Staged) -> None:
        """Of a table whose server ended meanwhile: drop the parts that the target has."""
        database = self.target.database
        stored = [part for part in read_parts(self.server, database, held) if part.active]
        there = read_parts(self.server, database, self.target.table)
        answers = are_there(stored, [part for part in there if part.number > found.block])
        both = zip(stored, answers, strict=True)
        unknown = [part.name for part, is_there in both if is_there is None]
        if unknown:
            raise StagedRowsError(
                f"{self.server.url} was restarted while rows of {database}.{held} were moved into "
                f"{self.target.target}, and merges since then, or parts with the same rows, hide "
                f"whether these arrived: {', '.join(unknown)}",
                f"Look whether the rows of {qualified(database, held)} are in the target. If they "
                f"are: RENAME TABLE {qualified(database, held)} TO "
                f"{qualified(database, moved_name(found.base))}; if not: … TO "
                f"{qualified(database, found.base)}, after ALTER TABLE … DROP PART of those parts "
                "that are. Then start the query again.",
            )
        for part, is_there in zip(stored, answers, strict=True):
            if is_there:
                drop = f"DROP PART {literal(part.name)}"
                self.server.execute(f"ALTER TABLE {qualified(database, held)} {drop}")
