"""A probe is not believed while an insert of its range may still run: under any of its tokens, on
any replica; and what an insert may take ends with its lease. On real servers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import InsertReply, Server
from sluice.clickhouse.insert import query_id_of
from sluice.clickhouse.schema import describe_table
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record
from sluice.core.tokens import block_token
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber, StillRunningError
from sluice.kafka.clients import KafkaAccess
from tests.driver.loop_world import table_spec
from tests.support.block_loader import Loader
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.running_query import running_query

SOURCE = TopicPartition("events", 3)
RANGE = Range(SOURCE, 0, 10)
#: As of a range that was probed before, and whose rest was sent.
RECORD = Record(Kind.PROBE, 1, 2, 0, 10, "a", 0, "topicid", "text", 1, 0, rest="0123456789abcdef")


def token_of(entry: str, rest: str) -> str:
    return block_token(
        pipeline="p",
        generation=0,
        connector="dc1",
        topic_id="topicid",
        block_range=RANGE,
        entry=entry,
        target=f"default.{entry}",
        shard="s1",
        rest=rest,
    )


def probe(urls: tuple[str, ...], spec: LoadSpec, record: Record = RECORD) -> ProbeFound:
    access = ClickHouseAccess({"s1": urls}, "default", "", "single")
    prober = ClickHouseProber(access, "p", KafkaAccess("dc1", "127.0.0.1:1"))
    found: SimpleQueue[ProbeEnded] = SimpleQueue()
    try:
        prober.submit([Sought(RANGE, record)], spec, 1, found.put)
        return found.get(timeout=60).found[0]
    finally:
        prober.close()


@pytest.fixture
def replicated_text(old: Server, second: Server) -> Iterator[LoadSpec]:
    """A table on both 18.16 replicas."""
    name = f"t{uuid.uuid4().hex[:8]}"
    for each in (old, second):
        each.execute(
            f"CREATE TABLE {name} (id UInt64, _topic String, _partition UInt32, _offset UInt64, "
            "_row UInt32, _source String) "
            f"ENGINE = ReplicatedMergeTree('/running/{name}', '{{replica}}') ORDER BY id"
        )
    columns = describe_table(old, "default", name).columns
    table = replace(
        table_spec(name, ("events",)),
        database="default",
        columns=columns,
        lineage=tuple(column.name for column in columns if column.name.startswith("_")),
        zookeeper_paths=(("s1", f"/running/{name}"),),
    )
    yield LoadSpec("p", "dc1", "chdb 1", 1 << 20, (table,))
    for each in (old, second):
        each.execute(f"DROP TABLE {name}")


@pytest.mark.parametrize(
    ("rest", "place"),
    [
        pytest.param("", 0, id="first token-first replica"),
        pytest.param(RECORD.rest, 1, id="token of the rest-second replica"),
        pytest.param("", 1, id="first token-second replica", marks=pytest.mark.slow),
        pytest.param(RECORD.rest, 0, id="token of the rest-first replica", marks=pytest.mark.slow),
    ],
)
def test_a_probe_waits_for_an_insert_under_any_token_on_any_replica(
    old: Server, second: Server, replicated_text: LoadSpec, rest: str, place: int
) -> None:
    server, urls = (old, second)[place], (old.url, second.url)
    token = token_of(replicated_text.tables[0].entry, rest)
    with running_query(server, query_id_of(token, "1")):
        found = probe(urls, replicated_text)
    assert isinstance(found.error, StillRunningError), found
    assert server.url in str(found.error)
    found = probe(urls, replicated_text)
    assert found.error is None
    assert found.rest == {replicated_text.tables[0].entry: ((0, 10),)}


def test_a_probe_waits_until_the_lease_is_over_by_the_clock_of_each_server(
    old: Server, second: Server, replicated_text: LoadSpec
) -> None:
    """As where the clock of the driver was set ahead, so that it took the lease for over."""
    urls, now_ms = (old.url, second.url), int(time.time() * 1000)
    found = probe(urls, replicated_text, replace(RECORD, deadline_ms=now_ms + 60_000))
    assert isinstance(found.error, StillRunningError), found
    assert "by the clock of" in str(found.error)
    found = probe(urls, replicated_text, replace(RECORD, deadline_ms=now_ms - 7_000))
    assert found.error is None


@pytest.mark.parametrize(("lease_seconds", "time_out"), [(60.0, 600.0), (600.0, 60.0)])
def test_what_an_insert_may_take_is_the_lesser_of_lease_and_time_out(
    clickhouse_18: ClickHouseServer,
    monkeypatch: pytest.MonkeyPatch,
    lease_seconds: float,
    time_out: float,
) -> None:
    """Asked directly before the block is sent, of what a task does."""
    table = f"t{uuid.uuid4().hex[:8]}"
    with Server(clickhouse_18.url) as server:
        server.execute(
            f"CREATE TABLE {table} (id UInt64, _topic String, _partition UInt32, _offset UInt64, "
            "_row UInt32) ENGINE = MergeTree ORDER BY id"
        )
    left: list[float] = []
    insert = Server.insert

    def seen(self: Server, plan: object, lease: object, *more: float) -> InsertReply:
        def ask() -> float:
            left.append(lease())  # type: ignore[operator]
            return left[-1]

        return insert(self, plan, ask, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(Server, "insert", seen)
    loader = Loader([clickhouse_18], table, "", (clickhouse_18.url,))
    loader.deadline_ms = int((time.time() + lease_seconds) * 1000)
    loader.insert_timeout_seconds = time_out
    loader.insert()
    (seconds,) = left
    most = min(lease_seconds, time_out)
    assert most - 50 < seconds <= most
