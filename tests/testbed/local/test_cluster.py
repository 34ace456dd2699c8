"""`sluice local cluster`: real servers, replicas of each other, that end with the command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import TerminalError
from sluice.testbed.local.cluster.cluster import (
    EXAMPLE_TABLE,
    Cluster,
    require_programs,
    running_cluster,
)
from sluice.testbed.local.processes import usage
from tests.support.world import wait_for
from tests.testbed.local.measure_zookeeper_calls import Case, measure, table


def test_the_command_says_how_to_use_what_it_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sluice", "local", "cluster", "--shards", "1"]
    output = tmp_path / "output"
    with output.open("wb") as written:
        process = subprocess.Popen([*command, "--replicas", "2"], stdout=written)
    try:
        wait_for(lambda: "Ctrl-C ends" in output.read_text(), 180, "the cluster")
        text = output.read_text()
        section, _, asking = text[text.index("[clickhouse]") : text.index("\nA table")].partition(
            "Or, with the replicas asked of the servers:"
        )
        urls = tomllib.loads(section)["clickhouse"]["shards"]["s1"]
        assert len(urls) == 2
        asked = tomllib.loads(asking)["clickhouse"]["cluster"]
        assert asked["servers"] == urls[:1] and sorted(asked["addresses"].values()) == sorted(urls)
        assert EXAMPLE_TABLE in text
        for url in urls:
            with Server(url) as server:
                server.execute(EXAMPLE_TABLE)
        with Server(urls[0]) as first, Server(urls[1]) as second:
            first.execute("INSERT INTO orders (id) VALUES (7)")
            second.execute("SYSTEM SYNC REPLICA orders")
            assert second.query("SELECT id FROM orders") == [{"id": 7}]
        children = [int(pid) for pid in re.findall(r"process (\d+)", text)]
        assert len(children) == 3
        assert all(usage(pid) for pid in children)
        process.send_signal(signal.SIGINT)
        assert process.wait(180) == 0
        assert not any(usage(pid) for pid in children)
    finally:
        process.kill()
        process.wait()


def test_its_section_lets_loaders_take_turns_where_they_wait_for_a_quorum(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 1, 2)
    section = tomllib.loads(cluster.section())["clickhouse"]
    assert section["durability"] == "quorum"
    assert section["zookeeper"] == f"127.0.0.1:{cluster.zookeeper.port}"
    section = tomllib.loads(Cluster(tmp_path, 2, 1).section())["clickhouse"]
    assert section["durability"] == "single" and "zookeeper" not in section


@pytest.fixture(scope="module")
def two_shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(2, 1, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def test_two_shards_hold_rows_of_their_own(two_shards: Cluster) -> None:
    assert set(tomllib.loads(two_shards.section())["clickhouse"]["shards"]) == {"s1", "s2"}
    two_shards.execute(EXAMPLE_TABLE)
    with Server(two_shards.servers[0].url) as first:
        first.execute("INSERT INTO orders (id) VALUES (7)")
    with Server(two_shards.servers[1].url) as second:
        assert second.query("SELECT count() AS n FROM orders") == [{"n": 0}]
        paths = second.query("SELECT zookeeper_path AS path FROM system.replicas")
        assert paths == [{"path": "/clickhouse/tables/s2/orders"}]


@pytest.mark.slow
def test_calls_of_zookeeper_are_counted_for_each_block(two_shards: Cluster) -> None:
    """About 15 for a block; one over ten ClickHouse partitions is ten blocks to it. What servers
    do at rest comes in bursts, so on a busy machine a few more or less."""
    one, ten = (measure(two_shards, Case(1, 1, n), 10, idle_seconds=5.0) for n in (1, 10))
    assert one.total == one.inserting  # one replica is all of them
    assert 5 < one.total < 40
    assert one.by_kind["Multi"] >= 2  # at least the block with its part, and its log entry
    assert 3 * one.total < ten.total < 30 * one.total
    assert [len(line.split("|")) for line in table([one, ten])] == [8] * 4


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TerminalError) as raised:
        require_programs()
    assert "clickhouse-server" in raised.value.message
    assert "apt-get install clickhouse-server" in raised.value.hint
