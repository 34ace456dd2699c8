"""Tables and topics that come, go and come back while a driver loads others."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import confluent_kafka as ck
import pytest

from tests.support.driver import Driver
from tests.support.world import Truth, World, assert_exact, order, wait_for

PATIENCE = 240.0
#: What another table may stand still for, as the issue has it, and what a new one may take.
PAUSE_MS, LOADED_MS = 1_000, 10_000


@dataclass
class Steady:
    """Messages into a topic of one partition, all the time, with the moment of each."""

    world: World
    topic: str
    truth: Truth = field(default_factory=Truth)
    moments: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _delivered(self, error: object, message: ck.Message) -> None:
        assert error is None, error
        offset = message.offset()
        assert offset == len(self.moments)
        self.truth.good.setdefault(0, []).append((offset, offset))
        self.moments.append(message.timestamp()[1])

    def _run(self) -> None:
        producer, number = self.world.producer(), 0
        while not self._stop.wait(0.02):
            for _ in range(5):
                producer.produce(
                    self.topic, order(number), partition=0, on_delivery=self._delivered
                )
                number += 1
            producer.poll(0)
        producer.flush()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def longest_wait_ms(self, since_ms: int, until_ms: int) -> int:
        """Of all messages that were settled in that time, or came and were settled later: from the
        producer's timestamp on, as far as that time goes."""
        waits = [
            (self.moments[int(str(entry["begin"]))], int(str(entry["at_ms"])))
            for entry in self.world.ledger()
            if entry["type"] == "settled" and entry["topic"] == self.topic
        ]
        return max(
            min(settled_ms, until_ms) - came_ms
            for came_ms, settled_ms in waits
            if settled_ms >= since_ms and came_ms <= until_ms
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def write_team_file(path: Path) -> None:
    """Beside the configuration."""
    team = path.with_suffix(".d")
    team.mkdir()
    (team / "coming.toml").write_text(
        '[[connector]]\nname = "dc1"\ntopics = ["orders-coming"]\n'
        '[[table]]\nname = "coming"\ntopics = ["orders-coming"]\nformat = "JSONEachRow"\n'
    )


def wait_until_let_go(driver: Driver) -> int:
    """Where the topic was settled that is not loaded any more."""
    gone = "orders-leaving[0] is not configured any more; it is settled at "
    wait_for(lambda: gone in driver.text(), PATIENCE, "the topic to be let go")
    return int(driver.text().split(gone)[1].split()[0])


def loaded_after_ms(world: World) -> int:
    """From the version with it to the first block of the new table."""
    entries = world.ledger()
    applied = next(e for e in entries if e["type"] == "apply" and e["version"] == 2)
    first = next(e for e in entries if e["type"] == "receipt" and e["entry"] == "coming")
    return int(str(first["at_ms"])) - int(str(applied["at_ms"]))


@pytest.mark.long
def test_tables_come_and_go_while_others_load(world: World) -> None:
    leaving, coming = Truth(), Truth()
    names = {name: [f"orders-{name}"] for name in ("steady", "leaving")}
    world.create_topic("orders-coming", 1)
    for name in names:
        world.create_topic(f"orders-{name}", 1)
        world.create_table(name)
    path = world.configure(names)
    driver = world.run(path)
    steady = Steady(world, "orders-steady")

    def apply(*words: str, status: int = 0, command: str = "apply") -> str:
        done = world.sluice(command, str(path), "--yes", "--by", "alice", *words)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        world.produce("orders-leaving", 500, leaving, partitions=1)
        world.wait_for_rows("leaving", 500, driver, PATIENCE)
        said = apply()
        assert "version 1, applied by alice" in said and "loads by it" in said

        quiet_ms = now_ms()
        time.sleep(4)
        begun_ms = now_ms()
        # A team's file, of a table that is not there: nothing changes.
        write_team_file(path)
        refused = apply(status=1)
        assert "refused: " in refused and "coming" in refused
        assert apply("--list").count("alice") == 1

        world.create_table("coming")
        world.produce("orders-coming", 300, coming, partitions=1)
        said = apply("--why", "clicks are new")
        assert "add table coming" in said and "loads by it" in said
        world.wait_for_rows("coming", 300, driver, PATIENCE)

        # Ranges of it are out when it goes; what comes later is nobody's.
        world.configure({"steady": names["steady"]})
        world.produce("orders-leaving", 20_000, leaving, partitions=1, first=500)
        assert "retire table leaving" in apply()
        settled = wait_until_let_go(driver)
        rows = world.rows("leaving")[0]
        assert [offset for offset, _ in rows] == [*range(settled)]
        world.produce("orders-leaving", 100, leaving, partitions=1, first=20_500)
        # It comes back, and goes on where it was settled.
        assert "add table leaving" in apply("--why", "it was wrong", command="rollback")
        world.wait_for_rows("leaving", leaving.rows, driver, PATIENCE)
        ended_ms = now_ms()
        # The file knows nothing of it; what was applied counts.
        driver.kill()
        driver = world.run(path)
        world.produce("orders-leaving", 100, leaving, partitions=1, first=20_600)
        world.wait_for_rows("leaving", leaving.rows, driver, PATIENCE)
        assert "other tables or topics than version 4, applied by alice" in driver.text()
    finally:
        steady.stop()
    world.wait_for_rows("steady", steady.truth.rows, driver, PATIENCE)
    done = world.sluice("drain", str(path), "--by", "alice", "--why", "the day is over")
    assert (done.returncode, driver.wait(PATIENCE)) == (0, 0), driver.text()[-4000:]
    for name, truth in (("steady", steady.truth), ("leaving", leaving), ("coming", coming)):
        assert_exact(world, name, truth)
    assert_quick(world, steady, quiet_ms, begun_ms, ended_ms)


@pytest.mark.long
def test_an_audit_demands_of_a_table_what_came_since_it_is_one(world: World) -> None:
    """Its topic was loaded into another table before."""
    truth, topic = Truth(), "orders-shared"
    world.create_topic(topic, 1)
    for table in ("first", "second"):
        world.create_table(table)
    path = world.configure({"first": [topic]})
    world.produce(topic, 300, truth, partitions=1)
    world.drain(path)
    world.configure({"first": [topic], "second": [topic]})
    done = world.sluice("apply", str(path), "--yes", "--by", "alice")
    assert done.returncode == 0, done.stdout + done.stderr
    world.produce(topic, 200, truth, partitions=1, first=300)
    world.drain(path)

    def audited(status: int) -> dict[str, int]:
        done = world.sluice("audit", str(path), "--json")
        assert done.returncode == status, done.stdout + done.stderr
        found = json.loads(done.stdout)
        assert (found["doubled"], found["foreign"], found["unrecorded"]) == (0, 0, 0)
        return {name: found[name] for name in ("loaded", "missing", "not_demanded")}

    assert audited(0) == {"loaded": 700, "missing": 0, "not_demanded": 300}
    (rows,) = world.rows("second").values()
    assert [offset for offset, _ in rows] == [*range(300, 500)]
    world.execute("ALTER TABLE second DELETE WHERE _offset = 400 SETTINGS mutations_sync = 1")
    assert audited(1) == {"loaded": 699, "missing": 1, "not_demanded": 300}


def assert_quick(world: World, steady: Steady, quiet_ms: int, begun_ms: int, ended_ms: int) -> None:
    """The new table had rows in time, and the other waited no longer than before."""
    loaded_ms = loaded_after_ms(world)
    before = steady.longest_wait_ms(quiet_ms, begun_ms)
    during = steady.longest_wait_ms(begun_ms, ended_ms)
    print(f"loaded after {loaded_ms} ms; longest wait {before} ms before, {during} ms during")
    # A machine on which rows wait for long without any apply cannot tell what an apply adds.
    if before < PAUSE_MS:
        assert loaded_ms < LOADED_MS
        assert during - before < PAUSE_MS
