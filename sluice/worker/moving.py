"""Moves one table of a stored block into its own target: counted, claimed, moved (R21)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sluice.clickhouse.moving import (
    OTHER_STRUCTURE,
    RUN_UNKNOWN,
    UNKNOWN_TABLE,
    Claim,
    has_moved,
    left_to_move,
    move_statement,
    read_parts,
    run_name,
    stored_rows_of,
)
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import StagingTable, add_columns_of, staging_tables
from sluice.clickhouse.vanishing import CannotTellError
from sluice.clickhouse.window import read_insert_counter, read_server_run
from sluice.core.errors import TerminalError
from sluice.worker.errors import OvertakenError
from sluice.worker.statements import Statements


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows of a block tell whether they are in a target.

    :param of_block: how many there are; None: nobody has counted them.
    :param are_unique: no other block has the same rows.
    :param why_unknown: why they do not tell, asked when it matters; None: they do.
    :param count: how many the target has of them, by ClickHouse partition.
    """

    of_block: int | None
    are_unique: bool
    why_unknown: Callable[[TableFacts], str | None]
    count: Callable[[TableFacts], dict[str, int]]


@dataclass(frozen=True, slots=True)
class Mover:
    """Moves the stored rows that are for one table.

    :param target: where they go.
    """

    statements: Statements
    target: TableFacts
    rows: Rows

    def move(self, stored: StagingTable) -> str | None:
        """Claim a table, and move what is not moved yet.

        :returns: its new name: all of it is in the target; None: somebody else was quicker, and
            nothing of it was done here.
        :raises OvertakenError: somebody else claimed it meanwhile.
        :raises TerminalError: nobody can tell what was moved, or it does not fit any more.
        """
        name = self._claim(stored) if self._has_all(stored) else None
        if name is None:
            return None
        source = (self.statements.database, name)
        # Nobody moves any more: what one process of the server did until now is done or not.
        is_clear = stored.claim is None or stored.claim.is_clear(self._run_now())
        try:
            left = self._all_of(name) if is_clear else self._open(stored, name)
        except TerminalError:
            self._require_claimed(name)
            raise
        if not left:
            self._require_claimed(name)  # else a statement would say so
        try:
            try:
                self._move_all(source, left)
            except ServerError as error:
                if error.code != OTHER_STRUCTURE or not self._add_columns(name):
                    raise
                self._move_all(source, left)
        except ServerError as error:
            if error.code == UNKNOWN_TABLE:
                self._describe()  # says so, if it is the target that has gone
                raise OvertakenError(f"another attempt moves {name} by now: {error}") from error
            if error.code == OTHER_STRUCTURE:
                raise TerminalError(
                    f"{self.target.target} was altered after a block for it was sealed: {error}",
                    f"Alter {'.'.join(source)} the same way; the block is moved then.",
                ) from error
            raise
        return name

    def _claim(self, stored: StagingTable) -> str | None:
        """The table's new name; None: somebody was quicker. Then nobody else can begin to move any
        of it, and nobody does any more."""
        statements = self.statements
        if stored.claim is not None:
            # A server that was started again may count from less than before.
            block = min(stored.claim.block, read_insert_counter(statements.server, self.target))
            claim = replace(stored.claim, by=statements.attempt, block=block)
        else:
            block = read_insert_counter(statements.server, self.target)
            claim = Claim(statements.attempt, block, self._run_now())
        name = stored.unclaimed + claim.suffix
        before, after = (qualified(statements.database, each) for each in (stored.name, name))
        try:
            statements.run(f"RENAME TABLE {before} TO {after}")
        except ServerError as error:
            if error.code != UNKNOWN_TABLE:
                raise
            return None
        if stored.claim is not None:
            statements.wait_for_others()
        return name

    def _run_now(self) -> str:
        """Which process serves the server, where it moves partitions at all."""
        statements = self.statements
        return run_name(read_server_run(statements.server)) if statements.moves else RUN_UNKNOWN

    def _move_all(self, source: tuple[str, str], left: list[str]) -> None:
        """Move these partitions; those that are moved go from the list."""
        to, moves = (self.target.database, self.target.table), self.statements.moves
        while left:
            self.statements.run(move_statement(source, to, left[0], moves=moves))
            del left[0]

    def _add_columns(self, name: str) -> bool:
        """Give a stored block the columns that the target got since; whether there were any."""
        statements, facts = self.statements, self._describe()
        statement = add_columns_of(statements.server, facts, statements.database, name)
        if statement is not None:
            statements.run(statement)
        return statement is not None

    def _describe(self) -> TableFacts:
        return describe_table(self.statements.server, self.target.database, self.target.table)

    def _parts(self, name: str) -> dict[str, int]:
        return stored_rows_of(read_parts(self.statements.server, self.statements.database, name))

    def _has_all(self, stored: StagingTable) -> bool:
        """Whether a table of which nothing was moved is there. It is counted before it is claimed:
        what a claimed one lacks counts as moved.

        :raises TerminalError: it has lost rows that were sealed, as after a power failure.
        """
        rows, is_whole = self.rows.of_block, stored.claim is None or not self.statements.moves
        if rows is None or not is_whole:
            return True
        server, database = self.statements.server, self.statements.database
        for _ in range(2):
            found = sum(self._parts(stored.name).values())
            if found == rows:
                return True
            # Whoever renames it meanwhile is done with that then.
            self.statements.wait_for_others()
            if not any(
                each.name == stored.name for each in staging_tables(server, database, stored.name)
            ):
                return False
        raise TerminalError(
            f"{database}.{stored.name} on {server.url} has {found} of the {rows} rows that were "
            f"sealed in it: the server has lost some before they came into {self.target.target}",
            "Look at the server's log and at its detached parts. Then compare the table with "
            "the topic (`sluice audit`), and decide with `sluice resolve`.",
        )

    def _all_of(self, name: str) -> list[str]:
        return list(self._parts(name))

    def _require_claimed(self, name: str) -> None:
        """What was read of a table since its claim holds.

        :raises OvertakenError: another attempt has claimed it since: what is not in a table of that
            name any more is not moved for that.
        """
        server, database = self.statements.server, self.statements.database
        if not any(each.name == name for each in staging_tables(server, database, name)):
            raise OvertakenError(f"another attempt has claimed {database}.{name} since")

    def _require_moved(self, facts: TableFacts, left: Sequence[int]) -> None:
        """What a claimed table lacks is in the target, as far as rows of the target tell.

        :param left: how many rows the partitions have that are not moved.
        :raises TerminalError: it is not, as after a power failure.
        """
        if self.rows.of_block is None or self.rows.why_unknown(facts) is not None:
            return
        try:
            there = sum(self.rows.count(facts).values())
        except CannotTellError:
            return
        if there + sum(left) != self.rows.of_block:
            raise TerminalError(
                f"{facts.target} on {facts.url} has {there} rows of a block of "
                f"{self.rows.of_block}, of which {sum(left)} are not moved yet: the server was "
                "started again while it moved them, and has lost or doubled some",
                "Look at the server's log and at its detached parts. Then compare the table with "
                "the topic (`sluice audit`), and decide with `sluice resolve`.",
            )

    def _open(self, before: StagingTable, name: str) -> list[str]:
        """What is left to move, where a move may have been done of which nobody knows.

        :param before: as it was before it was claimed.
        :raises TerminalError: nobody can tell.
        """
        assert before.claim is not None
        facts, server = self._describe(), self.statements.server
        parts = read_parts(server, self.statements.database, name)
        there = read_parts(server, facts.database, facts.table)
        answers = {
            each: has_moved(before.claim, each, parts, there, is_unique=self.rows.are_unique)
            for each in stored_rows_of(parts)
        }
        if None not in answers.values():
            unmoved = [each for each, moved in answers.items() if not moved]
            self._require_moved(facts, [stored_rows_of(parts)[each] for each in unmoved])
            return unmoved
        why = self.rows.why_unknown(facts)
        if why is None:
            assert self.rows.of_block is not None
            there_now = self.rows.count(facts)
            left = left_to_move(stored_rows_of(parts), there_now, self.rows.of_block)
            if left is not None:
                return left
            why = "the numbers of rows in both do not fit together"
        unknown = ", ".join(each for each, moved in answers.items() if moved is None)
        stored = f"{self.statements.database}.{name}"
        raise CannotTellError(
            f"the server {server.url} was started again while ClickHouse partitions of {stored} "
            f"were moved into {facts.target}: nobody can tell whether {unknown} were moved, since "
            f"the target has other parts by now, and its rows do not tell: {why}",
            f"Compare the two tables. Drop from {stored} the partitions whose rows are in the "
            "target; move the others (ALTER TABLE … MOVE PARTITION ID … TO TABLE …). Leave the "
            "empty table: the next attempt goes on from there.",
        )
