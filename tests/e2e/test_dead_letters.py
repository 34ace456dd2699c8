"""Dead letters from the first bad message to the audit after their replay."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.world import LINEAGE, World


def create(world: World, table: str, quantity: str) -> None:
    world.execute(
        f"CREATE TABLE {table} (id UInt64, quantity {quantity}, {LINEAGE}) ENGINE = MergeTree "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )


def produce(world: World, topic: str, *values: bytes) -> None:
    producer = world.producer()
    for number, value in enumerate(values):
        producer.produce(topic, value, key=b"k%d" % number, headers=[("trace", b"t")], partition=0)
    assert producer.flush(30) == 0


def rows(world: World, table: str) -> list[tuple[int, int]]:
    found = world.query(f"SELECT id, quantity FROM {table} ORDER BY id, quantity")
    return [(int(str(row["id"])), int(str(row["quantity"]))) for row in found]


def dead_letters(world: World, configuration: Path, *filters: str) -> list[dict[str, object]]:
    ended = world.sluice("dead-letters", "list", str(configuration), "--json", *filters)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, object]] = json.loads(ended.stdout)
    return found


def replayed(world: World, configuration: Path, *filters: str) -> tuple[int, int]:
    """How many were replayed, and how many had been before."""
    words = ("dead-letters", "replay", str(configuration), "--yes", "--json", *filters)
    ended = world.sluice(*words)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    return report["replayed"], report["replayed_before"]


def assert_clean(world: World, configuration: Path, **counts: int) -> None:
    """Audit and verifier find nothing, and the audit counts this."""
    audit = world.sluice("audit", str(configuration), "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    report = json.loads(audit.stdout)
    assert report["missing"] == report["doubled"] == report["foreign"] == 0, report
    assert {name: report[name] for name in counts} == counts
    verify = world.sluice("verify", str(configuration), "--source", "ledger")
    assert verify.returncode == 0, verify.stdout + verify.stderr


@pytest.mark.long
def test_a_fixed_table_gets_its_messages_and_a_bad_one_keeps_its_origin(world: World) -> None:
    world.create_topic("dl-one", 1)
    create(world, "dl_one", "UInt16")
    produce(
        *(world, "dl-one"),
        *(b'{"id":%d,"quantity":%d}' % (i, i) for i in range(20)),
        *(b'{"id":100,"quantity":70000}', b'{"id":101,"quantity":80000}', b'{"id":102'),
    )
    configuration = world.configure({"dl_one": ["dl-one"]})
    with configuration.open("a") as file:
        file.write('[dead_letters]\nmask = ["quantity"]\n')
    world.drain(configuration)
    found = dead_letters(world, configuration)
    assert [str(each["error"]).partition(" is not shown: ")[::2] for each in found] == [
        *[("a value of quantity", "[dead_letters] mask")] * 2,
        ("what the message holds", "[dead_letters] mask"),
    ]
    assert [(each["offset"], each["attempt"]) for each in found] == [(20, 1), (21, 1), (22, 1)]
    assert {each["load_spec"] for each in found} != {""} and all(
        e["attempted_at_ms"] for e in found
    )
    world.execute("ALTER TABLE dl_one MODIFY COLUMN quantity UInt32")
    assert replayed(world, configuration) == (3, 0)
    assert replayed(world, configuration) == (0, 3)
    world.drain(configuration)
    assert rows(world, "dl_one")[-2:] == [(100, 70000), (101, 80000)]
    assert len(rows(world, "dl_one")) == 22
    (again,) = dead_letters(world, configuration, "--waiting")
    assert (again["attempt"], again["error"]) == (2, found[2]["error"])
    assert again["origin"] == found[2]["origin"] and again["headers"] == found[2]["headers"]
    assert int(str(again["offset"])) > 22
    assert len(dead_letters(world, configuration, "--replayed")) == 3
    assert_clean(world, configuration, produced=26, loaded=22, dead_lettered=4)
    purge = world.sluice("dead-letters", "purge", str(configuration), "--replayed", "--yes")
    assert (purge.returncode, purge.stdout) == (0, "purged  3\nkept    0\n"), purge.stderr
    assert_clean(world, configuration, produced=26, loaded=22, dead_lettered=4)
    assert [each["attempt"] for each in dead_letters(world, configuration)] == [2]


@pytest.mark.long
def test_a_message_goes_back_only_to_the_table_that_missed_it(world: World) -> None:
    world.create_topic("dl-two", 1)
    create(world, "dl_narrow", "UInt16")
    create(world, "dl_wide", "UInt32")
    produce(world, "dl-two", b'{"id":1,"quantity":1}', b'{"id":2,"quantity":70000}')
    configuration = world.configure({"dl_narrow": ["dl-two"], "dl_wide": ["dl-two"]})
    world.drain(configuration)
    assert rows(world, "dl_wide") == [(1, 1), (2, 70000)]
    assert [each["table"] for each in dead_letters(world, configuration)] == ["dl_narrow"]
    world.execute("ALTER TABLE dl_narrow MODIFY COLUMN quantity UInt32")
    assert replayed(world, configuration, "--table", "dl_narrow") == (1, 0)
    produce(world, "dl-two", b'{"id":3,"quantity":3}')
    world.drain(configuration)
    assert rows(world, "dl_narrow") == [(1, 1), (2, 70000), (3, 3)]
    assert rows(world, "dl_wide") == [(1, 1), (2, 70000), (3, 3)]
    assert_clean(world, configuration, dead_lettered=1)


@pytest.mark.long
def test_a_deployment_that_makes_most_messages_bad_stops_with_nothing_written(
    world: World,
) -> None:
    world.create_topic("dl-limit", 1)
    create(world, "dl_limit", "UInt16")
    produce(
        *(world, "dl-limit"),
        *(b'{"id":%d,"quantity":%d}' % (i, 1 if i % 4 == 0 else 70000) for i in range(200)),
    )
    configuration = world.configure({"dl_limit": ["dl-limit"]})
    driver = world.run(configuration, "--until-caught-up")
    assert driver.wait() == 1
    assert dead_letters(world, configuration) == []
    log = driver.text()
    assert "150 of the last 200 messages cannot become rows of table entry dl_limit: 75%" in log
    assert "max_ratio is 0.5" in log and "offset 1 out-of-range" in log
    assert "--as not-loaded" not in log  # fifty rows were inserted
    with configuration.open("a") as file:
        file.write("[dead_letters]\nmax_ratio = 1.0\n")
    world.drain(configuration)
    assert len(dead_letters(world, configuration)) == 150
    assert len(rows(world, "dl_limit")) == 50
    assert_clean(world, configuration, produced=200, loaded=50, dead_lettered=150)
