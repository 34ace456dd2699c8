"""Experiments: what a server says, and what it makes of values."""

from __future__ import annotations

import threading
from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from sluice.clickhouse.capabilities import insert_settings
from sluice.clickhouse.insert import query_id_prefix
from sluice.clickhouse.probe import present_offsets, running_query_ids
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.sql import literal
from sluice.clickhouse.system import said_of_table
from sluice.core.errors import SluiceError, TerminalError
from sluice.core.ranges import Range, TopicPartition
from sluice.prove.findings import Seen, judged, not_applicable
from sluice.prove.scratch import LOADED_BY, ROWS, TOPIC, Scratch, block

_DELETE_SECONDS = _MERGE_SECONDS = 20.0


def settings(scratch: Scratch) -> Seen:
    """Every setting that Sluice sends with an insert is accepted, and in force."""
    """At every server."""
    told = []
    for at, place in enumerate(scratch.places):
        sent = insert_settings(place.capabilities)
        names = ", ".join(map(literal, sent))
        rows = place.server.query(
            f"SELECT name, value FROM system.settings WHERE name IN ({names})", settings=sent
        )
        there = {str(row["name"]): str(row["value"]) for row in rows}
        other = [f"{name} is {there.get(name)}" for name in sent if there.get(name) != sent[name]]
        if other:
            return judged(False, f"{place.url} was sent other values: {', '.join(other)}")
        scratch.insert(scratch.table(), block(), "a", at=at)
        told.append(f"{len(sent)} of them are known to {place.capabilities.version_text}")
    return judged(True, f"{'; '.join(told)}; they are accepted, and in force")


def conversion(scratch: Scratch) -> Seen:
    """A column of another type than the table's is refused, not converted."""
    table = scratch.table()
    try:
        scratch.insert(table, block(value=300, value_type="UInt16"), "a")
    except SluiceError as error:
        code = error.code if isinstance(error, ServerError) else 0
        return judged(
            not any(scratch.rows(table)), f"a block with a UInt16 for a UInt8 was refused ({code})"
        )
    became = scratch.ask(f"SELECT max(v) AS v FROM {scratch.named(table)}")[0]["v"]
    return judged(False, f"300 of a UInt16 was stored in a UInt8 as {became}")


def time_zone(scratch: Scratch) -> Seen:
    """The time zone that the server names reads its texts, and chooses ClickHouse partitions."""
    said = scratch.first.capabilities.time_zone
    try:
        zone = ZoneInfo(said)
    except (ZoneInfoNotFoundError, ValueError):
        return not_applicable(f"this machine has no time zone {said}; install tzdata")
    midnight = int(datetime(2024, 6, 15, tzinfo=zone).timestamp())
    read = "SELECT toUnixTimestamp(toDateTime('2024-06-15 00:00:00')) AS moment"
    moments = {int(scratch.ask(read, at)[0]["moment"]) for at in range(len(scratch.places))}
    table = scratch.table(partition_by="toYYYYMMDD(ts)")
    scratch.insert(table, block(rows=2, moments=(midnight - 1, midnight)), "a")
    days = sorted({*scratch.parts(table, "partition")})
    shown = f"midnight of {said} is {midnight}; as a text it was read as {sorted(moments)}"
    return judged(
        moments == {midnight} and days == ["20240614", "20240615"],
        f"{shown}; it and the second before are in the ClickHouse partitions {', '.join(days)}",
    )


def running_insert(scratch: Scratch) -> Seen:
    """An insert is to be seen in system.processes by its query id while it runs."""
    source, target = scratch.table(), scratch.table()
    scratch.view(source, target, "sleep(1) = 0")
    failures: list[SluiceError] = []

    def insert() -> None:
        with scratch.access.connect(scratch.first.url) as own:
            try:
                scratch.insert(source, block(), "a", through=own)
            except SluiceError as error:
                failures.append(error)

    prefix = query_id_prefix(scratch.token(source, "a"))
    seen: list[str] = []
    inserting = threading.Thread(target=insert)
    inserting.start()
    while inserting.is_alive() and not seen:
        seen = running_query_ids(scratch.first.server, prefix)
    inserting.join()
    if failures:
        return judged(False, f"the insert failed: {failures[0]}")
    return judged(
        bool(seen), f"an insert of a second was {'' if seen else 'not '}seen while it ran"
    )


def _found(scratch: Scratch, table: str) -> int:
    """How many offsets a probe finds."""
    sought = Range(TopicPartition(TOPIC, 0), 0, 4 * ROWS)
    runs = present_offsets(scratch.first.server, scratch.facts(table), sought, LOADED_BY)
    return sum(run.end - run.begin for run in runs)


def _merge(scratch: Scratch, table: str) -> None:
    """Have all parts of a table merged. Once is not enough where a replica is busy [18.16]."""
    server = scratch.first.server

    def is_one() -> bool:
        server.execute(f"OPTIMIZE TABLE {scratch.named(table)} FINAL")
        return len(scratch.parts(table, among="active")) <= 1

    scratch.wait(_MERGE_SECONDS, is_one)


def merges(scratch: Scratch) -> Seen:
    """A merge of a MergeTree table hides no row from a probe."""
    table = scratch.table()
    for number in range(3):
        scratch.insert(table, block(number * ROWS, ids_from=0), f"{number}")
    _merge(scratch, table)
    found = _found(scratch, table)
    return judged(
        found == 3 * ROWS, f"a probe finds {found} of {3 * ROWS} offsets after OPTIMIZE FINAL"
    )


def merging_engines(scratch: Scratch) -> Seen:
    """Engines that merge rows away hide them from a probe."""
    found = {}
    for engine in ("ReplacingMergeTree", "SummingMergeTree"):
        table = scratch.table(engine)
        for number in range(2):
            scratch.insert(table, block(number * ROWS, ids_from=0), f"{number}")
        _merge(scratch, table)
        found[engine] = _found(scratch, table)
    told = ", ".join(f"{count} in a {engine}" for engine, count in found.items())
    is_so = all(count < 2 * ROWS for count in found.values())
    return judged(is_so, f"of {2 * ROWS} offsets a probe finds after OPTIMIZE FINAL {told}")


def deletes(scratch: Scratch) -> Seen:
    """Rows that were deleted are hidden from a probe, and system.mutations tells of it."""
    table = scratch.table()
    scratch.insert(table, block(), "a")
    gone = 10
    told: list[str] = []
    for statement in (
        f"ALTER TABLE {scratch.named(table)} DELETE WHERE id < {gone}",
        f"DELETE FROM {scratch.named(table)} WHERE id < {2 * gone}",
    ):
        word = statement.partition(" ")[0]
        known = _mutations(scratch, table)
        try:
            scratch.first.server.execute(statement)
        except TerminalError:
            told.append(f"{word} is unknown here")
            continue
        left = ROWS - gone * (2 if word == "DELETE" else 1)
        scratch.wait(_DELETE_SECONDS, lambda left=left: _found(scratch, table) == left)  # type: ignore[misc]
        found = _found(scratch, table)
        more = _mutations(scratch, table) - known
        told.append(f"{word}: a probe finds {found} of {ROWS}, system.mutations has {more} more")
        if found == left and more < 1:
            return judged(False, f"{'; '.join(told)}: a probe cannot know that rows were deleted")
    scratch.insert(table, block(), "a")
    after = scratch.rows_at(table)
    return judged(True, f"{'; '.join(told)}; the block again: {after} rows")


def _mutations(scratch: Scratch, table: str) -> int:
    select = "SELECT count() AS n FROM system.mutations"
    rows = said_of_table(scratch.first.server, select, scratch.database, table)
    return int(rows[0]["n"])
