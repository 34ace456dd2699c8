"""Mode direct: tasks insert into the target itself, under tokens that a repeat has again.

For plans that make the same rows in the same order whenever they run. The first task attempt of an
epoch makes an open mark with the target's insert counters; whoever inserts looks whether the
windows still remember all that was inserted since then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, read_uuids
from sluice.clickhouse.window import (
    read_insert_counter,
    read_server_run,
    tables_with_windows,
    why_window_forgot,
)
from sluice.core.errors import TerminalError
from sluice.core.server_runs import is_same_run
from sluice.machine.clock import now_ms
from sluice.stream.marks import Mark
from sluice.stream.staging import InsertManner, insert_chunk

_HINT = (
    "A repeat could double rows now. Compare the epoch's rows in the table with the query's "
    "source; mode staged does not depend on the window."
)


@dataclass(frozen=True, slots=True)
class Memory:
    """What the target's windows were when an epoch began.

    :param counters: of the target and of each table behind it, see `read_insert_counter`.
    :param run: which life of the server it was; "" for a Replicated target, whose window outlives
        it.
    :param uuids: of the same tables as `counters`; "" where a table has none, or is replicated.
    :param since_ms: before they were read.
    """

    counters: tuple[int, ...]
    run: str
    uuids: tuple[str, ...]
    since_ms: int


def read_memory(server: Server, facts: TableFacts) -> Memory:
    """As it is now.

    :raises ServerError: terminal or transient.
    """
    since_ms = now_ms()
    tables = [table for _, table in tables_with_windows(facts)]
    run = "" if all(table.replicated for table in tables) else read_server_run(server)
    counters = tuple(read_insert_counter(server, table) for table in tables)
    return Memory(counters, run, _uuids(server, tables), since_ms)


def _uuids(server: Server, tables: Iterable[TableFacts]) -> tuple[str, ...]:
    return read_uuids(server, [(table.database, table.table) for table in tables])


def check_run(server: Server, facts: TableFacts, mark: Mark) -> None:
    """Whether the server has what it knows of chunks that were inserted since the mark was made.

    :raises TerminalError: nobody can say so.
    """
    if mark.run and not is_same_run(mark.run, read_server_run(server)):
        raise TerminalError(
            f"{facts.url} was restarted while epoch {mark.epoch} was inserted into {facts.target}: "
            "a table that is not replicated may know blocks by then that it does not have",
            _HINT,
        )


def check_memory(server: Server, facts: TableFacts, mark: Mark) -> None:
    """Whether a chunk that was inserted since the mark was made is still known, and there.

    :raises TerminalError: nobody can say so.
    """
    check_run(server, facts, mark)
    tables = [table for _, table in tables_with_windows(facts)]
    if _uuids(server, tables) != mark.uuids:
        raise TerminalError(
            f"{', '.join(table.target for table in tables)} on {facts.url}: another table has one "
            f"of these names, or is written to, than when epoch {mark.epoch} began",
            "Exchange it back, or let the views be what they were, until this epoch is done. If "
            "that cannot be: a" + _HINT[1:],
        )
    at_ms = now_ms()
    for table, before in zip(tables, mark.insert_counters, strict=True):
        why = why_window_forgot(server, table, before, mark.since_ms, at_ms)
        if why:
            raise TerminalError(
                f"{table.target} on {facts.url} may not remember what was inserted since epoch "
                f"{mark.epoch} began: {why}",
                _HINT,
            )


@dataclass(frozen=True, slots=True)
class Direct:
    """Inserts what one task attempt has into the target.

    :param mark: of the epoch. It says how many rows each insert but the last has, whatever batches
        Spark makes.
    :param token: of the task in its epoch.
    """

    server: Server
    facts: TableFacts
    mark: Mark
    token: str
    manner: InsertManner

    def insert(self, batches: Iterator[pa.RecordBatch]) -> int:
        """Insert all of them; gives how many rows there were.

        :raises TerminalError: see `check_memory`.
        :raises ServerError: of any kind; the next attempt repeats it.
        """
        rows, looks_at = 0, (self.server, self.facts, self.mark)
        for number, chunk in enumerate(_exact_chunks(batches, self.mark.chunk_rows)):
            insert_chunk(
                self.server,
                (self.facts.database, self.facts.table),
                f"{self.token}/{number}",
                chunk,
                self.manner,
                before=partial(check_memory, *looks_at),
                # One that was restarted since that look may have said so of what it only knows.
                after=partial(check_run, *looks_at),
            )
            rows += sum(batch.num_rows for batch in chunk)
        return rows


def _exact_chunks(
    batches: Iterator[pa.RecordBatch], chunk_rows: int
) -> Iterator[list[pa.RecordBatch]]:
    """The borders of Spark's batches must not decide where a chunk ends."""
    gathered, missing = list[pa.RecordBatch](), chunk_rows
    for whole in batches:
        batch = whole
        while batch.num_rows:
            piece = batch.slice(0, missing)
            gathered.append(piece)
            missing -= piece.num_rows
            batch = batch.slice(piece.num_rows)
            if not missing:
                yield gathered
                gathered, missing = [], chunk_rows
    if gathered:
        yield gathered
