"""Replicas that are asked of the servers of a real cluster (18.16.1), and how they are doing."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.front import begins_before_the_end
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import plan_insert, query_id_of
from sluice.clickhouse.tls import Tls
from sluice.config import Configuration, load
from sluice.core.errors import ConfigurationError, TerminalError, TransientError
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record
from sluice.core.tokens import block_token
from sluice.core.topology import ShardsChangedError
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber, Probe, StillRunningError
from sluice.driver.specs import access_of, read_spec
from sluice.driver.topology import resolved
from sluice.driver.watching import ReplicaWatch
from sluice.kafka.clients import KafkaAccess
from sluice.ops.doctor_clickhouse import look_at_replica
from sluice.ops.doctor_shards import check_health, look_at_cluster
from sluice.ops.status import read_replicas
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster
from sluice.testbed.local.cluster.server import ClickHouseServer
from sluice.testbed.local.running import Broker
from sluice.testbed.local.settings import inline
from tests.kafka.groups import NOW
from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_exact, wait_for

PLAIN = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
#: For what servers and a driver take some seconds for, beside other tests.
SECONDS = 120.0


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with running_cluster(2, 2) as cluster:
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    """As it was at the start."""
    yield running
    describe(running, *running.shards.values())


def describe(cluster: Cluster, *shards: Sequence[ClickHouseServer]) -> None:
    """All servers know the cluster as this from now on."""
    ports = [[server.tcp_port for server in shard] for shard in shards]
    for server in cluster.servers:
        server.describe_cluster(ports)


def create(servers: Sequence[ClickHouseServer], table: str) -> None:
    for server in servers:
        with Server(server.url) as client:
            client.execute(
                f"CREATE TABLE {table} ({PLAIN}) ENGINE = ReplicatedMergeTree("
                f"'/tables/{{shard}}/{table}', '{{replica}}') ORDER BY (user_id, ts)"
            )


def configuration_of(
    folder: Path, cluster: Cluster, table: str, shards: str = '["s1"]', more: str = ""
) -> Configuration:
    """Of one table; `shards` and `more` are TOML."""
    sharding = 'sharding = { by = "key", column = "user_id" }' if "," in shards else ""
    path = folder / "sluice.toml"
    path.write_text(
        f'[pipeline]\nname = "p"\n[[connector]]\nname = "dc1"\nbrokers = "127.0.0.1:1"\n'
        f'topics = ["a"]\n[clickhouse]\ndurability = "single"\nshards = {shards}\n'
        f"cluster = {inline(cluster.asked())}\n{more}\n"
        f'[[table]]\nname = "{table}"\ntopics = ["a"]\n{sharding}\n'
    )
    return load(path, {})


def urls(servers: Sequence[ClickHouseServer]) -> tuple[str, ...]:
    return tuple(sorted(server.url for server in servers))


@pytest.fixture
def table() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


def test_shards_keep_their_names_and_replicas_in_any_order(
    cluster: Cluster, tmp_path: Path, table: str
) -> None:
    """In the list of the servers s2 comes first by now, and each shard's replicas are turned."""
    s1, s2 = cluster.shards.values()
    configuration = configuration_of(tmp_path, cluster, table, '["s1", "s2"]')
    expected = {"s1": urls(s1), "s2": urls(s2)}
    assert access_of(configuration).shards == expected
    describe(cluster, s2[::-1], s1[::-1])
    assert access_of(configuration).shards == expected


def test_a_cluster_with_other_shards_is_refused(
    cluster: Cluster, tmp_path: Path, table: str
) -> None:
    configuration = configuration_of(tmp_path, cluster, table)
    with pytest.raises(ShardsChangedError) as raised:
        resolved(configuration)
    assert "it has the shard s2, which [clickhouse] shards does not name" in raised.value.message
    assert "until somebody has decided" in raised.value.hint
    unknown, (finding,) = look_at_cluster(configuration)
    assert unknown is None and finding.level == "error" and not finding.passing
    three = configuration_of(tmp_path, cluster, table, '["s1", "s2", "s3"]')
    with pytest.raises(ShardsChangedError, match="it lacks the shard s3"):
        resolved(three)


def test_a_server_in_another_shard_than_it_says_is_refused(
    cluster: Cluster, tmp_path: Path, table: str
) -> None:
    (first, second), (third, fourth) = cluster.shards.values()
    describe(cluster, [first, third], [second, fourth])
    with pytest.raises(ConfigurationError, match="say that they are of different ones"):
        resolved(configuration_of(tmp_path, cluster, table, '["s1", "s2"]'))


@pytest.mark.long
def test_a_server_that_is_away_is_no_hindrance_and_a_whole_shard_is(
    cluster: Cluster, tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the servers that are asked is frozen, and with it one replica of its shard."""
    monkeypatch.setattr(Server.ping, "__defaults__", (1.0,))
    s1, s2 = cluster.shards.values()
    configuration = configuration_of(tmp_path, cluster, table, '["s1", "s2"]')
    s1[0].pause()
    try:
        assert access_of(configuration).shards == {"s1": urls(s1), "s2": urls(s2)}
        _, findings = look_at_cluster(configuration)
        assert [finding.level for finding in findings] == ["warning"]
        s1[1].pause()
        with pytest.raises(TransientError) as raised:
            access_of(configuration)
        assert all(server.url in raised.value.message for server in s1)
    finally:
        for server in s1:
            server.resume()


class Watched:
    """A watch that reads when it is told to, and what it has told."""

    def __init__(self, configuration: Configuration) -> None:
        self.told: list[ClickHouseAccess] = []
        specs = LoadSpecs(read_spec(configuration, "dc1"))
        self.watch = ReplicaWatch(
            resolved(configuration),
            "dc1",
            specs,
            lambda: NOW,
            lambda _, access: self.told.append(access),
        )


def test_replicas_are_taken_up_when_they_have_the_table_and_let_go(
    cluster: Cluster, tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    (first, second), _ = cluster.shards.values()
    create([first], table)
    describe(cluster, [first])
    watched = Watched(configuration_of(tmp_path, cluster, table))
    watched.watch.follow()
    assert watched.told == []
    describe(cluster, [second, first])
    watched.watch.follow()
    assert watched.told == []
    assert f"{second.url} is a replica of shard s1 by now, and is not used yet" in caplog.text
    create([second], table)
    watched.watch.follow()
    assert [access.shards for access in watched.told] == [{"s1": urls([first, second])}]
    assert f"shard s1 has more replicas: {second.url}" in caplog.text
    describe(cluster, [second])
    watched.watch.follow()
    assert watched.told[1].shards == {"s1": (second.url,)}
    assert f"get nothing any more: {first.url}" in caplog.text


def test_a_table_that_is_not_replicated_stays_with_its_server(
    cluster: Cluster, tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each server has a window of its own: a block in doubt at one is unknown to the other."""
    (first, second), _ = cluster.shards.values()
    cluster.execute(f"CREATE TABLE {table} ({PLAIN}) ENGINE = MergeTree ORDER BY id")
    describe(cluster, [first])
    watched = Watched(configuration_of(tmp_path, cluster, table))
    describe(cluster, [second])
    watched.watch.follow()
    assert watched.told == []
    assert f"the driver stays with {first.url} until it is started again" in caplog.text


@pytest.mark.parametrize(
    ("engine", "hint"),
    [
        ("Distributed(default, default, {0})", "Name the local table as `target`"),
        ("Buffer(default, {0}, 1, 9, 9, 9, 9, 9, 9)", "Name the table behind the Buffer"),
        ("Null", "Name the table that the views of this Null table write to"),
    ],
)
def test_a_target_that_only_passes_rows_on_is_refused(
    cluster: Cluster, tmp_path: Path, table: str, engine: str, hint: str
) -> None:
    """At the start, by the doctor, and of a replica that comes later."""
    (first, second), _ = cluster.shards.values()
    create([first, second], table)
    for server in cluster.servers:
        with Server(server.url) as client:
            client.execute(f"CREATE TABLE to_{table} (a UInt64) ENGINE = {engine.format(table)}")
    name = engine.partition("(")[0]
    configuration = configuration_of(tmp_path, cluster, f"to_{table}", '["s1", "s2"]')
    with pytest.raises(TerminalError) as raised:
        read_spec(configuration, "dc1")
    assert f"has the engine {name}, which does not deduplicate" in raised.value.message
    assert hint in raised.value.hint
    # The first that is asked, so that both name the same server.
    url = access_of(configuration).shards["s1"][0]
    look = look_at_replica(access_of(configuration), "s1", url, [("default", f"to_{table}")])
    (error,) = [finding for finding in look.findings if finding.level == "error"]
    assert (error.check, error.what, error.fix) == (
        "table",
        raised.value.message,
        raised.value.hint,
    )


def test_another_shard_changes_nothing_in_a_driver_that_runs(
    cluster: Cluster, tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    s1, s2 = cluster.shards.values()
    create(s1, table)
    describe(cluster, s1)
    watched = Watched(configuration_of(tmp_path, cluster, table))
    describe(cluster, s2, s1)
    watched.watch.follow()
    assert watched.told == [] and watched.watch.access.shards == {"s1": urls(s1)}
    assert "it has the shard s2" in watched.watch.differs
    assert [each.levelname for each in caplog.records if "next start is refused" in each.msg] == [
        "ERROR"
    ]
    describe(cluster, s1)
    watched.watch.follow()
    assert watched.watch.differs == ""


@pytest.mark.slow
def test_a_replica_that_is_behind_is_tried_last_and_comes_back(
    cluster: Cluster, tmp_path: Path, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    (first, second), _ = cluster.shards.values()
    create([first, second], table)
    describe(cluster, [first, second])
    configuration = configuration_of(tmp_path, cluster, table, more="max_replica_queue = 2")
    watched = Watched(configuration)
    watched.watch.read()
    assert watched.told == []
    assert all(not state.health.is_behind for state in watched.watch.current())
    with Server(first.url) as to_first, Server(second.url) as to_second:
        to_second.execute(f"SYSTEM STOP FETCHES {table}")
        for number in range(4):
            to_first.execute(f"INSERT INTO {table} (id) VALUES ({number})")
        wait_for(lambda: _queue(to_second, table) > 2, SECONDS, "the queue")
        watched.watch.read()
        assert [access.behind for access in watched.told] == [{second.url}]
        assert (
            f"replica {second.url} of shard s1 is tried last from now on: its repl" in caplog.text
        )
        shown = {each.replica: each for each in read_replicas(configuration)}
        assert shown[first.url].why == "" and "max_replica_queue" in shown[second.url].why
        assert (shown[second.url].active, shown[second.url].total) == (2, 2)
        look = look_at_replica(access_of(configuration), "s1", second.url, [("default", table)])
        (finding,) = check_health(look, configuration.clickhouse.limits)
        assert (finding.level, finding.check) == ("warning", "replica-health")
        to_second.execute(f"SYSTEM START FETCHES {table}")
        wait_for(lambda: _queue(to_second, table) == 0, SECONDS, "an empty queue")
    watched.watch.read()
    assert len(watched.told) == 1  # one good reading is none
    watched.watch.read()
    assert watched.told[1].behind == frozenset()
    assert f"replica {second.url} of shard s1 takes its turn again" in caplog.text


def _queue(server: Server, table: str) -> int:
    (row,) = server.query(f"SELECT queue_size FROM system.replicas WHERE table = '{table}'")
    return int(row["queue_size"])


def test_a_probe_asks_a_replica_that_is_gone_too_while_it_serves(
    cluster: Cluster, tmp_path: Path, table: str
) -> None:
    """A worker may still be inserting there what the range is probed for."""
    (first, second), _ = cluster.shards.values()
    create([first, second], table)
    describe(cluster, [first, second])
    configuration = configuration_of(tmp_path, cluster, table)
    (spec,) = read_spec(configuration, "dc1").tables
    access = access_of(configuration)
    prober = ClickHouseProber(access, "p", KafkaAccess("dc1", "127.0.0.1:1"))
    prober.use(replace(access, shards={"s1": (second.url,)}))
    block_range = Range(TopicPartition("a", 0), 0, 10)
    record = Record(Kind.INTEND, 1, 1, 0, 10, "a", 0, "topic", "text", 1, 0)
    token = block_token(
        pipeline="p",
        generation=0,
        connector="dc1",
        topic_id="topic",
        block_range=block_range,
        entry=spec.entry,
        target=spec.target,
        shard="s1",
        rest="",
    )
    plan = plan_insert("default", table, ["id"], b"", None, query_id_of(token, "0"), {})

    def look() -> ProbeFound:
        probe = Probe([Sought(block_range, record)])
        prober._look(probe, spec, NOW)
        (found,) = probe.answers()
        return found

    def still_runs() -> bool:
        error = look().error
        return isinstance(error, StillRunningError) and first.url in error.message

    try:
        assert begins_before_the_end(first.url, Tls(), plan.path, {}, still_runs)
        wait_for(lambda: not still_runs(), SECONDS, "the end of the insert")
        assert look() == ProbeFound(block_range.source, {spec.entry: ((0, 10),)})
    finally:
        prober.close()


@pytest.mark.long
def test_a_driver_follows_its_cluster(
    cluster: Cluster, tmp_path: Path, shared_broker: Broker
) -> None:
    """A replica comes, and takes its turn; a shard comes, and is a decision."""
    (first, second), s2 = cluster.shards.values()
    world = World(tmp_path, shared_broker, first, name=f"c{uuid.uuid4().hex[:8]}")
    table, topic = f"t_{world.name}", f"orders-{world.name}"
    world.create_topic(topic)
    create([first, second], table)
    describe(cluster, [first])
    asked = f"cluster = {inline(cluster.asked())}\n"
    configuration = world.configure(
        {table: [topic]}, max_messages=1_000, shards='["s1"]', clickhouse=asked
    )
    truth = Truth()
    try:
        world.produce(topic, 4_000, truth)
        driver = world.run(configuration)
        world.wait_for_rows(table, truth.rows, driver, seconds=240)
        describe(cluster, [first, second], s2)
        driver.signal(1)
        wait_for(
            lambda: "has more replicas" in driver.text() and "is refused" in driver.text(),
            SECONDS,
            "the reading",
        )
        world.produce(topic, 4_000, truth, first=4_000)
        world.wait_for_rows(table, truth.rows, driver, seconds=240)
        driver.signal(15)
        assert driver.wait() == 0, driver.text()[-4000:]
        found = [entry["replica"] for entry in world.ledger() if entry["type"] == "receipt"]
        assert {*found} == {first.url, second.url}
        assert_exact(world, table, truth)
        refused = world.run(configuration, "--until-caught-up")
        assert refused.wait() != 0 and "it has the shard s2" in refused.text()
        describe(cluster, [second, first])
        audited = world.sluice("audit", str(configuration))
        assert audited.returncode == 0, audited.stdout + audited.stderr
    finally:
        world.close()
