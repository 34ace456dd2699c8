"""Experiments: what becomes of a block that is sent again."""

from __future__ import annotations

from urllib.parse import urlsplit

from sluice.core.errors import InDoubtError, SluiceError
from sluice.prove.findings import Seen, judged, not_applicable
from sluice.prove.scratch import ROWS, Scratch, block
from sluice.testbed.chaos.proxy import Kind, LinkFault, Proxy
from sluice.testbed.chaos.requests import Inserts

#: Rows of a body's Native blocks. By default a server makes a block of the first two, since
#: they are more than 1,048,449, and another one of the last.
_BODY_ROWS = (550_000, 550_000, 100)
#: More than the 100 ClickHouse partitions that servers allow a block by default.
MANY_PARTITIONS = 120
_LANDING_SECONDS = 10.0


def is_once(scratch: Scratch, table: str, rows: int, did: str) -> Seen:
    """Whether every server has so many rows."""
    found = scratch.rows(table)
    each = f"each of {len(found)} replicas" if len(found) > 1 else "the table"
    if all(there == rows for there in found):
        return judged(True, f"{did}: {each} has the {rows:,} rows once")
    there = ", ".join(f"{count:,}" for count in found)
    window = scratch.facts(table).window_blocks
    return judged(
        False, f"{did}: {there} rows where {rows:,} belong; the table's window keeps {window:,}"
    )


def same_block_twice(scratch: Scratch) -> Seen:
    """A block that is sent again is not stored again."""
    table = scratch.table()
    for _ in range(3):
        scratch.insert(table, block(), "a")
    return is_once(scratch, table, ROWS, "one block sent three times")


def identity(scratch: Scratch) -> Seen:
    """A block is known by its token alone; without tokens, by its rows with their offsets."""
    table = scratch.table()
    scratch.insert(table, block(), "a")
    if not scratch.tokens:
        scratch.insert(table, block(ROWS, ids_from=0), "b")
        return is_once(scratch, table, 2 * ROWS, "two blocks that differ in _offset only")
    scratch.insert(table, block(), "b")
    scratch.insert(table, block(value=2), "a")
    did = "the same rows under a second token, other rows under the first one"
    return is_once(scratch, table, 2 * ROWS, did)


def other_replica(scratch: Scratch) -> Seen:
    """All replicas of a table share one deduplication window."""
    if len(scratch.places) == 1:
        return not_applicable("one server was named: no other replica could be sent the block")
    table = scratch.table()
    for at in range(len(scratch.places)):
        scratch.insert(table, block(), "a", at=at)
    return is_once(scratch, table, ROWS, "one block sent to each replica")


def half_a_block(scratch: Scratch) -> Seen:
    """A block of which some ClickHouse partitions are stored is completed by its repeat."""
    table = scratch.table()
    # As a server leaves it that dies between two parts: the rows of one ClickHouse partition only.
    whole = block(rows=3, clickhouse_partitions=(0, 1, 2))
    scratch.insert(table, block(rows=1, clickhouse_partitions=(0,)), "a")
    for _ in range(2):
        scratch.insert(table, whole, "a", at=scratch.again)
    did = "a block of three ClickHouse partitions, after the part of one, and again"
    return is_once(scratch, table, 3, did)


def many_partitions(scratch: Scratch) -> Seen:
    """A block may span 120 ClickHouse partitions."""
    table = scratch.table(window=max(scratch.window, 1000))
    many = block(rows=MANY_PARTITIONS, clickhouse_partitions=range(MANY_PARTITIONS))
    for _ in range(2):
        scratch.insert(table, many, "a")
    return is_once(scratch, table, MANY_PARTITIONS, f"a block of {MANY_PARTITIONS}, twice")


def one_block(scratch: Scratch) -> Seen:
    """All Native blocks of an insert become one block of the server."""
    table = scratch.table()
    begins = (sum(_BODY_ROWS[:at]) for at in range(len(_BODY_ROWS)))
    body = b"".join(block(*each) for each in zip(begins, _BODY_ROWS, strict=True))
    scratch.insert(table, body, "a")
    # Read at once: merges leave what they merged for minutes.
    parts = len(scratch.parts(table))
    scratch.insert(table, body, "a")
    seen = is_once(scratch, table, sum(_BODY_ROWS), "a body of three Native blocks, twice")
    if parts != 1:
        return judged(False, f"{seen.what}, as {parts} parts")
    return seen


def views(scratch: Scratch) -> Seen:
    """Targets of views, of chained ones too, deduplicate with windows of their own."""
    source, first, second = scratch.table(), scratch.table(), scratch.table()
    forgetful = scratch.table(window=0)
    scratch.view(source, first)
    scratch.view(first, second)
    scratch.view(source, forgetful)
    for at in (0, scratch.again):
        scratch.insert(source, block(), "a", at=at)
    did = "one block sent twice to a table with a view, behind which is another view"
    seen = [is_once(scratch, table, ROWS, did) for table in (source, first, second)]
    worst = next((each for each in seen if each.verdict == "fails"), seen[-1])
    there = max(scratch.rows(forgetful))
    told = f"{worst.what}; the target of a view without a window has {there}"
    return _of_views(scratch, Seen(worst.verdict, told))


def view_that_failed(scratch: Scratch) -> Seen:
    """The repeat of a block whose view failed feeds the view, and doubles nothing."""
    source, target = scratch.table(), scratch.table()
    name = scratch.view(source, target, "throwIf(id < 1000000) = 0")
    try:
        scratch.insert(source, block(), "a")
    except SluiceError:
        stored = scratch.rows_at(source)
    else:
        return judged(False, "a view that throws did not fail the insert")
    scratch.everywhere(f"DROP TABLE {scratch.named(name)}")
    scratch.view(source, target)
    for _ in range(2):
        scratch.insert(source, block(), "a")
    did = f"a view threw ({stored} rows were stored before it); then it did not: the block again"
    of_source, of_target = (is_once(scratch, table, ROWS, did) for table in (source, target))
    return _of_views(scratch, of_source if of_source.verdict == "fails" else of_target)


def _of_views(scratch: Scratch, seen: Seen) -> Seen:
    if scratch.first.capabilities.feeds_views_again:
        return seen
    return not_applicable(
        "this server feeds no view with a repeated block, so Sluice refuses views there: "
        f"{seen.what}"
    )


def lost_acknowledgement(scratch: Scratch) -> Seen:
    """A block whose acknowledgement was lost is known again."""
    parts = urlsplit(scratch.first.url)
    if parts.scheme != "http" or parts.path:
        return not_applicable("the proxy knows inserts by http, on a URL without a path")
    table = scratch.table()
    with Proxy(Inserts, (str(parts.hostname), parts.port or 80)) as proxy:
        proxy.strike(LinkFault(Kind.DROP_REPLY))
        with scratch.access.connect(f"http://127.0.0.1:{proxy.port}") as through:
            try:
                scratch.insert(table, block(), "a", through=through)
            except InDoubtError:
                pass
            else:
                return judged(False, "the answer to an insert came through the proxy")
    if not scratch.wait(_LANDING_SECONDS, lambda: scratch.rows_at(table) == ROWS):
        return judged(False, "the insert whose answer was lost did not land")
    scratch.insert(table, block(), "a", at=scratch.again)
    return is_once(
        scratch, table, ROWS, "the answer was lost, the rows had landed, the block again"
    )


def added_column(scratch: Scratch) -> Seen:
    """A block is known again after a column was added."""
    table = scratch.table()
    scratch.insert(table, block(), "a")
    scratch.first.server.execute(
        f"ALTER TABLE {scratch.named(table)} ADD COLUMN more UInt8 DEFAULT 7"
    )
    scratch.insert(table, block(), "a")
    if scratch.tokens:
        return is_once(scratch, table, ROWS, "a block, an added column, the block again")
    there = max(scratch.rows(table))
    return not_applicable(
        f"without tokens a block is not known again after an ALTER ({there} rows of {ROWS}), so "
        "Sluice compares the columns right before each insert, and does not repeat it then"
    )


def restart(scratch: Scratch) -> Seen:
    """A token that is remembered after a restart has its part."""
    if scratch.replicated:
        return not_applicable("the windows of Replicated tables are in ZooKeeper or Keeper")
    return not_applicable("your server cannot be restarted for this")
