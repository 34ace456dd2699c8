"""Statements of one attempt at a staged block, each of them sent within its lease (R9, R21)."""

from __future__ import annotations

import os
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import InsertPlan, plan_insert, plan_statement, query_id_of
from sluice.core.load_spec import TableSpec
from sluice.decode.messages.decoded import Block
from sluice.worker.failover import wait_for_earlier
from sluice.worker.leases import HeldLease
from sluice.worker.worker_cache import ServerProfile


@dataclass(frozen=True, slots=True)
class Statements:
    """Where an attempt sends its statements, and under which name.

    :param table: the staged entry; all staging tables are in the database of its target.
    :param token: of the block; the statements' query ids derive from it.
    :param attempt: names the attempt; see `clickhouse.staging.attempt_of`.
    :param seconds: that each may take.
    """

    server: Server
    table: TableSpec
    token: str
    attempt: str
    profile: ServerProfile
    lease: HeldLease
    seconds: float

    @property
    def database(self) -> str:
        """Of the target, and of all staging tables."""
        return self.table.database

    @property
    def moves(self) -> bool:
        """Whether the server moves partitions; else it copies them."""
        return self.profile.tokens

    def check(self) -> float:
        """For how long a statement may be sent yet.

        :raises LeaseOverError: for no time.
        """
        return self.lease.check(self.server.clock_ms())

    def run(self, sql: str) -> None:
        """Send a statement.

        :raises ServerError: terminal or transient, or in doubt.
        """
        plan = plan_statement(self.table.target, sql, self._query_id(), self.profile.settings)
        self.server.insert(plan, self.check, self.seconds)

    def plan(self, name: str, block: Block) -> InsertPlan:
        """The insert of a block into a staging table."""
        settings, query_id = self.profile.settings, self._query_id()
        where = (self.database, name, block.columns)
        return plan_insert(*where, block.native, None, query_id, settings)

    def wait_for_others(self) -> None:
        """Wait until no statement about this block runs.

        :raises EarlierAttemptRunsError: one runs for too long.
        """
        wait_for_earlier(self.server, self.token, self.seconds, self.lease.check)

    def _query_id(self) -> str:
        return query_id_of(self.token, os.urandom(4).hex())
