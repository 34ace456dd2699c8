"""Experiments: how long a server remembers a block, and how that is measured."""

from __future__ import annotations

import time
from collections.abc import Callable

from sluice.clickhouse.sql import qualified
from sluice.clickhouse.window import read_insert_counter, read_server_run
from sluice.core.server_runs import is_same_run
from sluice.prove.findings import Seen, judged, not_applicable
from sluice.prove.repeats import is_once
from sluice.prove.scratch import ROWS, Scratch, block

#: Blocks that are in doubt at once.
IN_DOUBT = 10
#: A window that is soon full.
_SMALL_WINDOW = 6
_WINDOW_SECONDS = 6
#: Servers clean the windows of Replicated tables now and then only.
_CLEANING_SECONDS = 15.0
#: A member of ZooKeeper's ensemble may be behind the others; on a busy machine, for long.
_AGREEMENT_SECONDS = 30.0
#: How often a window of time is tried, each one twice as long as the one before.
_TRIES = 4
#: Servers say in whole seconds how long they have been running.
_RUN_SECONDS = 1.2


def blocks_in_doubt(scratch: Scratch) -> Seen:
    """A window remembers 10 blocks, in whatever order they are repeated."""
    table = scratch.table()
    for number in range(IN_DOUBT):
        scratch.insert(table, block(number * ROWS), f"{number}")
    stored = IN_DOUBT * ROWS
    if scratch.replicated and scratch.window < IN_DOUBT:
        _forgotten(scratch, table, lambda: scratch.insert(table, block(), "0"))
    for number in range(IN_DOUBT):
        scratch.insert(table, block(number * ROWS), f"{number}", at=scratch.again)
    did = f"{IN_DOUBT} blocks, and each of them again"
    seen = is_once(scratch, table, stored, did)
    if seen.verdict == "holds":
        return seen
    return judged(
        False,
        f"{seen.what} entries: too few for so many blocks. Widen it: ALTER TABLE … MODIFY SETTING "
        f"{'' if scratch.replicated else 'non_'}replicated_deduplication_window = 10000",
    )


def eviction_by_count(scratch: Scratch) -> Seen:
    """A block is known while at most half as many entries came after it as its window keeps."""
    window = min(scratch.window, _SMALL_WINDOW)
    table = scratch.table(window=window)
    scratch.insert(table, block(), "a")
    others = window // 2
    for number in range(1, others + 1):
        scratch.insert(table, block(number * ROWS), f"{number}")
    scratch.insert(table, block(), "a")
    known = is_once(
        scratch,
        table,
        (1 + others) * ROWS,
        f"a window of {window}, {others} others, the block again",
    )
    if known.verdict == "fails":
        return known
    for number in range(others + 1, 2 * window + 2):
        scratch.insert(table, block(number * ROWS), f"{number}")
    is_gone = _forgotten(scratch, table, lambda: scratch.insert(table, block(), "a"))
    told = "forgotten" if is_gone else f"still known {_CLEANING_SECONDS:g} s later"
    return judged(True, f"{known.what}; after {2 * window + 1} others it was {told}")


def eviction_by_seconds(scratch: Scratch) -> Seen:
    """A block is known for a sixth of its window's seconds, although others came after it."""
    if not scratch.replicated:
        return not_applicable("tables that are not replicated forget by the number of entries only")
    for window in (_WINDOW_SECONDS << doubled for doubled in range(_TRIES)):
        table = scratch.table(seconds=window)
        began = time.monotonic()
        scratch.insert(table, block(), "a")
        scratch.wait(window / 6)
        scratch.insert(table, block(ROWS), "b")
        scratch.insert(table, block(), "a", at=scratch.again)
        if time.monotonic() - began < window / 2:
            break  # else the block may have left the window: a slow server says nothing of it
    did = f"a window of {window} s, a sixth of it, another block, the first again"
    known = is_once(scratch, table, 2 * ROWS, did)
    if known.verdict == "fails":
        return known
    scratch.wait(window + 2)
    scratch.insert(table, block(), "a")
    counts_from = "the newest insert" if max(scratch.rows(table)) == 2 * ROWS else "now"
    scratch.insert(table, block(2 * ROWS), "c")
    is_gone = _forgotten(scratch, table, lambda: scratch.insert(table, block(), "a"))
    told = "and is over then" if is_gone else "but it was not over even then"
    return judged(True, f"{known.what}; the age counts from {counts_from}, {told}")


def _forgotten(scratch: Scratch, table: str, repeat: Callable[[], None]) -> bool:
    """Whether a block is stored again, soon."""
    before = scratch.rows_at(table)

    def is_stored_again() -> bool:
        repeat()
        return scratch.rows_at(table) > before

    return scratch.wait(_CLEANING_SECONDS if scratch.replicated else 0.0, is_stored_again)


def insert_counter(scratch: Scratch) -> Seen:
    """The insert counter of a window grows by at least one for each entry, never shrinks by
    itself, and is the same at every replica."""
    table = scratch.table()
    insert_counters = [_insert_counter(scratch, table)]

    def after(action: Callable[[], object]) -> None:
        action()
        insert_counters.append(_insert_counter(scratch, table))

    three = block(ROWS, 3, clickhouse_partitions=(0, 1, 2))
    merge = f"OPTIMIZE TABLE {qualified(scratch.database, table)} FINAL"
    after(lambda: scratch.insert(table, block(), "a"))
    after(lambda: scratch.insert(table, three, "b"))
    after(lambda: scratch.insert(table, three, "b"))
    after(lambda: scratch.first.server.execute(merge))
    said: set[int] = set()

    def are_equal() -> bool:
        # Each server asks a member of ZooKeeper's ensemble, which may be a moment behind.
        said.clear()
        said.update(_insert_counter(scratch, table, at) for at in range(len(scratch.places)))
        return said == {insert_counters[-1]}

    is_so = (
        insert_counters[1] >= insert_counters[0] + 1
        and insert_counters[2] >= insert_counters[1] + 3
        and insert_counters[2] <= insert_counters[3] <= insert_counters[4]
        and scratch.wait(_AGREEMENT_SECONDS, are_equal)
    )
    told = ", ".join(map(str, insert_counters))
    return judged(
        is_so,
        f"empty, a block, one of three ClickHouse partitions, the same again, a merge: {told}; "
        f"each server says {' or '.join(map(str, sorted(said)))}",
    )


def _insert_counter(scratch: Scratch, table: str, at: int = 0) -> int:
    return read_insert_counter(scratch.places[at].server, scratch.facts(table, at))


def server_run(scratch: Scratch) -> Seen:
    """What tells one run of a server from the next is the same while it runs."""
    if scratch.replicated:
        return not_applicable("only tables that are not replicated depend on it")
    place = scratch.first
    first = read_server_run(place.server)
    scratch.wait(_RUN_SECONDS)
    with scratch.access.connect(place.url) as other:
        later = read_server_run(other)
    drew = first.rpartition("@")[0].strip("0-/")
    told = "a uuid that it drew and its start" if drew else "its start alone, for it draws no uuid"
    return judged(
        is_same_run(first, later),
        f"known by {told}; read again on another connection: {first}, {later}",
    )
