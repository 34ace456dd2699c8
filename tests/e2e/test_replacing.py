"""`delivery = "replacing"`: a repeat is harmless by itself, in whatever way it comes (R22)."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.world import COLUMNS, LINEAGE, Truth, World, assert_dead_letters, assert_exact

REPLACING = 'delivery = "replacing"'
KEY = "_topic, _partition, _offset, _row, _source"

#: A topic of keys, whose table has the last value of each.
KEYED = f"""{REPLACING}
tombstones = "delete"
columns = {{ id = {{ kafka = "key" }}, gone = {{ sql = "_tombstone OR op = 'd'" }} }}
fields = {{ op = "String" }}
"""


def create(world: World, table: str, key: str = f"user_id, {KEY}", more: str = "") -> None:
    """A table without any window: what is repeated comes twice."""
    world.execute(
        f"CREATE TABLE {table} ({COLUMNS}, {LINEAGE}) ENGINE = ReplacingMergeTree {more} "
        f"ORDER BY ({key})"
    )


def rewind(world: World, configuration: Path, topic: str, *partitions: int) -> None:
    where = ("--connector", "dc1", "--topic", topic, "--partition", *map(str, partitions))
    ended = world.sluice("rewind", str(configuration), *where, "--to", "0", "--yes")
    assert ended.returncode == 0, ended.stderr


@pytest.mark.long
def test_a_rewind_replaces_what_was_loaded_before(world: World) -> None:
    world.create_topic("orders-rewound", 2)
    create(world, "rewound", key=KEY)
    truth = Truth()
    world.produce("orders-rewound", 10_000, truth, partitions=2)
    configuration = world.configure(
        {"rewound": ["orders-rewound"]}, max_messages=1_000, table_settings=REPLACING
    )
    world.drain(configuration)
    rewind(world, configuration, "orders-rewound", 0)
    world.drain(configuration)
    assert_exact(world, "rewound FINAL", truth)
    world.execute("OPTIMIZE TABLE rewound FINAL")
    assert_exact(world, "rewound", truth)


@pytest.mark.long
def test_two_attempts_at_once(world: World) -> None:
    """The second driver sends what is in doubt at once; the first one's workers insert it later."""
    world.create_topic("orders-twice")
    create(world, "twice", key=KEY)
    truth = Truth()
    configuration = world.configure(
        {"twice": ["orders-twice"]}, max_messages=2_000, lease='"3m"', table_settings=REPLACING
    )
    world.produce("orders-twice", 4_000, truth)
    first = world.run(configuration)
    world.wait_for_rows("twice", 1, first)
    world.produce("orders-twice", 60_000, truth, first=truth.rows)
    world.wait_for_rows("twice", world.count("twice") + 1, first)
    workers = first.workers()
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    second = world.drain(configuration)
    assert "is loaded again, identically" in second.text()
    assert_exact(world, "twice FINAL", truth)
    for pid in workers:
        os.kill(pid, signal.SIGCONT)
    assert first.wait() == 4, first.text()[-4000:]
    assert_exact(world, "twice FINAL", truth)


class Model:
    """The last value of each key, as the messages say it; and all that each key ever was."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self.now: dict[str, int] = {}
        self.ever: dict[str, list[int]] = {}

    def produce(self, world: World, topic: str, count: int, partitions: int) -> None:
        """Each key in one partition, in its order."""
        producer = world.producer()
        for _ in range(count):
            number = self._dice.randrange(300)
            key, value = f"k{number}", self._dice.randrange(1 << 40)
            kind = self._dice.choice(("put", "put", "put", "op", "tombstone"))
            text = {
                "put": b'{"op":"u","value":%d}' % value,
                "op": b'{"op":"d","value":%d}' % value,
                "tombstone": None,
            }[kind]
            producer.produce(topic, text, key=key.encode(), partition=number % partitions)
            self.ever.setdefault(key, []).append(value)
            if kind == "put":
                self.now[key] = value
            else:
                self.now.pop(key, None)
            producer.poll(0)
        producer.flush()


def last_values(world: World, table: str) -> dict[str, int]:
    rows = world.query(f"SELECT id, value FROM {table} FINAL")
    assert len({row["id"] for row in rows}) == len(rows)
    return {str(row["id"]): int(str(row["value"])) for row in rows}


def watched(world: World, table: str, work: Callable[[], None]) -> int:
    """Do the work; meanwhile FINAL never goes back to an earlier version of a key. Gives how often
    it was looked at."""
    ended, looks = threading.Event(), 0
    offsets: dict[str, int] = {}
    backwards: list[tuple[str, int, int]] = []

    def watch() -> None:
        nonlocal looks
        while not ended.is_set():
            for row in world.query(f"SELECT id, _offset FROM {table} FINAL"):
                key, offset = str(row["id"]), int(str(row["_offset"]))
                if offset < offsets.get(key, 0):
                    backwards.append((key, offsets[key], offset))
                offsets[key] = offset
            looks += 1
            ended.wait(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        ended.set()
        watcher.join()
    assert not backwards
    return looks


def test_final_is_right_at_every_moment_through_repeats_and_a_rewind(world: World) -> None:
    """A table of all messages, optimized between, so that each repeat is surely stored; and one of
    the last values of a keyed topic with deletes. Neither has a window."""
    world.execute(
        f"CREATE TABLE state (id String, value UInt64, gone UInt8, {LINEAGE}) "
        "ENGINE = ReplacingMergeTree(_offset, gone) ORDER BY id"
    )
    world.create_topic("state", 3)
    create(world, "kept", more="PARTITION BY country")
    world.create_topic("orders-kept")
    configuration = world.configure(
        {"kept": ["orders-kept"], "state": ["state"]},
        max_messages=1_500,
        table_settings=REPLACING,
        settings_of={"state": KEYED},
    )
    model, truth, repeats = Model(seed=1), Truth(), 0

    def work() -> None:
        nonlocal repeats
        for number in range(2):
            model.produce(world, "state", 8_000, partitions=3)
            first = number * 20_000
            world.produce("orders-kept", 20_000, truth, bad_every=1_000, first=first)
            before = world.count("state"), world.count("kept")
            driver = world.run(configuration)
            world.wait_for_rows("state", before[0] + 1, driver)
            world.wait_for_rows("kept", before[1] + 1, driver)
            driver.kill()
            world.execute("OPTIMIZE TABLE kept FINAL")
            repeats += driver.text().count("is loaded again, identically")
            assert "is probed" not in driver.text()
        repeats += world.drain(configuration).text().count("is loaded again, identically")

    assert watched(world, "state", work) > 5
    assert repeats > 0, "no kill left a range in doubt"
    assert_exact(world, "kept FINAL", truth)
    assert_dead_letters(world, truth)
    assert last_values(world, "state") == model.now
    audited = world.sluice("audit", str(configuration))
    assert audited.returncode == 0, audited.stdout

    def again() -> None:
        rewind(world, configuration, "state", 0, 1, 2)
        world.drain(configuration)

    watched(world, "state", again)
    assert last_values(world, "state") == model.now
    assert_dead_letters(world, truth)
    audited = world.sluice("audit", str(configuration))
    assert audited.returncode == 0, audited.stdout
    key = next(iter(model.now))
    world.execute(f"ALTER TABLE state DELETE WHERE id = '{key}' SETTINGS mutations_sync = 1")
    audited = world.sluice("audit", str(configuration))
    assert audited.returncode == 1
    assert "nor a later one of its key" in audited.stdout


@pytest.mark.long
def test_on_a_server_that_knows_neither_tokens_nor_deletes(old_world: World) -> None:
    """A plain table of 18.16, which cannot deduplicate at all; and the last value of each key."""
    world = old_world
    world.create_topic("orders-old-kept")
    world.create_topic("orders-old-last", 1)
    columns = f"{COLUMNS}, {LINEAGE}".replace("LowCardinality(String)", "String")
    world.execute(
        f"CREATE TABLE old_kept ({columns}) ENGINE = ReplacingMergeTree ORDER BY (user_id, {KEY})"
    )
    world.execute(
        f"CREATE TABLE old_last ({columns}) ENGINE = ReplacingMergeTree(_offset) ORDER BY user_id"
    )
    truth, last = Truth(), Truth()
    world.produce("orders-old-kept", 40_000, truth)
    world.produce("orders-old-last", 120_000, last, partitions=1)
    configuration = world.configure(
        {"old_kept": ["orders-old-kept"], "old_last": ["orders-old-last"]},
        max_messages=4_000,
        table_settings=REPLACING,
    )
    for _ in range(2):
        before = world.count("old_kept")
        driver = world.run(configuration)
        world.wait_for_rows("old_kept", before + 1, driver)
        driver.kill()
        world.execute("OPTIMIZE TABLE old_kept FINAL")
    world.drain(configuration)
    assert_exact(world, "old_kept FINAL", truth)
    newest = {number % 99991: (offset, number) for offset, number in last.good[0]}
    assert world.rows("old_last FINAL") == {0: sorted(newest.values())}


@pytest.mark.long
def test_a_table_that_could_lose_rows_is_refused_with_words(world: World) -> None:
    world.create_topic("orders-lossy", 1)
    create(world, "lossy", key="user_id")
    configuration = world.configure({"lossy": ["orders-lossy"]}, table_settings=REPLACING)
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert "inserted last, which a repeat changes" in driver.text()
