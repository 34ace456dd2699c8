"""The benchmark: its arithmetic, and all of it on few rows."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.log import SourceLog
from sluice.testbed.local.bench_compare import compared
from sluice.testbed.local.bench_report import Drained, Outcome
from sluice.testbed.local.bench_rounds import (
    ROLES,
    Latency,
    Round,
    latencies_ms,
    percentile,
    stage_seconds,
)
from sluice.testbed.local.bench_settings import BenchSettings
from sluice.testbed.local.bench_target import DATABASE, prepared_target
from sluice.testbed.local.orders import Orders, Shape
from sluice.testbed.local.processes import descendants, listener, machine_busy_seconds, usage
from sluice.testbed.local.producing import Stamped, create_topic, held_back, produce_steadily
from sluice.testbed.local.running import ClickHouse, running_broker
from tests.support.clickhouse_server import clickhouse_available, run_clickhouse


def a_round(seconds: float, foreign: float = 0.0) -> Round:
    stages = {"fetch": 0.8, "check": 0.2, "decode": 0.5, "insert": 0.05, "insert wait": 0.2}
    return Round(
        messages=1_000_000,
        rows=1_000_000,
        letters=0,
        seconds=seconds,
        cpu_seconds=dict.fromkeys(ROLES, seconds / 4),
        peak_bytes=dict.fromkeys(ROLES, 400_000_000),
        workers=(3, 900_000_000),
        stage_seconds={**stages, "letters": 0.0, "total": 2.0},
        blocks=12,
        ranges=20,
        batches=5,
        foreign_cpu_seconds=foreign,
    )


def an_outcome(*rounds: Round, drained: Drained | None = None, **options: Any) -> Outcome:
    return Outcome(
        settings=BenchSettings(rounds=len(rounds), **options),
        server="embedded",
        version="26.9",
        rounds=list(rounds),
        start_seconds=7.25,
        latencies=[
            Latency(1_000, 1_000.0, list(range(1, 101)), 100, {"broker": 0.01}, {}),
            Latency(500_000, 300_000.0, [7], 1, {"broker": 0.0}, {}),
        ],
        idle_shares=dict.fromkeys(ROLES, 0.0124),
        drained=drained,
    )


def test_medians_and_shares() -> None:
    report = an_outcome(a_round(1.0), a_round(2.0), a_round(4.0)).as_json()
    assert report["rows_per_second"] == 500_000
    assert report["cpu_microseconds_per_row"] == dict.fromkeys(ROLES, 0.5)
    assert report["task_share"] == {
        "fetch": 0.4,
        "check": 0.1,
        "decode": 0.25,
        "insert": 0.025,
        "insert wait": 0.1,
        "letters": 0.0,
        "other": 0.125,
    }
    slow, fast = report["latency_ms"]
    assert [slow[name] for name in ("p50", "p95", "p99", "max")] == [50, 95, 99, 100]
    assert (fast["rows_per_second"], fast["reached_rows_per_second"]) == (500_000, 300_000)
    # 0.5 s of CPU in each of two processes, over five batches
    assert report["driver_cpu_ms_per_batch"]["together"] == 200.0
    # less 1.24 % of a core for 2 s
    assert report["driver_cpu_ms_per_batch_not_idle"]["driver JVM"] == 100 - 4.96
    assert report["ranges"] == 20
    assert report["workers"] == {"processes": 3, "peaks_bytes": 900_000_000}


def test_a_run_is_measured_like_itself() -> None:
    report = an_outcome(a_round(1.0), rates=(1_000, 10_000)).as_json()
    same = compared(Path("f"), json.loads(json.dumps(report)), report)
    assert same.different == {} and len(same.figures) > 20
    assert {now / then for then, now in same.figures.values()} == {1.0}


def test_a_backlog_is_extrapolated_and_says_so() -> None:
    outcome = an_outcome(a_round(2.0), drained=Drained(3_600_000, 9.0))
    slow, fast = outcome.as_json()["backlog"]
    assert slow == {
        "messages": 3_600_000,
        "rows_per_second": 1_000,
        "seconds": 7.2,
        "seconds_while_more_comes": 7.2,
        "extrapolated": True,
    }
    assert fast["seconds_while_more_comes"] is None  # as much comes as goes
    text = "\n".join(outcome.lines())
    assert "3,600,000 drain in 7 s, 7 s while more comes (extrapolated" in text
    assert "never while more comes" in text
    assert "measured, from the driver's start to the last settle: 3,600,000 messages in 9" in text


def test_what_disturbs_is_said() -> None:
    quiet = "\n".join(an_outcome(a_round(1.0)).lines())
    assert "idle, of one core over 40 s: broker 1.2%" in quiet
    assert "the producer only reached 300,000 rows/s" in quiet
    assert "Other programs" not in quiet and "UNSAFE" not in quiet
    assert "Other programs" in "\n".join(an_outcome(a_round(1.0, foreign=3.0)).lines())
    assert "UNSAFE" in "\n".join(an_outcome(a_round(1.0), unsafe_no_dedup=True).lines())


def test_a_latency_is_that_of_the_range_which_holds_the_event() -> None:
    receipts = [
        {"partition": 1, "begin": 10, "end": 20, "acknowledged_at_ms": 2_000},
        {"partition": 0, "begin": 0, "end": 9, "acknowledged_at_ms": 1_500},
        {"partition": 1, "begin": 0, "end": 10, "acknowledged_at_ms": 1_300},  # one table
        {"partition": 1, "begin": 0, "end": 10, "acknowledged_at_ms": 1_000},  # another
    ]
    events = [Stamped(1, 9, 990), Stamped(1, 10, 1_400), Stamped(0, 3, 1_300)]
    assert latencies_ms(events, receipts) == [200, 310, 600]


def test_stages_do_not_overlap() -> None:
    new = {"fetch": 1.0, "check": 0.25, "decode": 0.5, "insert": 0.5, "wait": 0.375}
    old = {"fetch": 1.0, "decode": 0.5, "insert": 0.5, "total": 2.0}  # of a former version
    assert stage_seconds([{**new, "letters": 0.125, "total": 2.25, "cpu": 1.0}, old]) == {
        "fetch": 1.75,
        "check": 0.25,
        "decode": 1.0,
        "insert": 0.625,
        "insert wait": 0.375,
        "letters": 0.125,
        "total": 4.25,
    }


def test_percentiles() -> None:
    assert percentile([7], 0.99) == 7
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([1, 2, 3, 4], 0.95) == 4


@pytest.mark.parametrize("rows", [1, 4, 99, 500_000, 3_000_000, 3_000_001])
@pytest.mark.parametrize("partitions", [4, 100])
def test_a_round_has_no_small_remainder(rows: int, partitions: int) -> None:
    settings = BenchSettings(rows=rows, partitions=partitions)
    of_partition = -(-rows // partitions)
    size = settings.even_range()
    ranges = -(-of_partition // size)
    assert size <= settings.range_messages and of_partition > size * ranges - ranges


def test_nothing_of_a_round_is_seen_before_its_end(tmp_path: Path) -> None:
    with running_broker(tmp_path / "kafka") as broker:
        access = KafkaAccess("local", broker.brokers)
        create_topic(access, "orders", 7)
        sources = [TopicPartition("orders", number) for number in range(7)]
        log = SourceLog(make_admin(access))
        # 28 events in pieces of 16 go to all partitions alike
        orders = Orders(1, Shape(message_bytes=1_000_000))
        with held_back(access, "orders", orders, 28, partitions=7, bad_share=0.5) as broken:
            assert set(log.stable_ends(sources).values()) == {0}
            assert 0 < broken < 28
        ends: set[int] = set()
        deadline = time.monotonic() + 10
        while ends != {5}:  # each with the end of the transaction
            ends = set(log.stable_ends(sources).values())
            assert time.monotonic() < deadline, ends
        steady = produce_steadily(access, "orders", Orders(1), 20_000, 0.5, partitions=7)
        # All but a few are only sent; the broker acknowledged every one of them
        assert 0 < len(steady.stamped) < 5_000 < steady.rows == 10_000
        assert sum(log.stable_ends(sources).values()) == 7 * 5 + 10_000


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


@pytest.mark.long
def test_the_benchmark(server: ClickHouse, tmp_path: Path) -> None:
    before = an_outcome(a_round(1.0)).as_json()
    (tmp_path / "before.json").write_text(json.dumps(before))
    options = {
        "rows": "20_000",
        "rounds": "1",
        "columns": "11",
        "message-bytes": "300",
        "partitions": "3",
        "tables": "2",
        "bad-share": "0.01",
        "range-messages": "4000",
        "max-delay": "300ms",
        "rates": "500,5000",
        "latency-seconds": "2",
        "idle-seconds": "2",
        "backlog-seconds": "8",
        "server": server.url,
        "compare": str(tmp_path / "before.json"),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "sluice", "bench", *words, "--drain", "--json"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # the first one, warm-up and round, two rates, the backlog
    assert report["produced"] == 1 + 2 * 20_000 + 2 * 500 + 2 * 5_000 + 8 * 500
    assert 0 < report["broken"] < 2_000
    assert report["stored"] == 2 * (report["produced"] - report["broken"])
    assert report["letters"] == 2 * report["broken"]
    (one,) = report["rounds"]
    assert one["rows"] + one["dead_letters"] == 2 * 20_000 and one["dead_letters"] > 0
    assert set(report["cpu_microseconds_per_row"]) == set(ROLES)
    assert 0 < report["rows_per_second"] < 1.01 * 40_000 / one["seconds"]
    assert report["event_bytes"] == report["settings"]["message_bytes"] == 300
    assert report["latency_ms"][0]["rows"] == 1_000
    for latency in report["latency_ms"]:
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
        assert latency["max"] < (time.monotonic() - began) * 1000
    assert report["peak_bytes"]["workers"] > 100_000_000
    assert report["workers"]["peaks_bytes"] > report["peak_bytes"]["workers"]
    assert (
        report["ranges"] >= report["batches"] > 1
        and report["driver_cpu_ms_per_batch"]["driver JVM"] > 0
    )
    assert 0 < report["start_to_first_row_seconds"] < time.monotonic() - began
    assert report["drained"]["messages"] == 4_000 and report["drained"]["seconds"] > 0
    assert set(report["idle"]["core_share"]) == set(ROLES)
    assert 0 <= report["idle"]["core_share"]["workers"] < 2
    assert sum(report["task_share"].values()) == pytest.approx(1.0, abs=0.01)
    # Shares are rounded: on a busy machine only the waiting is sure to be seen.
    assert {"check", "letters"} < report["task_share"].keys()
    assert report["task_share"]["insert wait"] > 0
    assert report["compared"]["different"]["tables"] == [1, 2]
    assert report["compared"]["ratios"]["rows/s"] == pytest.approx(
        report["rows_per_second"] / 1_000_000, abs=0.001
    )
