"""Fills the tables of a stored block: one for the target, and one for each table that views behind
it write to (R21)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.clickhouse.copying import copies, tables_behind
from sluice.clickhouse.insert import InsertPlan, plan_insert
from sluice.clickhouse.schema import TableFacts
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import (
    StagingTable,
    attempt_of,
    copy_name,
    create_like,
    parsed,
    stored_name,
    stored_rows,
)
from sluice.clickhouse.statements import Statements
from sluice.core.errors import InDoubtError
from sluice.decode.messages.decoded import Block
from sluice.worker.inserting import RefusedValuesError, data_refused, insert_surely


@dataclass(slots=True)
class Filling:
    """The tables that an attempt makes for one block, and that nobody else fills.

    :param facts: of the target.
    :param marker: the name of the block's marker, with which theirs begin.
    :param attempt: what their names say; another one for each insert that the server refused.
    :param rows_behind: that are stored for each table behind the target, once they are.
    """

    statements: Statements
    facts: TableFacts
    marker: str
    deadline_ms: int
    attempt: str = ""
    rows_behind: tuple[int, ...] = ()
    _created: list[str] = field(default_factory=list)

    def fill(self, block: Block, check: Callable[[], float]) -> None:
        """Store the block, and what the views behind the target make of it.

        :param check: asked directly before the insert.
        :raises InDoubtError: what arrived is not what was sent.
        """

        def plan() -> InsertPlan:
            # What a refused insert has left in one of the tables, nobody knows.
            self.drop()
            self._create()
            where = (statements.database, stored_name(self.marker, self.attempt), block.columns)
            told = (None, statements.query_id(), statements.settings)
            return plan_insert(*where, block.native, *told)

        statements = self.statements
        try:
            insert_surely(statements.server, plan, check, statements.seconds)
        except RefusedValuesError as refused:
            raise data_refused(refused, "nothing of it is in the target") from None
        while len(self._created) > len(self.stored()):  # copies of views
            self._drop(self._created.pop())
        self._verify(block)

    def stored(self) -> list[StagingTable]:
        """The tables that are filled, in the order in which their rows come into sight."""
        behind = range(len(tables_behind(self.facts)) + 1)
        found = (parsed(stored_name(self.marker, self.attempt, number)) for number in behind)
        return [each for each in found if each is not None]

    def drop(self) -> None:
        """Drop what was created; copies of views first."""
        while self._created:
            self._drop(self._created.pop())

    def _create(self) -> None:
        statements, database = self.statements, self.statements.database
        self.attempt = attempt_of(self.deadline_ms, os.urandom(4))
        names = {}
        tables = (self.facts, *tables_behind(self.facts))
        for number, facts in enumerate(tables):
            name = stored_name(self.marker, self.attempt, number)
            names[facts.target] = name
            self._created.append(name)
            statements.run(create_like(facts, database, name, moves=statements.moves))
        views = copies(
            self.facts,
            lambda facts: names[facts.target],
            lambda number: copy_name(self.marker, self.attempt, number),
        )
        for name, sql in views.items():
            self._created.append(name)
            statements.run(sql)

    def _drop(self, name: str) -> None:
        self.statements.run(f"DROP TABLE {qualified(self.statements.database, name)}")

    def _verify(self, block: Block) -> None:
        """What arrived is what was sent.

        :raises InDoubtError: it is not; nothing of it is sealed.
        """
        server, database = self.statements.server, self.statements.database
        found = stored_rows(server, database, [each.name for each in self.stored()])
        rows, *behind = (found[each.name] for each in self.stored())
        if rows != block.rows:
            raise InDoubtError(
                f"{database}.{stored_name(self.marker, self.attempt)} on {server.url} has {rows} "
                f"rows of a block of {block.rows}",
                "The block is stored anew; no action is needed.",
            )
        self.rows_behind = tuple(behind)
