"""Ranges that are looked for together: what cannot be told of one holds up no other. On real
servers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from queue import SimpleQueue

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import query_id_of
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.vanishing import CannotTellError
from sluice.core.claims import Deduplicate
from sluice.core.ledger import Rest
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record
from sluice.core.tokens import block_token, row_source
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber, DoubledRowsError, StillRunningError
from sluice.kafka.clients import KafkaAccess
from tests.driver.loop_world import table_spec
from tests.support.running_query import running_query

RECORD = Record(Kind.INTEND, 1, 1, 0, 10, "a", 0, "topicid", "text", 1, 0)


_ALL_LINEAGE = "id, _topic, _partition, _offset, _row, _source"


def sought(partition: int, generation: int = 0) -> Sought:
    found = Range(TopicPartition("events", partition), 0, 10)
    return Sought(found, replace(RECORD, generation=generation))


def source_of(generation: int) -> str:
    return row_source(
        pipeline="p", connector="dc1", topic_id="topicid", entry="t", generation=generation
    )


@pytest.fixture
def spec(server: Server, database: str) -> Iterator[LoadSpec]:
    server.execute(
        f"CREATE TABLE {database}.t (id UInt64, _topic String, _partition UInt32, _offset UInt64, "
        "_row UInt32, _source String) ENGINE = MergeTree ORDER BY id"
    )
    columns = describe_table(server, database, "t").columns
    table = replace(
        table_spec("t", ("events",)),
        database=database,
        columns=columns,
        lineage=tuple(column.name for column in columns if column.name.startswith("_")),
    )
    yield LoadSpec("p", "dc1", "chdb 1", 1 << 20, (table,))


def probed(server: Server, spec: LoadSpec, ranges: Sequence[Sought]) -> dict[int, ProbeFound]:
    access = ClickHouseAccess({"s1": (server.url,)}, "default", "", "single")
    prober = ClickHouseProber(access, "p", KafkaAccess("dc1", "127.0.0.1:1"))
    ended: SimpleQueue[ProbeEnded] = SimpleQueue()
    try:
        prober.submit(ranges, spec, 1, ended.put)
        found = ended.get(timeout=60).found
    finally:
        prober.close()
    assert [each.source for each in found] == [each.block_range.source for each in ranges]
    return {each.source.partition: each for each in found}


def test_each_range_has_an_answer_of_its_own(server: Server, database: str, spec: LoadSpec) -> None:
    def put(partition: int, offsets: Sequence[int], source: str) -> None:
        rows = ", ".join(f"({o}, 'events', {partition}, {o}, 0, '{source}')" for o in offsets)
        server.execute(f"INSERT INTO {database}.t VALUES {rows}")

    put(0, range(10), source_of(0))
    put(2, range(4), source_of(0))
    put(3, [1, 1], source_of(0))
    put(4, [5], "")
    put(5, range(10), source_of(0))
    ranges = [*map(sought, range(5)), sought(5, generation=1)]
    found = probed(server, spec, ranges)
    missing = {number: each.rest for number, each in found.items() if each.error is None}
    assert missing == {
        0: {"t": ()},
        1: {"t": ((0, 10),)},
        2: {"t": ((4, 10),)},
        5: {"t": ((0, 10),)},  # rows from before a rewind are not its own
    }
    assert isinstance(found[3].error, DoubledRowsError)
    assert isinstance(found[4].error, CannotTellError)


@pytest.mark.parametrize(
    ("sorted_by", "deduplicates", "may_be_parked", "generation", "missing"),
    [
        (_ALL_LINEAGE, True, False, 0, ((4, 10),)),
        (_ALL_LINEAGE, False, True, 0, ((4, 10),)),
        (_ALL_LINEAGE, False, True, 1, ((0, 10),)),
        (_ALL_LINEAGE, False, False, 0, ((0, 10),)),
        ("id", True, True, 0, ((0, 10),)),
    ],
    ids=["can be told", "may be parked", "rewound", "nothing is left out", "cannot be told"],
)
def test_what_takes_everything_again_is_looked_at_where_a_repeat_may_leave_rows_out(
    server: Server,
    database: str,
    spec: LoadSpec,
    sorted_by: str,
    deduplicates: bool,
    may_be_parked: bool,
    generation: int,
    missing: tuple[tuple[int, int], ...],
) -> None:
    """Another message may own the key of a row that is there, once the row's claim is over: sent
    again, that message would count as a duplicate (R20, R22). And who replays a message that was
    parked doubles the rows that were there."""
    server.execute(f"DROP TABLE {database}.t")
    server.execute(
        f"CREATE TABLE {database}.t (id UInt64, _topic String, _partition UInt32, _offset UInt64, "
        f"_row UInt32, _source String) ENGINE = ReplacingMergeTree ORDER BY ({sorted_by})"
    )
    rows = ", ".join(f"({o}, 'events', 1, {o}, 0, '{source_of(0)}')" for o in range(4))
    server.execute(f"INSERT INTO {database}.t VALUES {rows}")
    rule = Deduplicate(("id",), 3600, "scope") if deduplicates else None
    table = replace(spec.tables[0], delivery="replacing", deduplicate=rule)
    known: Rest = {"t": ((0, 10),)}
    parkable = ("t",) if may_be_parked else ()
    one = replace(sought(1, generation), known=known, may_be_parked=parkable)
    found = probed(server, replace(spec, tables=(table,)), [one])
    assert found[1].rest == {"t": missing}


def test_a_range_that_may_still_be_inserted_waits_alone(
    server: Server, database: str, spec: LoadSpec
) -> None:
    token = block_token(
        pipeline="p",
        generation=0,
        connector="dc1",
        topic_id="topicid",
        block_range=sought(1).block_range,
        entry="t",
        target=f"{database}.t",
        shard="s1",
    )
    with running_query(server, query_id_of(token, "1")):
        found = probed(server, spec, [sought(0), sought(1)])
    assert found[0].rest == {"t": ((0, 10),)} and found[0].error is None
    assert isinstance(found[1].error, StillRunningError)


def test_a_server_that_is_away_is_told_of_each(server: Server, spec: LoadSpec) -> None:
    access = ClickHouseAccess({"s1": ("http://127.0.0.1:1",)}, "default", "", "single")
    prober = ClickHouseProber(access, "p", KafkaAccess("dc1", "127.0.0.1:1"))
    ended: SimpleQueue[ProbeEnded] = SimpleQueue()
    prober.submit([sought(0), sought(1)], spec, 1, ended.put)
    found = ended.get(timeout=60).found
    prober.close()
    said = {str(each.error) for each in found}
    assert len(found) == 2 and len(said) == 1
    assert "the probe of events[0][0, 10) and 1 more needs all 1 replicas" in said.pop()
