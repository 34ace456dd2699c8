"""The benchmark's options: what they make of events, what they refuse, what they compare."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.config import Configuration, load
from sluice.core.errors import ConfigurationError
from sluice.core.ledger import LedgerEntry, encode_entries, receipt_entry, settled_entry
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Loaded, Receipt
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.tail import LogMessage
from sluice.testbed.local import bench_flame, bench_rounds, bench_settings, tail
from sluice.testbed.local.bench import Target, pipeline_of, run_bench, table_names
from sluice.testbed.local.bench_flame import Flame, find_py_spy, recorded
from sluice.testbed.local.bench_report import compared, figures, read_stored
from sluice.testbed.local.bench_rounds import Bench
from sluice.testbed.local.bench_settings import BenchSettings
from sluice.testbed.local.orders import COLUMNS, Orders, Shape, natural_bytes
from sluice.testbed.local.producing import Stamped, Steady
from tests.support.world import wait_for


@pytest.mark.parametrize(
    "shape", [Shape(), Shape(message_bytes=1_000), Shape(24), Shape(100, 5_000)], ids=str
)
def test_events_have_the_size_and_the_columns_that_were_asked_for(shape: Shape) -> None:
    events = [event for chunk in Orders(7, shape).take(3_000) for event in chunk]
    mean = sum(map(len, events)) / len(events)
    assert mean == pytest.approx(shape.event_bytes, rel=0.01)
    names = [definition.split()[0] for definition in shape.definitions]
    assert len(names) == len(set(names)) == shape.columns
    for event in events[::500]:
        assert sorted(json.loads(event)) == sorted(names)


def test_further_columns_have_values_of_their_types() -> None:
    (event,) = next(Orders(7, Shape(14)).take(1))
    values = json.loads(event)
    types = [definition.split()[1] for definition in Shape(14).definitions[len(COLUMNS) :]]
    assert types == ["UInt32", "Float64", "String", "Int64", "DateTime"]
    number, decimal, text, signed, moment = (values[f"field_{n}"] for n in range(10, 15))
    assert 0 <= number < 2**32 and isinstance(decimal, float | int) and isinstance(text, str)
    assert -(2**63) <= signed < 2**63 and len(moment) == len("2026-03-01 00:00:00")


def test_large_events_come_in_small_pieces() -> None:
    chunks = list(Orders(7, Shape(message_bytes=1_000_000)).take(20))
    assert [len(chunk) for chunk in chunks] == [16, 4]
    assert next(Orders(7).take(9)) == next(Orders(7, Shape()).take(9))


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"columns": 8}, "--columns 8 is out of bounds", "9 to 1,000"),
        ({"tables": 1_001}, "--tables 1,001 is out of bounds", "1 to 1,000"),
        ({"partitions": 10_001}, "--partitions 10,001", "10,000"),
        ({"topics": 2_501}, "--topics 2,501 is out of bounds", "1 to 2,500"),
        ({"message_bytes": 2_000_000}, "--message-bytes 2,000,000 is out of bounds", "1,000,000"),
        ({"message_bytes": 100}, "--message-bytes 100: 9 columns take 193 bytes", "193 bytes"),
        ({"message_bytes": 193, "columns": 30}, "30 columns take", "fewer columns"),
        ({"flame": Path("/no/where.svg")}, "--flame /no/where.svg: there is no folder", "Make it"),
        (
            {"compare": Path("no-such.json")},
            "--compare no-such.json: No such file",
            "--json > FILE",
        ),
    ],
)
def test_refused_before_anything_starts(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        run_bench(BenchSettings(**options))
    assert message in str(caught.value) and hint in caught.value.hint


def test_the_natural_size_is_accepted() -> None:
    BenchSettings(message_bytes=natural_bytes(9)).check()
    assert BenchSettings().as_json_settings()["message_bytes"] == natural_bytes(9) == 193


def test_a_profiler_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigurationError, match="py-spy, which is not installed") as caught:
        run_bench(BenchSettings(flame=tmp_path / "flame.svg"))
    assert caught.value.hint == "pip install py-spy"


def a_recorder(folder: Path, body: str) -> str:
    """A program in the place of py-spy, which is no dependency."""
    path = folder / "py-spy"
    path.write_text(f"#!{sys.executable}\nimport signal, sys, time\n{textwrap.dedent(body)}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_recording_ends_with_the_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_flame, "_START_SECONDS", 0.2)
    recorder = a_recorder(
        tmp_path,
        """
        def end(number, frame):
            open(sys.argv[sys.argv.index("--output") + 1], "w").write(" ".join(sys.argv))
            sys.exit(0)
        signal.signal(signal.SIGINT, end)
        open(sys.argv[0] + ".records", "w").close()
        time.sleep(600)
        """,
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_py_spy() == recorder
    flame = Flame(tmp_path / "flame.svg")
    with recorded(recorder, 4711, flame):
        wait_for(Path(f"{recorder}.records").exists, 60, "the recorder's start")
    assert flame.native and not flame.failure and "native frames" in flame.line
    words = flame.file.read_text()
    assert "--pid 4711" in words and words.endswith("--native")


def test_a_profiler_without_native_frames_or_without_rights_spoils_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench_flame, "_START_SECONDS", 20.0)  # it ends much sooner
    recorder = a_recorder(tmp_path, "print('Permission denied', file=sys.stderr); sys.exit(1)")
    flame = Flame(tmp_path / "flame.svg")
    with recorded(recorder, os.getpid(), flame):
        pass
    assert not flame.native and flame.failure == "Permission denied"
    assert "no flame graph" in flame.line


def a_report(**changes: Any) -> dict[str, Any]:
    return {
        "server": "embedded",
        "cores": 2,
        "settings": {"rows": 1_000, "tables": 1},
        "rows_per_second": 400_000,
        "cpu_microseconds_per_row": {"broker": 0.5, "workers": 2.0},
        "peak_bytes": {"workers": 600_000_000},
        "latency_ms": [{"rows_per_second": 1_000, "p50": 600, "p95": 700, "p99": 1_000}],
        "idle": {"core_share": {"workers": 0.0}},
        **changes,
    }


def test_a_comparison_has_a_ratio_for_each_figure() -> None:
    now = a_report(
        rows_per_second=500_000,
        cpu_microseconds_per_row={"broker": 0.5, "workers": 1.5},
        settings={"rows": 2_000, "tables": 1, "new": True},
        cores=4,
        start_to_first_row_seconds=8.5,  # the stored run did not look
    )
    comparison = compared(Path("before.json"), a_report(), now)
    ratios = comparison.as_json()["ratios"]
    assert ratios["rows/s"] == 1.25
    assert ratios["CPU µs/row, workers"] == 0.75
    assert ratios["CPU µs/row, together"] == 0.8
    assert ratios["latency ms, p99 at 1,000 rows/s"] == 1.0
    assert ratios["idle % of a core, workers"] is None  # nothing then
    assert "start to first row, s" not in ratios
    assert comparison.different == {"cores": (2, 4), "rows": (1_000, 2_000)}
    text = "\n".join(comparison.lines())
    assert "rows/s" in text and "1.25" in text and "not measured alike: rows was 1000" in text


def test_a_run_of_a_former_version_can_be_compared() -> None:
    latency = {"rows_per_second": 1_000, "p50": 600, "p95": 700, "p99": 1_000}
    assert figures(a_report(latency_ms=latency)) == figures(a_report())


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "is not a run"), ("{}", "is not a run")]
)
def test_what_is_no_stored_run_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "before.json").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        read_stored(tmp_path / "before.json")


def test_a_broker_without_enough_files_is_told_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_settings.resource, "getrlimit", lambda _: (1_024, 4_096))
    BenchSettings(topics=1_000, partitions=3).check()
    with pytest.raises(ConfigurationError, match=r"5,000 open files, the limit is 4,096") as caught:
        BenchSettings(topics=1_000).check()
    assert "ulimit -Hn 5000" in caught.value.hint


def test_a_round_is_dealt_to_the_partitions_of_all_topics() -> None:
    settings = BenchSettings(rows=20_000, topics=20, partitions=2, range_messages=300)
    assert settings.even_range() == 250  # 500 of each partition
    assert settings.sources[:3] == [
        TopicPartition("orders-1", 0),
        TopicPartition("orders-1", 1),
        TopicPartition("orders-2", 0),
    ]
    assert len(set(settings.sources)) == 40
    assert settings.as_json_settings()["topics"] == 20


def a_configuration(path: Path, settings: BenchSettings) -> Configuration:
    target = Target("http://localhost:8123", "default", "", "", None, table_names(3))
    path.write_text(pipeline_of(settings, target, "localhost:9092"))
    return load(path, {})


def test_one_topic_into_several_tables(tmp_path: Path) -> None:
    tables = a_configuration(tmp_path / "sluice.toml", BenchSettings()).tables_of("orders")
    assert [table.table for table in tables] == ["orders", "orders_2", "orders_3"]


def test_many_topics_are_taken_by_an_expression(tmp_path: Path) -> None:
    settings = BenchSettings(topics=1_000)
    configuration = a_configuration(tmp_path / "sluice.toml", settings)
    names = settings.topic_names
    in_the_cluster = [*names, "orders", "orders-x", configuration.ledger_topic, "__offsets"]
    assert sorted(configuration.topics_of("local", in_the_cluster)) == sorted(names)
    for topic in (names[0], names[-1]):
        tables = configuration.tables_of(topic)
        assert [table.table for table in tables] == ["orders", "orders_2", "orders_3"]
    assert configuration.tables_of("orders") == ()


class Messages:
    """In the place of a tail: a ledger that was read."""

    def __init__(self) -> None:
        self._values: list[bytes] = []

    def add(self, entries: list[LedgerEntry]) -> None:
        self._values += [value for _, value in encode_entries("local", 1, entries)]

    def poll(self, _: float) -> list[LogMessage]:
        values, self._values = self._values, []
        return [LogMessage(0, 0, None, value) for value in values]


LOADED = Loaded((), (), messages=5, bytes=500, skipped=0)
FIRST, SECOND = TopicPartition("orders-1", 0), TopicPartition("orders-2", 0)


def a_tail(monkeypatch: pytest.MonkeyPatch) -> tuple[tail.LedgerTail, Messages]:
    ledger = Messages()
    monkeypatch.setattr(tail, "Tail", lambda *_, **__: ledger)
    return tail.LedgerTail(KafkaAccess("local", "nobody:1"), "ledger"), ledger


def test_positions_are_those_of_a_topic_and_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    followed, ledger = a_tail(monkeypatch)
    ranges = [Range(FIRST, 0, 5), Range(SECOND, 5, 10), Range(TopicPartition("orders-2", 1), 0, 7)]
    ledger.add([settled_entry(each, 1, 1, LOADED) for each in ranges])
    followed.poll()
    assert followed.positions == {each.source: each.end for each in ranges}


class BusyProducer:
    """Produces five messages into each of two topics, which become one block meanwhile."""

    def __init__(self, ledger: Messages) -> None:
        self._ledger = ledger

    def produce(self, seconds: float, watch: Callable[[], None]) -> Steady:
        began_ms = time.time_ns() // 1_000_000
        watch()
        busy_until = time.process_time() + 0.1
        while time.process_time() < busy_until:
            pass
        for number, source in enumerate((FIRST, SECOND)):
            receipt = Receipt(
                *("orders", "d.orders", "s1", "token", 5, 500, "", "http://h", 1, 3),
                acknowledged_at_ms=began_ms + 70 + number,
                is_shared=number > 0,
            )
            block = Range(source, 0, 5)
            self._ledger.add([receipt_entry(block, 1, 1, receipt)])
            self._ledger.add([settled_entry(block, 1, 1, LOADED)])
        return Steady(
            10, began_ms, seconds, [Stamped(each, 2, began_ms) for each in (FIRST, SECOND)]
        )


def test_a_rate_into_two_topics_that_share_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    followed, ledger = a_tail(monkeypatch)
    producing = nullcontext(BusyProducer(ledger))
    monkeypatch.setattr(bench_rounds, "steady_producer", lambda *_: producing)
    me: Any = SimpleNamespace(process=SimpleNamespace(pid=os.getpid()), check=lambda: None)
    sources = [FIRST, SECOND]
    access = KafkaAccess("local", "nobody:1")
    bench = Bench(access, sources, me, followed, {"broker": [os.getpid()]}, Orders(1))
    found = bench.latency(20, 0.5)
    assert found.values_ms == [70, 71] and found.blocks == 1
    assert (found.messages, found.reached, found.seconds) == (10, 20.0, 0.5)
    assert bench.produced == 10
    assert found.cpu_seconds["broker"] >= 0.09 and 0 < found.core_shares["broker"] < 8
