"""resolve on a real broker and the embedded engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.errors import TerminalError
from sluice.core.ledger import Background
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import digest_of_rest
from sluice.core.records import Kind, may_follow
from sluice.core.tokens import row_source
from sluice.driver.probing import ClickHouseProber, DoubledRowsError
from sluice.driver.specs import read_spec
from sluice.driver.state import PartitionState
from sluice.machine.clock import now_ms
from sluice.ops.driver_decisions import DecisionRefusedError, freeze, resume
from sluice.ops.partition_decisions import situation
from sluice.ops.partition_decisions.carrying_out import apply
from sluice.ops.partition_decisions.positions import plan_adopt, plan_rewind
from sluice.ops.partition_decisions.resolving import Outcome, plan_resolve
from sluice.ops.partition_decisions.situation import LeaseRunsError, Plan
from tests.driver.loop_world import World
from tests.driver.starting import start
from tests.kafka.groups import intend
from tests.ops.pipelines import Pipeline, settled
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka

CREATE = """
CREATE TABLE {database}.orders
(id UInt64, _topic String, _partition UInt32, _offset UInt64, _row UInt32, _source String)
ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 1000
"""
BACKGROUND = Background({"orders/s1": 0}, 1, {}, 64_000)
DOUBT = intend("", 40, 60, deadline_ms=1, batch=7)


@pytest.fixture
def pipeline(kafka: Kafka, tmp_path: Path, embedded_url: str) -> Iterator[Pipeline]:
    for database in fresh_database(embedded_url):
        made = Pipeline(kafka, tmp_path, url=embedded_url, database=database)
        with Server(embedded_url) as server:
            server.execute(CREATE.format(database=database))
        made.fill(100)
        yield made
        made.close()


def execute(pipeline: Pipeline, statement: str) -> None:
    clickhouse = pipeline.configuration.clickhouse
    with Server(clickhouse.shards[0].replicas[0]) as server:
        server.execute(statement.format(database=clickhouse.database, topic=pipeline.topic))


def insert(pipeline: Pipeline, begin: int, end: int, generation: int = 0) -> None:
    source = row_source(
        pipeline=pipeline.configuration.pipeline,
        connector="dc1",
        topic_id=pipeline.topic_id,
        entry="orders",
        generation=generation,
    )
    execute(
        pipeline,
        f"INSERT INTO {{database}}.orders SELECT number, '{{topic}}', 0, number, 0, '{source}' "
        f"FROM numbers({begin}, {end - begin})",
    )


def in_doubt(pipeline: Pipeline) -> LoadSpec:
    """A driver died with [40, 60) in doubt, long ago."""
    spec = read_spec(pipeline.configuration, "dc1")
    counters = {f"{table.entry}/s1": 0 for table in spec.tables}
    pipeline.drive(DOUBT, background=replace(BACKGROUND, insert_counters=counters), spec=spec)
    return spec


def started(pipeline: Pipeline, today: LoadSpec, why: str | None) -> PartitionState:
    """What the next driver takes over.

    :param why: the recorded load spec cannot be executed.
    """
    world = World(pipeline.sources, today.tables)
    for table in world.tables.values():
        table.server = "one@1000"
    (state,) = start(pipeline, today, why=why, world=world)[0].states
    return state


def configure(pipeline: Pipeline, text: str) -> LoadSpec:
    """Today's load spec, by another file than before."""
    pipeline.path.write_text(text)
    pipeline.configuration = load(pipeline.path, {})
    return read_spec(pipeline.configuration, "dc1")


def with_more(pipeline: Pipeline) -> str:
    """The file, with one more table entry."""
    execute(pipeline, "CREATE TABLE {database}.more AS {database}.orders")
    more = f'[[table]]\nname = "more"\ntopics = ["{pipeline.topic}"]\n'
    return pipeline.path.read_text().replace("[[table]]", f"{more}[[table]]", 1)


def resolve(pipeline: Pipeline, outcome: Outcome) -> Plan:
    return plan_resolve(pipeline.configuration, pipeline.select(), outcome=outcome)


def said(plan: Plan) -> str:
    return "\n".join(plan.steps)


def test_as_loaded(pipeline: Pipeline) -> None:
    in_doubt(pipeline)
    before = pipeline.record()
    plan = resolve(pipeline, "loaded")
    assert "from [40, 60) in doubt to settled at 60" in plan.steps[0]
    assert "dead letters of [40, 60) are not written" in said(plan)
    apply(pipeline.configuration, plan)
    record = pipeline.record()
    assert (record.kind, record.begin, record.generation) == (Kind.SETTLE, 60, 0)
    assert (record.batch, record.spec) == (8, before.spec)
    assert may_follow(before, record)
    assert pipeline.ledger_bodies("record")[-1]["why"] == "resolve --as loaded"


def test_as_not_loaded(pipeline: Pipeline) -> None:
    insert(pipeline, 0, 3)
    spec = in_doubt(pipeline)
    before = pipeline.record()
    plan = resolve(pipeline, "not-loaded")
    assert "[40, 60) in doubt stays to be loaded, wholly" in said(plan)
    apply(pipeline.configuration, plan)
    record = pipeline.record()
    assert (record.kind, record.begin, record.end) == (Kind.PROBE, 40, 60)
    assert (record.rest, record.deadline_ms) == (digest_of_rest({}, record.attempt), 0)
    assert (record.attempt, record.batch, record.spec) == (2, 8, spec.digest())
    assert may_follow(before, record)
    body = pipeline.ledger_bodies("record")[-1]
    assert "rest" not in body
    assert body["bytes_max"] == 64_000
    assert body["since_ms"] > 1
    background = started(pipeline, spec, why=None).background
    assert background.rest == {"orders": ((40, 60),)}
    assert background.insert_counters.keys() == {"orders/s1"}


def test_a_range_from_before_a_table_entry_came_is_loaded_under_its_own_load_spec(
    pipeline: Pipeline,
) -> None:
    recorded = in_doubt(pipeline)
    today = configure(pipeline, with_more(pipeline))
    apply(pipeline.configuration, resolve(pipeline, "not-loaded"))
    state = started(pipeline, today, why=None)
    assert state.stopped is None
    assert (state.record.kind, state.record.spec) == (Kind.RENEW, recorded.digest())
    assert state.background.rest == {"orders": ((40, 60),)}
    assert state.background.insert_counters.keys() == {"orders/s1"}


@pytest.mark.slow
def test_a_range_of_a_table_entry_that_is_gone_is_loaded_into_the_others(
    pipeline: Pipeline,
) -> None:
    """The table was dropped after its entry was retired, so nobody can repeat or probe it."""
    before = pipeline.path.read_text()
    configure(pipeline, with_more(pipeline))
    in_doubt(pipeline)
    execute(pipeline, "DROP TABLE {database}.more")
    today = configure(pipeline, before)
    gone = "d.more is not there"
    state = started(pipeline, today, why=gone)
    assert state.stopped is not None and "--as loaded|not-loaded" in state.stopped.hint
    plan = resolve(pipeline, "not-loaded")
    apply(pipeline.configuration, plan)
    state = started(pipeline, today, why=gone)
    assert state.stopped is None
    assert "table entry more is not configured any more" in said(plan)
    assert (state.record.kind, state.record.spec) == (Kind.RENEW, today.digest())
    assert state.background.rest == {"orders": ((40, 60),)}


def test_a_probe_finds_what_is_missing(pipeline: Pipeline) -> None:
    in_doubt(pipeline)
    insert(pipeline, 40, 45)
    insert(pipeline, 50, 59)
    plan = resolve(pipeline, "probe")
    assert "without a row are: orders: 6 offsets, [45, 50) [59, 60)" in said(plan)
    apply(pipeline.configuration, plan)
    record = pipeline.record()
    rest = {"orders": ((45, 50), (59, 60))}
    assert (record.kind, record.rest) == (Kind.PROBE, digest_of_rest(rest, record.attempt))
    body = pipeline.ledger_bodies("record")[-1]
    assert body["rest"] == json.loads(json.dumps(rest))


def test_of_a_range_of_which_no_row_is_missing_the_dead_letters_are(pipeline: Pipeline) -> None:
    """No entry may take a message of it, which then is in no table."""
    spec = in_doubt(pipeline)
    insert(pipeline, 40, 60)
    plan = resolve(pipeline, "probe")
    assert "orders: none" in said(plan) and "settles with its dead letters" in said(plan)
    apply(pipeline.configuration, plan)
    record, rest = pipeline.record(), {"orders": ()}
    assert (record.kind, record.rest) == (Kind.PROBE, digest_of_rest(rest, record.attempt))
    state = started(pipeline, spec, why=None)
    assert (state.record.kind, state.background.rest) == (Kind.RENEW, rest)


def test_a_probe_is_refused_with_its_reason(pipeline: Pipeline) -> None:
    in_doubt(pipeline)
    insert(pipeline, 40, 45)
    insert(pipeline, 40, 42)
    with pytest.raises(DoubledRowsError, match=r"offsets \[40, 42\)"):
        resolve(pipeline, "probe")
    execute(
        pipeline,
        "CREATE MATERIALIZED VIEW {database}.seen ENGINE = MergeTree ORDER BY id "
        "AS SELECT id FROM {database}.orders",
    )
    with pytest.raises(TerminalError, match="feeds 1 materialized view") as caught:
        resolve(pipeline, "probe")
    assert "--as loaded" in caught.value.hint and "--as not-loaded" in caught.value.hint


def test_nobody_looks_into_what_a_person_has_frozen(pipeline: Pipeline, embedded_url: str) -> None:
    """They may have detached some of it, which is attached again and is not missing."""
    in_doubt(pipeline)
    configuration, other = pipeline.configuration, {"by": "bob", "why": "another disk"}
    server = embedded_url.rpartition("/")[2]
    for place in ({"table": "orders"}, {"replica": server}, {}):
        freeze(configuration, **other, **place)
        with pytest.raises(DecisionRefusedError, match=r"is frozen by bob since .*: another disk"):
            resolve(pipeline, "probe")
        assert "stays to be loaded, wholly" in said(resolve(pipeline, "not-loaded"))
        resume(configuration, **other, **place)
    assert "without a row are: orders: 20 offsets" in said(resolve(pipeline, "probe"))


def test_what_is_frozen_while_it_is_looked_at_counts_for_nothing(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_doubt(pipeline)

    def close(prober: ClickHouseProber) -> None:
        freeze(pipeline.configuration, by="bob", why="another disk", table="orders")
        ended(prober)

    ended = ClickHouseProber.close
    monkeypatch.setattr(ClickHouseProber, "close", close)
    with pytest.raises(DecisionRefusedError, match="table orders is frozen by bob"):
        resolve(pipeline, "probe")


def test_a_probe_needs_the_recorded_spec(pipeline: Pipeline) -> None:
    pipeline.drive(DOUBT, background=BACKGROUND)
    with pytest.raises(DecisionRefusedError, match="is not in the ledger"):
        resolve(pipeline, "probe")


def test_a_rewound_partition_is_probed_for_what_came_after_it(pipeline: Pipeline) -> None:
    spec = read_spec(pipeline.configuration, "dc1")
    pipeline.drive(replace(DOUBT, generation=1), background=BACKGROUND, spec=spec)
    insert(pipeline, 40, 60)
    insert(pipeline, 40, 50, generation=1)
    assert "without a row are: orders: 10 offsets, [50, 60)" in said(resolve(pipeline, "probe"))


@pytest.mark.parametrize("outcome", ["loaded", "not-loaded", "probe"])
def test_nothing_is_in_doubt(pipeline: Pipeline, outcome: Outcome) -> None:
    pipeline.drive(settled(40))
    with pytest.raises(DecisionRefusedError, match="settled at 40: no range is in doubt"):
        resolve(pipeline, outcome)


def test_those_that_are_decided_already_are_named(kafka: Kafka, tmp_path: Path) -> None:
    """Those of two owners are two transactions, of which the second one may fail."""
    pipeline = Pipeline(kafka, tmp_path, partitions=3)
    for number in range(3):
        pipeline.fill(100, number)
        pipeline.drive(DOUBT if number == 1 else settled(60), partition=number)
    everything = pipeline.select(0, 1, 2)
    with pytest.raises(DecisionRefusedError, match="no range is in doubt") as caught:
        plan_resolve(pipeline.configuration, everything, outcome="loaded")
    assert f"{pipeline.topic}[0] is settled at 60" in str(caught.value)
    assert f"{pipeline.topic}[2] is settled at 60" in str(caught.value)
    assert "Leave out --partition 0 2" in caught.value.hint
    one = pipeline.select(1)
    (decided,) = plan_resolve(pipeline.configuration, one, outcome="loaded").decided
    assert decided.source == pipeline.sources[1]
    pipeline.close()


def test_a_clock_that_is_ahead_ends_no_lease(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever inserts goes by the server's clock."""
    pipeline.drive(replace(DOUBT, deadline_ms=now_ms() + 600_000), background=BACKGROUND)
    monkeypatch.setattr(situation, "now_ms", lambda: now_ms() + 11 * 60_000)
    where = pipeline.select()
    for plan_for in (
        *(partial(plan_resolve, outcome=outcome) for outcome in ("loaded", "not-loaded", "probe")),
        partial(plan_adopt, offset=60),
        partial(plan_rewind, to=5),
    ):
        with pytest.raises(LeaseRunsError):
            plan_for(pipeline.configuration, where)
    plan = plan_adopt(pipeline.configuration, replace(where, take_over=True), offset=60)
    assert "tasks of driver may still insert [40, 60) until" in said(plan)


def test_what_is_not_ours_cannot_be_resolved(pipeline: Pipeline) -> None:
    in_doubt(pipeline)
    pipeline.kafka.commit_as_consumer(pipeline.name, pipeline.topic, 3)
    with pytest.raises(DecisionRefusedError, match="someone else committed") as caught:
        resolve(pipeline, "loaded")
    assert "sluice adopt" in caught.value.hint


def test_offsets_that_are_gone_can_be_called_loaded_only(pipeline: Pipeline) -> None:
    in_doubt(pipeline)
    pipeline.kafka.delete_records(pipeline.topic, 50)
    for outcome in ("not-loaded", "probe"):
        with pytest.raises(DecisionRefusedError, match="offset 40 is gone"):
            resolve(pipeline, outcome)  # type: ignore[arg-type]
    apply(pipeline.configuration, resolve(pipeline, "loaded"))
    assert pipeline.record().begin == 60


def test_a_range_beyond_the_logs_end_is_refused(pipeline: Pipeline) -> None:
    pipeline.drive(intend("", 90, 120, deadline_ms=1))
    with pytest.raises(DecisionRefusedError, match="offset 120 is not there yet"):
        resolve(pipeline, "loaded")
