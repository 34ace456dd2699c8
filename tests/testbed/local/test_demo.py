"""The demonstration: its parts, and all of it on few rows."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pytest

from sluice.core.errors import TerminalError
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.local.console import aligned
from sluice.testbed.local.demo import Findings
from sluice.testbed.local.driver import running_driver
from sluice.testbed.local.orders import DEFECTS, TOMBSTONE, Orders
from sluice.testbed.local.processes import RUN_VARIABLE, processes_of_run, wait_for_end
from sluice.testbed.local.producing import Produced, create_topic, produce_with_defects
from tests.support.kafka import Kafka
from tests.support.world import wait_for


@dataclass
class Audited:
    """Like the audit's report."""

    loaded: int = 92
    skipped: int = 1
    missing: int = 0
    doubled: int = 0
    foreign: int = 0
    unaudited: tuple[str, ...] = ()


BROKEN = {(0, 7), (3, 1)}


def findings(
    letters: tuple[tuple[int, int], ...] = ((0, 7), (3, 1)),
    rows: int = 92,
    orders: int = 92,
    **audited: Any,
) -> Findings:
    produced = Produced(events=100, broken=BROKEN, tombstones=1, repeated=5, kinds=Counter())
    return Findings(produced, Audited(**audited), letters, 1.0, rows, orders)  # type: ignore[arg-type]


def test_all_is_well() -> None:
    found = findings()
    assert found.problems() == []
    assert (found.produced.unique, found.duplicates, found.doubled) == (95, 5, 0)


@pytest.mark.parametrize("name", ["missing", "doubled", "foreign", "skipped", "loaded"])
def test_every_number_of_the_audit_counts(name: str) -> None:
    more: dict[str, Any] = {name: 5}
    assert len(findings(**more).problems()) == 1


@pytest.mark.parametrize(
    ("letters", "what"),
    [
        (((0, 7),), "without a dead letter"),
        (((0, 7), (3, 1), (3, 2)), "of good events"),
        (((0, 7), (3, 1), (3, 1)), "more than once"),
    ],
)
def test_dead_letters_are_the_broken_events_once(
    letters: tuple[tuple[int, int], ...], what: str
) -> None:
    (problem,) = findings(letters).problems()
    assert what in problem


def test_what_could_not_be_audited_is_no_success() -> None:
    assert len(findings(unaudited=("orders",)).problems()) == 1


def test_an_order_of_two_messages_is_one_row() -> None:
    """Two rows of one order are found whatever the audit says of their messages."""
    found = findings(loaded=97, rows=97)
    assert (found.duplicates, found.doubled) == (0, 5)
    assert found.problems() == [
        "rows of an order that has one: 5, expected 0",
        "loaded: 97, expected 92",
    ]
    assert findings(rows=91, orders=91).problems() == ["orders in the table: 91, expected 92"]


def test_orders_are_as_large_as_said_and_repeat_with_their_seed() -> None:
    first = [event for chunk in Orders(1).take(12_000) for event in chunk]
    again = [event for chunk in Orders(1).take(12_000) for event in chunk]
    assert first == again
    assert 190 <= sum(map(len, first)) / len(first) <= 196
    orders = [json.loads(event) for event in first]
    assert [order["order_id"] for order in orders] == list(range(12_000))
    assert all(len(order) == 9 for order in orders)


def test_broken_orders_are_broken() -> None:
    (event,) = next(Orders(1).take(1))
    good = json.loads(event)
    damaged = {defect.name: defect.apply(event) for defect in DEFECTS}
    assert len(set(damaged.values()) - {event}) == len(DEFECTS)
    assert TOMBSTONE.apply(event) is None
    parsed = {}
    for name, value in damaged.items():
        assert value is not None
        try:
            parsed[name] = json.loads(value)
        except ValueError:
            continue
    assert set(parsed) == {
        "text for a number",
        "a number out of range",
        "a time out of range",
        "null",
        "an array",
    }
    assert parsed["a number out of range"] == {**good, "quantity": 70000}
    assert parsed["null"] == {**good, "amount": None}
    assert parsed["a time out of range"]["ordered_at"].startswith("22")


def test_producing_knows_which_events_are_broken(kafka: Kafka) -> None:
    access, topic = kafka.access("local"), f"orders-{uuid.uuid4().hex[:8]}"
    create_topic(access, topic)
    with pytest.raises(TerminalError, match=f"creating topic {topic}"):
        create_topic(access, topic)
    seen: list[int] = []
    produced = produce_with_defects(access, topic, 4, 25_001, 300, 3, seen.append)
    assert produced.events == seen[-1] == 25_001
    assert len(produced.broken) + produced.tombstones == 300 == sum(produced.kinds.values())
    assert produced.tombstones == produced.kinds["tombstone"] > 0
    assert set(produced.kinds) == {defect.name for defect in (*DEFECTS, TOMBSTONE)}
    assert {partition for partition, _ in produced.broken} == {0, 1, 2, 3}
    assert max(offset for _, offset in produced.broken) < 6_251


def test_repeated_orders_are_good_ones_somewhere_else(kafka: Kafka) -> None:
    access, topic = kafka.access("local"), f"orders-{uuid.uuid4().hex[:8]}"
    create_topic(access, topic)
    seen: list[int] = []
    produced = produce_with_defects(access, topic, 4, 30_000, 300, 3, seen.append, 1_500)
    messages = read_all(access, topic, 4, 30_000)
    assert produced.events == seen[-1] == 30_000
    assert (produced.repeated, produced.unique) == (1_500, 28_500)
    assert produced.good == 28_200
    places: dict[bytes, list[tuple[int, int]]] = {}
    for place, value in messages.items():
        if place not in produced.broken and value is not None:
            places.setdefault(value, []).append(place)
    assert len(places) == len({json.loads(value)["order_id"] for value in places}) == 28_200
    twice = [found for found in places.values() if len(found) > 1]
    assert [len(found) for found in twice] == [2] * 1_500
    crossing = sum(one[0] != other[0] for one, other in twice)
    assert 1_000 < crossing < 1_250  # three of four, drawn
    far = sum(abs(one[1] - other[1]) > 2_000 for one, other in twice)
    assert far > 100  # in other ranges, too


def read_all(
    access: KafkaAccess, topic: str, partitions: int, count: int
) -> dict[tuple[int, int], bytes | None]:
    """Each message of a topic, by partition and offset."""
    consumer = ck.Consumer({**access.client(), "group.id": "test", "enable.auto.commit": False})
    try:
        consumer.assign([ck.TopicPartition(topic, n, 0) for n in range(partitions)])
        found: dict[tuple[int, int], bytes | None] = {}
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert time.monotonic() < deadline, len(found)
            for message in consumer.consume(10_000, 1.0):
                assert message.error() is None
                found[message.partition(), message.offset()] = message.value()
        return found
    finally:
        consumer.close()


def test_a_driver_that_leaves_something_behind_is_noticed(tmp_path: Path) -> None:
    script = (
        "import subprocess, time; subprocess.Popen(['sleep', '60']);"
        "print('its child runs', flush=True); time.sleep(60)"
    )
    with running_driver(["-c", script], tmp_path / "log") as driver:
        wait_for(lambda: "its child runs" in driver.log.read_text(), 60, "its child")
        assert len(processes_of_run(driver.run)) == 2
        driver.process.kill()
        driver.process.wait()
        assert len(wait_for_end(driver.run, 0.2)) == 1
        run = driver.run
        for pid in processes_of_run(run):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: processes_of_run(run) == [], 60, "the end of what was killed")


def test_a_driver_that_fails_shows_its_log(tmp_path: Path) -> None:
    script = "import sys; sys.exit('it is broken')"
    with running_driver(["-c", script], tmp_path / "log") as driver:
        driver.process.wait()
        with pytest.raises(TerminalError, match=r"(?s)ended with status 1.*it is broken"):
            driver.check()


def test_numbers_stand_below_one_another() -> None:
    assert aligned([("produced", 1000000, ""), ("lost", 0, "none")]) == (
        "  produced  1,000,000\n  lost              0  none"
    )


def left_behind() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("sluice-demo-*"))


@pytest.fixture
def clean() -> Iterator[None]:
    """Nothing stays: no folder, no process that carries the test's mark."""
    before = left_behind()
    yield
    assert left_behind() <= before


def start_demo(mark: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sluice", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "SLUICE_TEST_MARK": mark},
    )


def marked(mark: str) -> list[int]:
    needle = f"SLUICE_TEST_MARK={mark}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_the_demonstration(clean: None) -> None:
    demo = start_demo("whole", "--rows", "20000")
    output, _ = demo.communicate(timeout=480)
    assert demo.returncode == 0, output
    assert "Every order exactly once." in output
    assert output.count("driver killed (SIGKILL)") == 2
    in_doubt = [int(count) for count in re.findall(r"(\d+) ranges were in doubt", output)]
    assert len(in_doubt) == 2 and any(in_doubt)
    assert output.count("ranges in doubt, identically") == sum(map(bool, in_doubt))
    assert "\r" not in output and "█" not in output  # no bars without a terminal
    numbers = dict(line.split()[:2] for line in output.splitlines() if line.startswith("  "))
    assert (numbers["produced"], numbers["lost"], numbers["doubled"]) == ("20,000", "0", "0")
    assert (numbers["unique"], numbers["duplicates"]) == ("19,000", "1,000")
    counts = [int(numbers[n].replace(",", "")) for n in ("loaded", "dead-lettered", "skipped")]
    assert sum(counts) == 19_000 and counts[1] > 300
    wait_for(lambda: not marked("whole"), 60, "the end of what was killed")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demonstration_leaves_nothing(clean: None, number: signal.Signals) -> None:
    demo = start_demo("interrupted", "--rows", "2000")
    assert demo.stdout is not None
    while "produced" not in demo.stdout.readline():
        assert demo.poll() is None

    def has_driver() -> bool:
        found = marked("interrupted")
        return any(RUN_VARIABLE.encode() in _environment(pid) for pid in found)

    wait_for(has_driver, 60, "the driver")
    demo.send_signal(number)
    output, _ = demo.communicate(timeout=120)
    assert demo.returncode == 130, output
    wait_for(lambda: not marked("interrupted"), 60, "the end of what was killed")


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
