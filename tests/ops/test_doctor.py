"""The doctor against a real broker, the embedded engine and ClickHouse 18.16."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import confluent_kafka as ck
import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.core.load_spec import Column
from sluice.kafka.wire import native
from sluice.machine import compiled
from sluice.machine.clock import now_ms
from sluice.ops import doctor, doctor_clickhouse, doctor_decode
from sluice.ops.doctor import Finding, examine, refusal
from sluice.ops.doctor_clickhouse import clock_ahead_ms, look_at_replica
from sluice.ops.doctor_findings import Examination
from sluice.testbed.local.children import free_ports
from tests.config.support import load_text
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka

LINEAGE = "_topic String, _partition UInt32, _offset UInt64, _row UInt32, _source String"
WINDOW = "SETTINGS non_replicated_deduplication_window = 1000"


def configuration_of(
    folder: Path,
    brokers: str,
    urls: list[str],
    database: str,
    topics: list[str],
    durability: str = "single",
    user: str = "default",
    more: str = "",
) -> Configuration:
    servers = ", ".join(f'"{url}"' for url in urls)
    names = ", ".join(f'"{topic}"' for topic in topics)
    return load_text(
        folder,
        f"""
[pipeline]
name = "doctor-{os.getpid()}"
[[connector]]
name = "dc1"
brokers = "{brokers}"
topics = [{names}]
[batch]
[clickhouse]
database = "{database}"
shards = {{ s1 = [{servers}] }}
user = "{user}"
durability = "{durability}"
[[table]]
name = "orders"
topics = [{names}]
{more}
""",
    )


@pytest.fixture
def database(embedded_url: str) -> Iterator[str]:
    yield from fresh_database(embedded_url)


def create(server: Server, database: str, more: str = WINDOW, columns: str = "") -> None:
    server.execute(
        f"CREATE TABLE {database}.orders (id UInt64, d Date, {LINEAGE}{columns}) "
        f"ENGINE = MergeTree ORDER BY id {more}"
    )


def bad(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if finding.level != "ok"}


def errors(findings: list[Finding]) -> list[str]:
    return sorted(finding.check for finding in findings if finding.level == "error")


def test_a_pipeline_in_order(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database)
    topic = kafka.topic(4)
    configuration = configuration_of(tmp_path, kafka.brokers, [embedded_url], database, [topic])
    begun = time.monotonic()
    findings = examine(configuration)
    assert time.monotonic() - begun < 40
    # One broker is all that can be said against it.
    assert set(bad(findings)) == {"brokers"} and errors(findings) == []
    checks = {finding.check for finding in findings}
    assert checks >= {
        *("kafka", "transactions", "offsets-retention", "broker-limits", "topic", "group"),
        *("cleanup-policy", "retention", "replication", "spark-memory"),
        *("clickhouse", "clock", "rights", "insert", "window", "insert-counter", "parts", "tokens"),
        *("lineage", "engine", "durability", "decoding", "partition-key"),
    }
    assert configuration.ledger_topic not in kafka.admin.list_topics(timeout=10).topics
    assert embedded.query(f"SELECT count() AS n FROM {database}.orders") == [{"n": 0}]


def with_patterns(configuration: Configuration, connector: str, *tables: str) -> Configuration:
    """The same without names: expressions of the connector and of an entry for each of `tables`."""
    (source,), (table,) = configuration.connectors, configuration.tables
    return replace(
        configuration,
        connectors=(replace(source, topics=(), topic_pattern=connector),),
        tables=tuple(
            replace(table, name=f"orders{number}", topics=(), topic_pattern=pattern)
            for number, pattern in enumerate(tables)
        ),
    )


@pytest.mark.slow
def test_topics_by_an_expression(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database)
    names = [kafka.topic(2, f"{database}.{name}") for name in ("a", "b")]
    named = configuration_of(tmp_path, kafka.brokers, [embedded_url], database, names)
    every, one = f"{database}\\..*", f"{database}\\.a"

    def found(connector: str, *tables: str) -> list[tuple[str, str]]:
        findings = examine(with_patterns(named, connector, *tables))
        assert {f.check for f in findings if f.level == "error"} <= {"topic-pattern"}
        return [(f.level, f.what) for f in findings if f.check == "topic-pattern"]

    assert found(every, every) == [("ok", f"takes {database}.a, {database}.b")]
    ((level, what),) = found(every, one)
    assert level == "warning" and f"no [[table]] takes {database}.b" in what
    assert [level for level, _ in found("nowhere", every)] == ["warning"]
    assert [level for level, _ in found(one, one, f"{database}\\.b")] == ["ok", "warning"]
    ((level, what),) = found(one, one, every)
    assert level == "error" and f"goes to {database}.orders twice" in what


def test_a_table_without_a_window_is_fixed_by_the_statement_given(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database, more="")
    configuration = configuration_of(
        tmp_path, kafka.brokers, [embedded_url], database, [kafka.topic(2)]
    )
    finding = bad(examine(configuration))["window"]
    assert (finding.level, finding.where) == ("error", f"{database}.orders on {embedded_url}")
    embedded.execute(finding.fix)
    assert errors(examine(configuration)) == []


def test_what_breaks_the_promise_in_a_table(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(
        embedded,
        database,
        f"PARTITION BY toYYYYMM(seen) {WINDOW}, async_insert = 1",
        ", seen DateTime DEFAULT now(), twice UInt64 MATERIALIZED id * 2, x UInt64 DEFAULT twice",
    )
    embedded.execute(f"CREATE TABLE {database}.copy (id UInt64) ENGINE = MergeTree ORDER BY id")
    embedded.execute(
        f"CREATE MATERIALIZED VIEW {database}.view TO {database}.copy "
        f"AS SELECT id FROM {database}.orders"
    )
    configuration = configuration_of(
        tmp_path, kafka.brokers, [embedded_url], database, [kafka.topic()]
    )
    found = examine(configuration)
    assert set(errors(found)) == {
        *("async-insert", "window", "partition-key", "decoding"),
    }
    assert f"{database}.copy (written by the view {database}.view)" in bad(found)["window"].what
    assert "now" in bad(found)["partition-key"].what
    assert "default of x refers to twice" in bad(found)["decoding"].what
    assert bad(found)["views"].level == "warning"


def test_topics_that_lose_messages_and_those_that_are_missing(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database)
    compacted = kafka.topic(cleanup_policy="compact")
    short = kafka.topic(retention_ms="60000")
    configuration = configuration_of(
        tmp_path, kafka.brokers, [embedded_url], database, [compacted, short, "nowhere"]
    )
    kafka.topic(2, name=configuration.ledger_topic, retention_ms="1000")
    try:
        found = bad(examine(configuration))
    finally:
        kafka.delete_topic(configuration.ledger_topic)
    assert (found["cleanup-policy"].level, found["retention"].level) == ("error", "warning")
    assert compacted in found["cleanup-policy"].where and short in found["retention"].where
    assert found["topic"].level == "error" and "--create --topic nowhere" in found["topic"].fix
    assert "expire" in found["ledger"].what
    assert "1048588 bytes" in found["ledger-size"].what


def test_a_group_with_members_is_refused(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database)
    topic = kafka.topic()
    configuration = configuration_of(tmp_path, kafka.brokers, [embedded_url], database, [topic])
    with _member(kafka, configuration.group("dc1"), topic):
        found = bad(examine(configuration))
    assert found["group"].level == "error" and "stray" in found["group"].what


@contextmanager
def _member(kafka: Kafka, group: str, topic: str) -> Iterator[None]:
    consumer = ck.Consumer(
        {"bootstrap.servers": kafka.brokers, "group.id": group, "client.id": "stray"}
    )
    consumer.subscribe([topic])
    try:
        kafka.until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()))
        yield
    finally:
        consumer.close()


@pytest.mark.slow
def test_what_is_away_hides_nothing_and_costs_seconds(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database, more="")
    dead = [f"127.0.0.1:{port}" for port in free_ports(2)]
    begun = time.monotonic()
    broker_away = examine(configuration_of(tmp_path, dead[0], [embedded_url], database, ["x"]))
    assert errors(broker_away) == ["kafka", "window"]
    topic = kafka.topic(cleanup_policy="compact")
    server_away = examine(
        configuration_of(tmp_path, kafka.brokers, [f"http://{dead[1]}"], database, [topic])
    )
    assert errors(server_away) == ["cleanup-policy", "clickhouse"]
    assert time.monotonic() - begun < 40


@pytest.mark.slow
def test_one_connector_is_examined_alone(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database)
    topic = kafka.topic()
    dead = f'[[connector]]\nname = "dc2"\nbrokers = "127.0.0.1:{free_ports(1)[0]}"\n'
    configuration = configuration_of(
        tmp_path,
        kafka.brokers,
        [embedded_url],
        database,
        [topic],
        more=f'{dead}topics = ["elsewhere"]\n'
        '[[table]]\nname = "other"\ntopics = ["elsewhere"]\ntarget = "gone"\n',
    )
    found = examine(configuration, "dc1")
    assert errors(found) == []
    assert "spark-memory" not in {each.check for each in found}, "it is of the process"
    assert errors(examine(configuration, "dc2")) == ["kafka", "table"]


def test_two_connectors_with_one_topic_name_into_one_table(
    tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str, database: str
) -> None:
    create(embedded, database)
    topic = kafka.topic()
    twin = f'[[connector]]\nname = "dc2"\nbrokers = "{kafka.brokers}"\ntopics = ["{topic}"]\n'
    configuration = configuration_of(
        tmp_path, kafka.brokers, [embedded_url], database, [topic], more=twin
    )
    assert "lineage" not in bad(examine(configuration))
    embedded.execute(f"ALTER TABLE {database}.orders DROP COLUMN _source")
    refused = [each for each in examine(configuration) if "dc1 and dc2" in each.what]
    assert [(each.check, each.level) for each in refused] == [("lineage", "error")]


@pytest.fixture
def replicated(
    clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer
) -> Iterator[str]:
    yield from fresh_database(clickhouse_18.url, clickhouse_18_second.url)


@pytest.mark.slow
def test_old_servers_with_two_replicas(
    tmp_path: Path, kafka: Kafka, old: Server, second: Server, replicated: str
) -> None:
    topic, urls = kafka.topic(), [old.url, second.url]

    def found(urls: list[str] = urls, durability: str = "quorum", **more: str) -> list[str]:
        configuration = configuration_of(
            tmp_path, kafka.brokers, urls, replicated, [topic], durability, **more
        )
        return errors(examine(configuration))

    statement = (
        f"CREATE TABLE {replicated}.orders (id UInt64, {LINEAGE}) ENGINE = "
        f"ReplicatedMergeTree('/doctor/{replicated}', '{{replica}}') ORDER BY id"
    )
    old.execute(statement)
    assert found() == ["durability", "table"]
    assert found(urls[:1], "single") == []
    second.execute(statement)
    assert found() == []
    assert found(more="lineage = false") == ["tokens", "tokens"]
    assert found(urls[:1], "single", user="reader") == ["access"]
    assert found(urls[:1], "single", user="nobody") == ["access"]


def test_a_server_that_does_not_merge_is_said(embedded: Server, database: str) -> None:
    """Blocks are delayed from ten parts of a partition on."""
    create(embedded, database, f"{WINDOW}, parts_to_delay_insert = 10")
    embedded.execute(f"SYSTEM STOP MERGES {database}.orders")
    access = ClickHouseAccess({"s1": (embedded.url,)}, "default", "", "single")

    def look() -> Finding:
        seen = look_at_replica(access, "s1", embedded.url, [(database, "orders")])
        (finding,) = (one for one in seen.findings if one.check == "parts")
        return finding

    for number in range(4):
        embedded.execute(f"INSERT INTO {database}.orders (id) VALUES ({number})")
    assert look().level == "ok"
    embedded.execute(f"INSERT INTO {database}.orders (id) VALUES (4)")
    found = look()
    assert found.level == "warning" and "50%" in found.what and "MERGES" in found.fix


def test_clocks(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert clock_ahead_ms(server) == 0
    for shift_seconds in (-30, 30):
        monkeypatch.setattr(
            doctor_clickhouse, "now_ms", lambda s=shift_seconds: now_ms() + 1000 * s
        )
        ahead_ms = clock_ahead_ms(server)
        assert 28_000 < abs(ahead_ms) <= 30_000 and (ahead_ms > 0) == (shift_seconds < 0)
        found = Examination("here")
        doctor_clickhouse._check_clock(found, server)
        assert [finding.level for finding in found.findings] == ["error"]


def test_a_lease_that_fresh_workers_outlive_is_said(tmp_path: Path) -> None:
    long = configuration_of(tmp_path, "b:9092", ["http://h:8123"], "d", ["a"])
    (fine,) = doctor._look_at_lease(long)
    assert fine.level == "ok"
    short = replace(long, batch=replace(long.batch, lease_seconds=9.0))
    (said,) = doctor._look_at_lease(short)
    assert (said.level, said.check, said.where) == ("warning", "lease", "[batch] lease")
    assert "9 s" in said.what and 'lease = "10s"' in said.fix
    assert refusal([said]) is None


def test_a_reader_that_was_not_built_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (connector,) = configuration_of(tmp_path, "b:9092", ["http://h:8123"], "d", ["a"]).connectors
    (other,) = doctor._look_at_reader(replace(connector, reader="librdkafka"))
    (near,) = doctor._look_at_reader(replace(connector, kafka={"client.rack": "a"}))
    (fine,) = doctor._look_at_reader(connector)
    assert [(each.level, each.what) for each in (other, near, fine)] == [
        ("ok", "librdkafka"),
        ("ok", "librdkafka, for client.rack"),
        ("ok", "native"),
    ]
    rack = replace(connector, reader="native", kafka={"client.rack": "a"})
    (passed_over,) = doctor._look_at_reader(rack)
    assert passed_over.level == "warning" and "passes client.rack over" in passed_over.what
    assert refusal([passed_over]) is None
    monkeypatch.setattr(compiled, "EXTENSION_SUFFIXES", ())
    native.library.cache_clear()
    (said,) = doctor._look_at_reader(connector)
    native.library.cache_clear()
    assert (said.level, said.check) == ("error", "reader")
    assert 'reader = "librdkafka"' in said.fix


def test_an_engine_that_cannot_answer_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    key = doctor_decode.Key("shop.orders", "toYYYYMM(", ())
    (finding,) = doctor_decode.look_at_decoding([], [key])
    assert (finding.check, finding.level) == ("partition-key", "warning")
    monkeypatch.setattr(doctor_decode.sys, "executable", "/bin/false")
    (finding,) = doctor_decode.look_at_decoding([], [key])
    assert (finding.check, finding.level) == ("decoding", "error")


def test_where_blocks_are_hashed_columns_must_be_computed_alike() -> None:
    columns = (
        Column("id", "UInt64"),
        Column("seen", "DateTime", "DEFAULT", "now()"),
        Column("day", "Date", "MATERIALIZED", "toDate(seen)"),
        Column("name", "String", "DEFAULT", "dictGet('d', 'name', id)"),
        Column("twice", "UInt64", "MATERIALIZED", "id * 2"),
        Column("shown", "DateTime", "ALIAS", "now()"),
    )
    for is_hashed in (False, True):
        key = doctor_decode.Key("shop.orders", "id", columns, is_hashed)
        found = [f for f in doctor_decode.look_at_decoding([], [key]) if f.level == "error"]
        assert {f.check for f in found} == ({"hash"} if is_hashed else set())
        assert len(found) == (3 if is_hashed else 0)
        for finding, column in zip(found, ("seen", "day", "name"), strict=False):
            assert f"column {column} is computed with" in finding.what and finding.fix
