"""Experiments: what staged delivery rests on, moved partitions and renamed tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sluice.clickhouse.moving import TABLE_EXISTS, UNKNOWN_TABLE, move_statement
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.staging import COLUMN_EXISTS, done_statement
from sluice.prove.findings import Seen, judged, not_applicable
from sluice.prove.scratch import ROWS, Scratch, block

#: So many ClickHouse partitions are moved, each with so many parts.
_PARTITIONS = 5
_PARTS = 20
#: A move leaves a part without rows where each part was, and the next one moves those.
_ROWS = "rows > 0"


def move(scratch: Scratch) -> Seen:
    """A moved ClickHouse partition is seen with all of its rows at once; moving it again does
    nothing, and its parts keep their uuids."""
    if scratch.replicated and scratch.tokens:
        return not_applicable("blocks are staged for tables that are not replicated")
    source, target = scratch.unmerged(has_uuids=scratch.tokens), scratch.unmerged()
    every = _PARTITIONS * ROWS
    for number in range(_PARTS):
        rows = block(number * every, every, clickhouse_partitions=range(_PARTITIONS))
        scratch.insert(source, rows, str(number))
    before = sorted(scratch.parts(source, "uuid", _ROWS)) if scratch.tokens else []
    names = ((scratch.database, source), (scratch.database, target))
    statements = [
        move_statement(*names, str(partition), moves=scratch.tokens)
        for partition in range(_PARTITIONS)
    ]
    with _watched(scratch, target) as counts:
        for statement in statements:
            scratch.first.server.execute(statement)
    whole = {number * _PARTS * ROWS for number in range(_PARTITIONS + 1)}
    told = f"{len(counts)} looks while {_PARTITIONS} partitions of {_PARTS} parts came"
    if not whole.issuperset(counts):
        part = next(count for count in counts if count not in whole)
        return judged(False, f"{told}: one of them saw {part:,} rows, a part of a partition")
    for statement in statements:
        scratch.first.server.execute(statement)
    there = scratch.rows_at(target)
    if not scratch.tokens:
        return judged(
            True,
            f"{told}: each saw whole partitions. This server copies them: the same again made "
            f"{there:,} rows of {every * _PARTS:,}, so Sluice asks the rows before it repeats",
        )
    if there != every * _PARTS:
        return judged(False, f"moved twice: {there:,} rows where {every * _PARTS:,} belong")
    if sorted(scratch.parts(target, "uuid", _ROWS)) != before:
        return judged(False, "parts have other uuids when they are moved")
    return judged(True, f"{told}: each saw whole partitions; the same again changed nothing")


@contextmanager
def _watched(scratch: Scratch, table: str) -> Iterator[list[int]]:
    """How many rows others see of a table on the first server, look by look."""
    counts: list[int] = []
    ended = threading.Event()

    def look() -> None:
        with scratch.access.connect(scratch.first.url) as server:
            while not ended.is_set():
                rows = server.query(f"SELECT uniqExact(id) AS n FROM {scratch.named(table)}")
                counts.append(int(rows[0]["n"]))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        scratch.wait(10, lambda: bool(counts))
        yield counts
    finally:
        ended.set()
        thread.join()


def claim(scratch: Scratch) -> Seen:
    """Of several who create or rename a table one succeeds, and what names it as it was called
    before fails."""
    if scratch.replicated and scratch.tokens:
        return not_applicable("blocks are staged for tables that are not replicated")
    server, marker = scratch.first.server, "marker"
    claimed, to = scratch.unmerged(), scratch.unmerged()
    scratch.insert(claimed, block(), "a")
    names = ((scratch.database, claimed), (scratch.database, to))
    late = move_statement(*names, "0", moves=scratch.tokens)

    def refused(statement: str, *codes: int) -> str | None:
        return None if _is_refused(lambda: server.execute(statement), codes) else statement

    create = f"CREATE TABLE {scratch.named(marker)} (a UInt8) ENGINE = Null"
    for statement in (create, done_statement(scratch.database, marker)):
        server.execute(statement)
    server.execute(f"RENAME TABLE {scratch.named(claimed)} TO {scratch.named(claimed + '_1')}")
    again = f"RENAME TABLE {scratch.named(claimed)} TO {scratch.named(claimed + '_2')}"
    taken = (
        refused(create, TABLE_EXISTS),
        refused(done_statement(scratch.database, marker), *COLUMN_EXISTS),
        refused(again, UNKNOWN_TABLE),
        refused(late, UNKNOWN_TABLE),
    )
    failed = [each for each in taken if each is not None]
    if failed:
        return judged(False, f"this was not refused as it should be: {'; '.join(failed)}")
    there = scratch.rows_at(claimed + "_1")
    return judged(
        there == ROWS,
        "a table that is there was not made again, nor given its column; one that was renamed was "
        f"not renamed, nor moved from, under its older name; it has {there} rows of {ROWS}",
    )


def _is_refused(action: Callable[[], object], codes: tuple[int, ...]) -> bool:
    try:
        action()
    except ServerError as error:
        return error.code in codes
    return False
