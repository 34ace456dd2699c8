"""Messages of one topic go where their headers and keys say, through kills."""

from __future__ import annotations

import json
import random

import confluent_kafka as ck
import pytest

from tests.support.world import World, order

PARTITIONS = 2
MESSAGES = 30_000
EUROPE = 'route = { header = "" }'
AMERICA = 'route = { header = "america" }'
EUROPE_ONLY = 'route = { header = "europe", name = "table" }'
KEYED = 'route = { key_prefix = "vip:" }'


def produced(world: World, topic: str) -> dict[str, dict[int, list[tuple[int, int]]]]:
    """Messages to europe, america, both by their key, and nowhere; by table and partition."""
    truth: dict[str, dict[int, list[tuple[int, int]]]] = {}
    dice, producer = random.Random(5), world.producer()
    for number in range(MESSAGES):
        header = dice.choice((b"europe", b"america", b"america", None, b"asia"))
        key = dice.choice((b"vip:7", b"plain", None))
        targets = [] if header in (None, b"asia") else [header.decode()]
        targets += ["vips"] if key == b"vip:7" else []

        def record(
            _: object, message: ck.Message, number: int = number, to: object = targets
        ) -> None:
            for table in to or ["nowhere"]:  # type: ignore[attr-defined]
                of_table = truth.setdefault(table, {})
                of_table.setdefault(message.partition(), []).append((message.offset(), number))

        producer.produce(
            topic,
            order(number),
            key,
            partition=number % PARTITIONS,
            headers=None if header is None else [("table", header), ("n", b"%d" % number)],
            on_delivery=record,
        )
        producer.poll(0)
    producer.flush()
    return truth


@pytest.mark.slow
def test_headers_and_keys_choose_the_tables(world: World) -> None:
    world.create_topic("routed", PARTITIONS)
    for table in ("europe", "america", "vips"):
        world.create_table(table)
    truth = produced(world, "routed")
    configuration = world.configure(
        {table: ["routed"] for table in ("europe", "america", "vips")},
        max_messages=2_000,
        settings_of={"europe": EUROPE, "america": AMERICA, "vips": KEYED},
    )
    driver = world.run(configuration)
    world.wait_for_rows("america", 1_000, driver)
    driver.kill()
    world.drain(configuration)
    for table in ("europe", "america", "vips"):
        assert world.rows(table) == {p: sorted(rows) for p, rows in truth[table].items()}, table
    nowhere = sorted((p, o) for p, rows in truth["nowhere"].items() for o, _ in rows)
    assert sorted(world.dead_letters()) == nowhere
    audit = world.sluice("audit", str(configuration), "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    report = json.loads(audit.stdout)
    assert report["missing"] == report["doubled"] == report["foreign"] == 0
    assert report["loaded"] == sum(
        len(r) for t in truth if t != "nowhere" for r in truth[t].values()
    )
    verify = world.sluice("verify", str(configuration))
    assert verify.returncode == 0, verify.stdout + verify.stderr


@pytest.mark.long
def test_what_has_no_route_may_be_skipped(world: World) -> None:
    world.create_topic("skipping", PARTITIONS)
    world.create_table("old_world")
    truth = produced(world, "skipping")
    configuration = world.configure(
        {"old_world": ["skipping"]},
        connector='unrouted = "skip"',
        settings_of={"old_world": EUROPE_ONLY},
    )
    world.drain(configuration)
    assert world.rows("old_world") == {p: sorted(rows) for p, rows in truth["europe"].items()}
    assert world.dead_letters() == []
    settled = [entry for entry in world.ledger() if entry["type"] == "settled"]
    skipped = sum(int(str(entry["unrouted"])) for entry in settled)
    assert skipped == MESSAGES - sum(map(len, truth["europe"].values()))
    audit = world.sluice("audit", str(configuration), "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr


@pytest.mark.long
def test_a_probe_of_a_routed_table_names_only_its_own_messages(world: World) -> None:
    """Else each message of another entry would be a gap in what is recorded. Where it found nothing
    at all, the whole range is missing."""
    world.create_topic("routed-probe", PARTITIONS)
    world.create_table("new_world", window=100)
    truth = produced(world, "routed-probe")
    configuration = world.configure(
        {"new_world": ["routed-probe"]},
        max_messages=1_000,
        lease='"5s"',
        connector='unrouted = "skip"',
        settings_of={"new_world": AMERICA},
    )
    driver = world.run(configuration)
    world.wait_for_rows("new_world", 500, driver)
    driver.kill()
    for number in range(130):  # more than the window remembers
        world.execute(f"INSERT INTO new_world (_partition, _offset) VALUES (1000000, {number})")
    second = world.drain(configuration)
    assert "is probed" in second.text()
    rows = world.rows("new_world")
    del rows[1_000_000]
    assert rows == {p: sorted(of_partition) for p, of_partition in truth["america"].items()}
    probes = [entry for entry in world.ledger() if entry.get("kind") == "probe"]
    assert probes
    wanted = {(p, o) for p, found in truth["america"].items() for o, _ in found}
    for probe in probes:
        rest = probe.get("rest", {})
        assert isinstance(rest, dict)
        missing = rest.get("new_world", [])
        if missing == [[probe["begin"], probe["end"]]]:
            continue
        for begin, end in missing:
            assert all((probe["partition"], offset) in wanted for offset in range(begin, end))
