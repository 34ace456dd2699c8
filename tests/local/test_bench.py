"""The benchmark: its arithmetic, and all of it on few rows."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.log import SourceLog
from sluice.local.bench import RANGE_MESSAGES, _even_range
from sluice.local.bench_report import Outcome
from sluice.local.bench_rounds import ROLES, Round, latencies_ms, percentile
from sluice.local.bench_target import DATABASE, prepared_target
from sluice.local.orders import Orders
from sluice.local.processes import descendants, listener, machine_busy_seconds, usage
from sluice.local.producing import Stamped, create_topic, held_back
from sluice.local.running import ClickHouse, running_broker
from tests.support.clickhouse_server import clickhouse_available, run_clickhouse


def a_round(seconds: float, foreign: float = 0.0) -> Round:
    return Round(
        rows=1_000_000,
        seconds=seconds,
        cpu_seconds=dict.fromkeys(ROLES, seconds / 4),
        peak_bytes=dict.fromkeys(ROLES, 400_000_000),
        stage_seconds={"fetch": 1.0, "decode": 0.5, "insert": 0.25, "total": 2.0},
        blocks=12,
        batches=7,
        foreign_cpu_seconds=foreign,
    )


def an_outcome(*rounds: Round, unsafe: bool = False) -> Outcome:
    return Outcome(
        server="embedded",
        version="26.9",
        unsafe_no_dedup=unsafe,
        event_bytes=193,
        rounds=list(rounds),
        latencies_ms=list(range(1, 101)),
        latency_rows_per_second=1000,
        max_delay="500ms",
        idle_seconds=40,
        idle_shares=dict.fromkeys(ROLES, 0.0124),
    )


def test_medians_and_shares() -> None:
    report = an_outcome(a_round(1.0), a_round(2.0), a_round(4.0)).as_json()
    assert report["rows_per_second"] == 500_000
    assert report["cpu_microseconds_per_row"] == dict.fromkeys(ROLES, 0.5)
    assert report["task_share"] == {"fetch": 0.5, "decode": 0.25, "insert": 0.125, "other": 0.125}
    assert [report["latency_ms"][name] for name in ("p50", "p95", "p99", "max")] == [
        50,
        95,
        99,
        100,
    ]


def test_what_disturbs_is_said() -> None:
    quiet = "\n".join(an_outcome(a_round(1.0)).lines())
    assert "idle, of one core over 40 s: broker 1.2%" in quiet
    assert "Other programs" not in quiet and "UNSAFE" not in quiet
    assert "Other programs" in "\n".join(an_outcome(a_round(1.0, foreign=3.0)).lines())
    assert "UNSAFE" in "\n".join(an_outcome(a_round(1.0), unsafe=True).lines())


def test_a_latency_is_that_of_the_range_which_holds_the_event() -> None:
    receipts = [
        {"partition": 1, "begin": 10, "end": 20, "acknowledged_at_ms": 2_000},
        {"partition": 0, "begin": 0, "end": 9, "acknowledged_at_ms": 1_500},
        {"partition": 1, "begin": 0, "end": 10, "acknowledged_at_ms": 1_000},
    ]
    events = [Stamped(1, 9, 990), Stamped(1, 10, 1_400), Stamped(0, 3, 1_300)]
    assert latencies_ms(events, receipts) == [10, 200, 600]


def test_percentiles() -> None:
    assert percentile([7], 0.99) == 7
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([1, 2, 3, 4], 0.95) == 4


@pytest.mark.parametrize("rows", [1, 4, 99, 500_000, 3_000_000, 3_000_001])
def test_a_round_has_no_small_remainder(rows: int) -> None:
    of_partition = -(-rows // 4)
    size = _even_range(rows)
    ranges = -(-of_partition // size)
    assert size <= RANGE_MESSAGES and of_partition > size * ranges - ranges


def test_nothing_of_a_round_is_seen_before_its_end(tmp_path: Path) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        access = KafkaAccess("local", broker.brokers)
        create_topic(access, "orders")
        admin = make_admin(access)
        sources = [TopicPartition("orders", number) for number in range(4)]
        with held_back(access, "orders", Orders(1), 1_000):
            assert set(SourceLog(admin).stable_ends(sources).values()) == {0}
        ends: set[int] = set()
        deadline = time.monotonic() + 10
        while ends != {251}:  # each with the end of the transaction
            ends = set(SourceLog(admin).stable_ends(sources).values())
            assert time.monotonic() < deadline, ends


def test_cpu_time_and_memory_of_a_process() -> None:
    script = (
        "import subprocess, sys, time; x = bytearray(80_000_000)\n"
        "busy = 'import time\\nwhile time.process_time() < 0.3: pass'\n"
        "exec(busy); subprocess.run([sys.executable, '-c', busy])\n"
        "child = subprocess.Popen(['sleep', '30']); print('ready', flush=True); sys.stdin.read()\n"
        "child.kill(); child.wait()"
    )
    busy = machine_busy_seconds()
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        found = usage(process.pid)
        assert found is not None and found.parent == os.getpid()
        assert 0.55 <= found.cpu_seconds <= 1.5  # its child that ended included
        assert found.peak_bytes > 80_000_000
        assert [one.name for one in descendants(process.pid)] == ["sleep"]
        assert machine_busy_seconds() - busy >= 0.5
        assert process.stdin is not None
        process.stdin.close()
    assert usage(process.pid) is None


def test_the_server_of_a_port_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        assert listener(opened.getsockname()[1]) == os.getpid()
        port = opened.getsockname()[1]
    assert listener(port) is None


def test_a_server_without_windows_needs_a_decision(tmp_path: Path) -> None:
    if not clickhouse_available():
        pytest.fail("needs Debian's ClickHouse 18.16: apt-get install clickhouse-server")
    with run_clickhouse() as old:
        with (
            pytest.raises(ConfigurationError, match=r"18\.16\.1.* Replicated") as caught,
            prepared_target(old.url, tmp_path, False),
        ):
            pass
        assert "--unsafe-no-dedup" in caught.value.hint
        with prepared_target(old.url, tmp_path, True) as target:
            assert target.rows() == 0
            assert target.pid == old.running.pid
            with (
                pytest.raises(ConfigurationError, match="exists already"),
                prepared_target(old.url, tmp_path, True),
            ):
                pass
            assert target.rows() == 0  # not ours to drop
        with Server(old.url) as client:
            assert not client.query(f"SELECT 1 FROM system.databases WHERE name = '{DATABASE}'")


def test_the_benchmark(server: ClickHouse) -> None:
    script = (
        "import sys; from sluice.local.bench import run_bench; "
        "sys.exit(run_bench(20_000, sys.argv[1], 1, as_json=True, latency_seconds=2,"
        " idle_seconds=2))"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script, server.url],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["produced"] == report["stored"] == 42_000
    assert set(report["cpu_microseconds_per_row"]) == set(ROLES)
    assert 0 < report["rows_per_second"] < 1.01 * 20_000 / report["rounds"][0]["seconds"]
    assert report["latency_ms"]["rows"] == 2_000
    assert 0 < report["latency_ms"]["p50"] <= report["latency_ms"]["p99"]
    assert report["latency_ms"]["max"] < (time.monotonic() - began) * 1000
    assert report["peak_bytes"]["workers"] > 100_000_000
    assert set(report["idle"]["core_share"]) == set(ROLES)
    assert 0 <= report["idle"]["core_share"]["workers"] < 2
    assert sum(report["task_share"].values()) == pytest.approx(1.0, abs=0.01)
