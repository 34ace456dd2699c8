"""`sluice local cluster`: real servers, replicas of each other, that end with the command."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import TerminalError
from sluice.local.cluster.cluster import EXAMPLE_TABLE, require_programs, running_cluster
from sluice.local.processes import usage
from tests.support.world import wait_for


def test_the_command_says_how_to_use_what_it_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sluice", "local", "cluster", "--shards", "1"]
    output = tmp_path / "output"
    with output.open("wb") as written:
        process = subprocess.Popen([*command, "--replicas", "2"], stdout=written)
    try:
        wait_for(lambda: "Ctrl-C ends" in output.read_text(), 60, "the cluster")
        text = output.read_text()
        section, _, asking = text[text.index("[clickhouse]") : text.index("\nA table")].partition(
            "Or, with the replicas asked of the servers:"
        )
        urls = tomllib.loads(section)["clickhouse"]["shards"]["s1"]
        assert len(urls) == 2
        asked = tomllib.loads(asking)["clickhouse"]
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
        assert process.wait(60) == 0
        assert not any(usage(pid) for pid in children)
    finally:
        process.kill()
        process.wait()


def test_two_shards_hold_rows_of_their_own(tmp_path: Path) -> None:
    with running_cluster(2, 1, tmp_path) as cluster:
        assert set(tomllib.loads(cluster.section())["clickhouse"]["shards"]) == {"s1", "s2"}
        cluster.execute(EXAMPLE_TABLE)
        with Server(cluster.servers[0].url) as first:
            first.execute("INSERT INTO orders (id) VALUES (7)")
        with Server(cluster.servers[1].url) as second:
            assert second.query("SELECT count() AS n FROM orders") == [{"n": 0}]
            paths = second.query("SELECT zookeeper_path AS path FROM system.replicas")
            assert paths == [{"path": "/clickhouse/tables/s2/orders"}]


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TerminalError) as raised:
        require_programs()
    assert "clickhouse-server" in raised.value.message
    assert "apt-get install clickhouse-server" in raised.value.hint
