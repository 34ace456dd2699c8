"""Traces of ranges, sent by OTLP to a real HTTP server by a real loop and a real worker."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sluice.cli.logs import JsonFormatter
from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError
from sluice.core.planning import Limits
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record
from sluice.core.tracing import trace_of
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.specs import access_of, kafka_access, read_spec
from sluice.driver.state import PartitionState
from sluice.driver.tracing import Tracing, is_wanted, tracing_if_wanted
from sluice.spark.jobs import JobLostError, JobResult
from sluice.testbed.local.running import ClickHouse
from sluice.worker.assignment import Job, TaskEnvironment
from sluice.worker.tasks import load_task
from tests.driver.loop_world import World, run
from tests.ops.pipelines import Pipeline
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka
from tests.support.otlp import Receiver

P0 = TopicPartition("a", 0)
RECORD = Record(Kind.INTEND, 1, 1, 0, 10, "me", 0, "topicid", "spec", 1, 1 << 50)
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv(ENDPOINT, made.start())
    yield made
    made.stop()


def facts_of(span: Any) -> dict[str, Any]:
    return {
        each.key: each.value.int_value
        if each.value.HasField("int_value")
        else each.value.string_value
        for each in span.attributes
    }


def test_who_goes_on_with_a_range_goes_on_with_its_trace() -> None:
    first = trace_of("p.c", P0, RECORD)
    for record in (
        replace(RECORD, kind=Kind.RENEW, attempt=2, owner="other", batch=9),
        replace(RECORD, kind=Kind.SHORTEN, end=5),
        replace(RECORD, kind=Kind.PROBE, rest="abc"),
    ):
        assert trace_of("p.c", P0, record) == first
    others = (
        trace_of("p.d", P0, RECORD),
        trace_of("p.c", TopicPartition("a", 1), RECORD),
        trace_of("p.c", P0, replace(RECORD, generation=1)),
        trace_of("p.c", P0, replace(RECORD, begin=1)),
        trace_of("p.c", P0, replace(RECORD, bundle="0123456789abcdef.2")),
    )
    assert len({first, *others}) == 6
    bundled = replace(RECORD, bundle="0123456789abcdef.2")
    assert trace_of("p.c", TopicPartition("b", 7), bundled) == others[-1]


def test_the_usual_variables_say_whether() -> None:
    for wanted, environment in (
        (False, {}),
        (True, {ENDPOINT: "http://h:4318"}),
        (True, {"OTEL_TRACES_EXPORTER": "otlp"}),
        (False, {"OTEL_TRACES_EXPORTER": "none", ENDPOINT: "http://h:4318"}),
        (False, {"OTEL_SDK_DISABLED": "true", ENDPOINT: "http://h:4318"}),
    ):
        assert is_wanted(environment) is wanted
    for environment in (
        {"OTEL_TRACES_EXPORTER": "zipkin"},
        {ENDPOINT: "http://h:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
    ):
        with pytest.raises(ConfigurationError, match=r"zipkin|grpc"):
            is_wanted(environment)


def test_nothing_is_loaded_where_nobody_wants_traces() -> None:
    code = (
        "import sys, sluice.driver.pipeline, sluice.worker.tasks\n"
        "from sluice.driver.tracing import tracing_if_wanted\n"
        "with tracing_if_wanted({}) as tracing: assert tracing is None\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class Real(World):
    """The loop of this world has real tasks, of a real topic into a real table."""

    def __init__(self, pipeline: Pipeline) -> None:
        configuration = pipeline.configuration
        spec = read_spec(configuration, "dc1")
        source = TopicPartition(pipeline.topic, 0)
        super().__init__([source], spec.tables)
        self.source, self.spec, self.ids = source, spec, {pipeline.topic: pipeline.topic_id}
        self.planner = RecordPlanner(LoadSpecs(spec), "me", Limits(1000, 1 << 20, 1000), 60.0)
        self.now = time.time_ns() // 1_000_000
        self.real = TaskEnvironment(
            pipeline=configuration.pipeline,
            kafka=kafka_access(configuration, "dc1"),
            clickhouse=access_of(configuration),
            specs={spec.digest(): spec.canonical()},
            is_traced=True,
        )
        self.loses = False

    def _submit_job(self, job: Job) -> None:
        self.jobs.append(job)
        if self.loses:
            self.put(JobResult(job, error=JobLostError("lost")))
            return
        reports = tuple(report for task in job.tasks for report in load_task(self.real, task, 0))
        self.now = time.time_ns() // 1_000_000
        self.put(JobResult(job, reports=reports))


@pytest.fixture
def real(kafka: Kafka, embedded_server: ClickHouse, tmp_path: Path) -> Iterator[Real]:
    for database in fresh_database(embedded_server.url):
        with Server(embedded_server.url) as server:
            server.execute(
                f"CREATE TABLE {database}.orders (id UInt64, _topic String, _partition UInt32, "
                "_offset UInt64, _row UInt32, _source String) ENGINE = MergeTree ORDER BY id "
                "SETTINGS non_replicated_deduplication_window = 100"
            )
        pipeline = Pipeline(kafka, tmp_path, url=embedded_server.url, database=database)
        kafka.produce(pipeline.topic, [b'{"id":1}', b"broken", b'{"id":2}'])
        yield Real(pipeline)
        pipeline.close()


def test_a_range_has_one_trace_through_a_lost_worker_and_another_driver(
    real: Real, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = real
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders loader")
    world.ends[world.source], world.loses = 3, True
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter(False))
    logging.getLogger("sluice.loop").addHandler(handler)
    try:
        with tracing_if_wanted(os.environ) as world.tracing:
            first = world.loop()
            world.at(2_000, first.stopping.set)
            first.run(None, 0.0)
        record, background = world.group[world.source], first.states[world.source].background
        assert record.in_doubt
        # Another driver, of which only Kafka and the ledger know what was.
        world.loses = False
        state = PartitionState(world.source, record, background, 3, world.now)
        with tracing_if_wanted(os.environ) as world.tracing:
            run(world, world.loop([state]))
    finally:
        logging.getLogger("sluice.loop").removeHandler(handler)
    assert world.group[world.source].begin == 3
    assert receiver.services == {"orders loader"}
    ids = trace_of("loop", world.source, record)
    assert {span.trace_id for span in receiver.spans} == {ids.trace.to_bytes(16, "big")}
    (root,) = receiver.named("range")
    assert root.span_id == ids.root.to_bytes(8, "big") and not root.parent_span_id
    assert root.start_time_unix_nano == background.since_ms * 1_000_000
    tasks = receiver.named("task")
    assert facts_of(tasks[0])["error.type"] == "JobLostError"
    (inserted,), (decoded,), (fetched,) = map(receiver.named, ("insert", "decode", "fetch"))
    assert {span.parent_span_id for span in (inserted, decoded, fetched)} == {tasks[-1].span_id}
    for name in ("intent", "task", "settle"):
        assert {span.parent_span_id for span in receiver.named(name)} == {root.span_id}, name
    facts = facts_of(inserted)
    assert (facts["sluice.topic"], facts["sluice.partition"]) == world.source
    assert (facts["sluice.begin"], facts["sluice.end"], facts["sluice.rows"]) == (0, 3, 2)
    assert facts["sluice.token"].endswith("/s1/0-3") and facts["sluice.table"] == "orders"
    assert facts_of(decoded)["sluice.bad_messages"] == 1
    assert fetched.end_time_unix_nano <= decoded.start_time_unix_nano
    assert decoded.end_time_unix_nano <= inserted.start_time_unix_nano
    assert "broken" not in str(receiver.spans)
    logged = [json.loads(line) for line in written.getvalue().splitlines()]
    lost = next(each for each in logged if "is not loaded yet" in each["event"])
    assert (lost["trace_id"], lost["span_id"]) == (f"{ids.trace:032x}", f"{ids.root:016x}")


def test_a_sample_is_decided_by_the_id(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that all who are at a range decide alike."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.3")
    world = World([P0])
    world.ends[P0] = 1_000
    with tracing_if_wanted(os.environ) as world.tracing:
        run(world)
    kept = {span.trace_id for span in receiver.spans}
    assert 5 < len(kept) < 60  # of a hundred ranges
    assert {span.trace_id for span in receiver.named("range")} == kept
    assert {span.trace_id for span in receiver.named("settle")} == kept


def test_a_bug_in_telling_costs_no_range(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Tracing, "_span", lambda *_, **__: 1 // 0)
    world = World([P0])
    world.ends[P0] = 25
    with tracing_if_wanted(os.environ) as world.tracing:
        run(world)
    assert world.rows_of(P0) == [1] * 25
    assert "a trace is lost on a bug" in caplog.text


def test_without_the_library_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(ConfigurationError, match="is not installed") as refused:
        Tracing({ENDPOINT: "http://h:4318"})
    assert "pip install '.[tracing]'" in refused.value.hint
