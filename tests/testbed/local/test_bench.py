"""The benchmark: its arithmetic, and all of it on few rows."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import make_admin
from sluice.kafka.log import SourceLog
from sluice.testbed.local.bench import DATABASE, prepared_target
from sluice.testbed.local.bench_report import Drained, Outcome, compared
from sluice.testbed.local.bench_rounds import (
    ROLES,
    Latency,
    ProducerAlone,
    Round,
    acknowledged_while,
    count_blocks,
    latencies_ms,
    measure_producer_alone,
    percentile,
    stage_seconds,
)
from sluice.testbed.local.bench_settings import BenchSettings
from sluice.testbed.local.orders import Orders, Shape, TableKind
from sluice.testbed.local.processes import descendants, listener, machine_busy_seconds, usage
from sluice.testbed.local.producing import (
    Stamped,
    Steady,
    create_topics,
    held_back,
    steady_producer,
)
from sluice.testbed.local.running import ClickHouse
from tests.support.clickhouse_server import clickhouse_available, run_clickhouse
from tests.support.kafka import Kafka


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
        stage_seconds={**stages, "claim": 0.0, "dead letters": 0.0, "total": 2.0},
        blocks=12,
        ranges=20,
        batches=5,
        foreign_cpu_seconds=foreign,
    )


def a_latency(wanted: int, reached: float, values_ms: list[int], **changes: Any) -> Latency:
    of_a_second: dict[str, Any] = {
        "messages": len(values_ms),
        "seconds": 1.0,
        "blocks": 6,
        "cpu_seconds": {"broker": 0.01},
        "core_shares": {"broker": 0.008},
        "growth": {},
    }
    return Latency(wanted, reached, values_ms, **{**of_a_second, **changes})


def an_outcome(
    *rounds: Round,
    drained: Drained | None = None,
    alone: ProducerAlone | None = None,
    **options: Any,
) -> Outcome:
    return Outcome(
        settings=BenchSettings(rounds=len(rounds), **options),
        server="embedded",
        version="26.9",
        rounds=list(rounds),
        start_seconds=7.25,
        latencies=[
            a_latency(1_000, 1_000.0, list(range(1, 101))),
            a_latency(500_000, 300_000.0, [7], core_shares={"broker": 0.0}),
        ],
        idle_shares=dict.fromkeys(ROLES, 0.0124),
        drained=drained,
        producer_alone=alone,
    )


def test_medians_and_shares() -> None:
    report = an_outcome(a_round(1.0), a_round(2.0), a_round(4.0)).as_json()
    assert report["rows_per_second"] == 500_000
    assert report["cpu_microseconds_per_row"] == dict.fromkeys(ROLES, 0.5)
    assert report["task_share"] == {
        "fetch": 0.4,
        "check": 0.1,
        "decode": 0.25,
        "claim": 0.0,
        "insert": 0.025,
        "insert wait": 0.1,
        "dead letters": 0.0,
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


def test_a_rate_costs_inserts_and_shares_of_a_core() -> None:
    outcome = an_outcome(a_round(1.0), tables=2)
    slow, fast = outcome.as_json()["latency_ms"]
    assert slow["inserts_per_second"] == 3.0  # 6 blocks in a second, into two tables
    assert slow["cpu_microseconds_per_message"] == {"broker": 100.0}
    assert slow["core_share"] == {"broker": 0.008} and fast["core_share"] == {"broker": 0.0}
    text = "\n".join(outcome.lines())
    assert "inserts/s into each table: 3.00" in text
    assert "(of one core): broker 100.00 (0.8%); together 100.00 (0.8%)" in text
    assert "inserts/s into the table: 6.00" in "\n".join(an_outcome(a_round(1.0)).lines())


def test_the_producer_alone_stands_beside_its_rate() -> None:
    alone = ProducerAlone(1_000, 900.0, 5_000, cpu_seconds=0.25, seconds=5.0)
    outcome = an_outcome(a_round(1.0), alone=alone, topics=20, partitions=3)
    assert outcome.as_json()["broker_producer_alone"] == {
        "rows_per_second": 1_000,
        "reached_rows_per_second": 900,
        "messages": 5_000,
        "seconds": 5.0,
        "cpu_microseconds_per_message": 50.0,
        "core_share": 0.05,
    }
    lines = outcome.lines()
    (place,) = (n for n, line in enumerate(lines) if "broker, producer alone: 50.00 (5.0%)" in line)
    assert "producer only reached 900 rows/s" in lines[place + 1]
    # beneath the first rate, not the second
    assert [n > place for n, line in enumerate(lines) if line.startswith("latency at")] == [0, 1]
    text = "\n".join(lines)
    assert "topics: 20, partitions of each: 3, tables: 1" in text
    without = an_outcome(a_round(1.0))
    assert without.as_json()["broker_producer_alone"] is None
    assert not any("alone:" in line for line in without.lines())


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
    assert "Other programs" not in quiet
    assert "Other programs" in "\n".join(an_outcome(a_round(1.0, foreign=3.0)).lines())


def a_receipt(
    topic: str, partition: int, begin: int, end: int, at_ms: int, **more: Any
) -> dict[str, Any]:
    offsets = {"topic": topic, "partition": partition, "begin": begin, "end": end}
    return {**offsets, "acknowledged_at_ms": at_ms, **more}


def test_a_latency_is_that_of_the_range_which_holds_the_event() -> None:
    receipts = [
        a_receipt("a", 1, 10, 20, 2_000),
        a_receipt("a", 0, 0, 9, 1_500),
        a_receipt("a", 1, 0, 10, 1_300),  # one table
        a_receipt("a", 1, 0, 10, 1_000),  # another
        a_receipt("b", 1, 0, 20, 9_000),
    ]
    events = [
        Stamped(TopicPartition("a", 1), 9, 990),
        Stamped(TopicPartition("a", 1), 10, 1_400),
        Stamped(TopicPartition("a", 0), 3, 1_300),
        Stamped(TopicPartition("b", 1), 9, 1_000),
    ]
    assert latencies_ms(events, receipts) == [200, 310, 600, 8_000]


def test_a_block_of_a_bundle_counts_once_and_only_while_events_come() -> None:
    receipts = [
        a_receipt("a", 0, 0, 9, 999),  # before
        a_receipt("a", 0, 9, 10, 1_000),
        *(a_receipt("b", n, 0, 9, 2_000, **({"is_shared": True} if n else {})) for n in range(3)),
        a_receipt("a", 1, 0, 9, 3_500),  # after
    ]
    assert count_blocks(receipts) == 4
    found = acknowledged_while(Steady(100, 1_000, 2.5, []), receipts)
    assert found == receipts[1:-1] and count_blocks(found) == 2


def test_stages_do_not_overlap() -> None:
    one = {"fetch": 1.0, "check": 0.25, "decode": 0.5, "claim": 0.0, "insert": 0.5, "wait": 0.375}
    one |= {"dead_letters": 0.125, "total": 2.25, "cpu": 1.0}
    other = dict.fromkeys(one, 0.0) | {"fetch": 1.0, "decode": 0.5, "insert": 0.5, "total": 2.0}
    assert stage_seconds([one, other]) == {
        "fetch": 1.75,
        "check": 0.25,
        "decode": 1.0,
        "claim": 0.0,
        "insert": 0.625,
        "insert wait": 0.375,
        "dead letters": 0.125,
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


@pytest.mark.slow
def test_nothing_of_a_round_is_seen_before_its_end(kafka: Kafka) -> None:
    access = kafka.access("local")
    settings = BenchSettings(topics=7, partitions=2)
    create_topics(access, settings.topic_names, 2)
    sources = settings.sources
    assert len(set(sources)) == 14
    log = SourceLog(make_admin(access))
    wait_for_ends(log, sources, {0})
    # 28 events in pieces of 16 go to all partitions alike
    orders = Orders(1, Shape(message_bytes=1_000_000))
    with held_back(access, sources, orders, 28, bad_share=0.5) as broken:
        assert set(log.stable_ends(sources).values()) == {0}
        assert 0 < broken < 28
    wait_for_ends(log, sources, {3})  # each with the end of the transaction
    with steady_producer(access, sources, Orders(1), 20_000, 0.5) as producer:
        steady = producer.produce(0.5)
    # All but a few are only sent; the broker acknowledged every one of them
    assert 0 < len(steady.stamped) < 5_000 < steady.rows == 10_000
    assert {event.source for event in steady.stamped} == set(sources)
    ends = log.stable_ends(sources)
    assert sum(ends.values()) == 14 * 3 + 10_000 and max(ends.values()) - min(ends.values()) < 2
    alone = measure_producer_alone(access, sources, Orders(1), kafka.broker.serving_pid, 2_000, 0.5)
    assert sum(log.stable_ends(sources).values()) == 14 * 3 + 10_000 + 1_000
    assert alone.messages == 1_000
    assert 0 < alone.cpu_seconds < 60 and alone.seconds > 0.4


def wait_for_ends(log: SourceLog, sources: list[TopicPartition], wanted: set[int]) -> None:
    found: set[int] = set()
    deadline = time.monotonic() + 30
    while found != wanted:
        with suppress(TransientError):  # of a topic that is being made
            found = set(log.stable_ends(sources).values())
        assert time.monotonic() < deadline, found


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
        assert 0.55 <= found.cpu_seconds <= 6  # its child that ended included, and two starts
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
            prepared_target(old.url, tmp_path, TableKind("block")),
        ):
            pass
        assert "--delivery replacing" in caught.value.hint
        with prepared_target(old.url, tmp_path, TableKind("replacing")) as target:
            assert target.rows() == 0
            assert target.pid == old.pid
            with (
                pytest.raises(ConfigurationError, match="exists already"),
                prepared_target(old.url, tmp_path, TableKind("replacing")),
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
        "topics": "3",
        "partitions": "1",
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
        [sys.executable, "-m", "sluice", "bench", *words, "--drain", "--producer-alone", "--json"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    # the first one, warm-up and round, two rates, the backlog
    alone = report["broker_producer_alone"]
    assert (alone["rows_per_second"], alone["messages"]) == (500, 1_000)
    assert report["produced"] == 1 + 2 * 20_000 + 2 * 500 + 2 * 5_000 + 8 * 500
    assert 0 < report["broken"] < 2_000
    assert report["stored"] == 2 * (report["produced"] - report["broken"])
    assert report["dead_letters"] == 2 * report["broken"]
    (one,) = report["rounds"]
    assert one["rows"] + one["dead_letters"] == 2 * 20_000 and one["dead_letters"] > 0
    assert set(report["cpu_microseconds_per_row"]) == set(ROLES)
    assert 0 < report["rows_per_second"] < 1.01 * 40_000 / one["seconds"]
    assert report["event_bytes"] == report["settings"]["message_bytes"] == 300
    assert report["latency_ms"][0]["rows"] == 1_000
    for latency in report["latency_ms"]:
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
        assert latency["max"] < (time.monotonic() - began) * 1000
        assert latency["inserts_per_second"] >= 0 and set(latency["core_share"]) == set(ROLES)
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
    assert {"check", "dead letters"} < report["task_share"].keys()
    assert report["task_share"]["insert wait"] > 0
    assert report["compared"]["different"]["tables"] == [1, 2]
    assert report["compared"]["ratios"]["rows/s"] == pytest.approx(
        report["rows_per_second"] / 1_000_000, abs=0.001
    )
