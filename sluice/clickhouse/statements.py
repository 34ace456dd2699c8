"""Statements of one attempt at something, each of them sent within its lease (R9, R21)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_statement, query_id_of, query_id_prefix
from sluice.clickhouse.probe import running_query_ids
from sluice.core.errors import InDoubtError

_LOOK_SECONDS = 0.5


class EarlierAttemptRunsError(InDoubtError):
    """A server still works on the same block, sent by an attempt before."""

    hint = (
        "It is sent again when that has ended, and each time it is waited for longer. If it always "
        "takes long, look at system.processes, and at the views behind the table; `insert_timeout` "
        "in [clickhouse] spares the first attempts of a pipeline."
    )


@dataclass(frozen=True, slots=True)
class Statements:
    """Where an attempt sends its statements, and under which name.

    :param database: of all staging tables.
    :param target: database.table, for messages.
    :param token: of what the attempt is at; the statements' query ids derive from it.
    :param attempt: names the attempt: 16 hexadecimal digits that nobody else has.
    :param moves: the server moves partitions between tables; else it copies them.
    :param settings: of each statement.
    :param check: for how many seconds a statement may be sent yet; raises for none.
    :param seconds: that each may take.
    """

    server: Server
    database: str
    target: str
    token: str
    attempt: str
    moves: bool
    settings: Mapping[str, str]
    check: Callable[[], float]
    seconds: float

    def run(self, sql: str) -> None:
        """Send a statement.

        :raises ServerError: terminal or transient, or in doubt.
        """
        plan = plan_statement(self.target, sql, self.query_id(), self.settings)
        self.server.insert(plan, self.check, self.seconds)

    def query_id(self) -> str:
        """Of the next statement."""
        return query_id_of(self.token, os.urandom(4).hex())

    def wait_for_others(self) -> None:
        """Wait until no statement about this runs. A server lists a statement before it looks for
        its tables, so none that began before this call goes on after it.

        :raises EarlierAttemptRunsError: one runs for too long.
        """
        wait_for_earlier(self.server, self.token, self.seconds, self.check)


def wait_for_earlier(
    server: Server, token: str, seconds: float, seconds_left: Callable[[], float]
) -> None:
    """Wait until a server has ended what an attempt before this one gave it: a block that always
    takes longer than its time-out would be sent again and again, beside itself.

    :param token: of the block.
    :param seconds_left: of the lease; raises when it is over.
    :raises EarlierAttemptRunsError: it still runs.
    """
    until = time.monotonic() + min(seconds, seconds_left() / 2)
    while running := running_query_ids(server, query_id_prefix(token)):
        if time.monotonic() >= until:
            raise EarlierAttemptRunsError(
                f"{server.url} still runs {running[0]}, an earlier attempt at the same block, for "
                f"more than {seconds:.0f} s"
            )
        seconds_left()
        time.sleep(_LOOK_SECONDS)
