"""The first hour: from a topic that is there to rows in a table, by the commands alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.testbed.local.orders import Orders
from tests.support.world import World


def event(number: int, order: bytes) -> dict[str, Any]:
    """An order with what real events have besides: nulls, nesting, odd names, mixed values."""
    seen: dict[str, Any] = json.loads(order)
    seen["at"] = f"2026-03-{1 + number % 28:02d}T10:{number % 60:02d}:00.{number % 1000:03d}Z"
    seen["user agent"] = f"agent {number % 3}"
    seen["coupon"] = None if number % 5 else f"C{number}"
    seen["reference"] = number if number % 2 else f"R-{number}"
    seen["address"] = {"city": f"city {number % 7}", "floor": number % 9}
    seen["tags"] = ["a", "b"][: number % 3]
    seen["_offset"] = -1  # a field of this name is no business of the lineage column
    if number % 3 == 0:
        seen["gift"] = True
    return seen


@pytest.mark.slow
def test_from_a_topic_to_its_rows(world: World) -> None:
    topic = f"shop.orders-{world.name}"
    world.create_topic(topic, 3)
    producer = world.producer()
    orders = [order for chunk in Orders(7).take(6_000) for order in chunk]
    events = [event(number, order) for number, order in enumerate(orders)]
    for number, seen in enumerate(events):
        producer.produce(topic, json.dumps(seen).encode(), partition=number % 3)
    producer.produce(topic, None, key=b"k", partition=0)
    assert producer.flush(30) == 0

    path = world.folder / "first.toml"
    address = ["--brokers", world.broker.brokers, "--clickhouse", world.clickhouse.url]
    init = ["init", "--from-topic", topic, *address, "--output", str(path)]
    made = world.sluice(*init, "--samples", "600", "--table", "default.first_orders")
    assert made.returncode == 0, made.stderr
    world.execute(made.stdout.strip().rstrip(";"))
    text = path.read_text().replace(f'name = "{topic}"', f'name = "{world.name}"')
    path.write_text(text)

    doctor = world.sluice("doctor", str(path))
    assert doctor.returncode == 0, doctor.stdout
    world.drain(path)
    assert world.dead_letters() == []
    columns = {row["name"]: row["type"] for row in world.query("DESCRIBE TABLE first_orders")}
    assert columns["order_id"] == "Int64"
    assert columns["status"] == "LowCardinality(String)"
    assert columns["sku"] == "String"
    assert columns["at"] == columns["ordered_at"] == "DateTime64(3)"
    assert columns["coupon"] == "Nullable(String)"
    assert columns["reference"] == "String"
    assert columns["gift"] == "Nullable(Bool)"
    assert columns["user agent"] == "LowCardinality(String)"
    found = world.query(
        "SELECT * EXCEPT (_topic, _partition, _offset, _row, _source) FROM first_orders "
        "ORDER BY order_id"
    )
    assert [as_sent(row) for row in found] == [plain(seen) for seen in events]
    again = world.sluice(*init)
    assert again.returncode == 2
    assert "is there already" in again.stderr


def plain(seen: dict[str, Any]) -> dict[str, Any]:
    """The event as its row says it."""
    wanted = {name: value for name, value in seen.items() if name != "_offset"}
    wanted["ordered_at"] += ".000"
    wanted["at"] = wanted["at"].replace("T", " ").removesuffix("Z")
    wanted["reference"] = str(wanted["reference"])
    wanted.setdefault("gift", None)
    return wanted


def as_sent(row: dict[str, Any]) -> dict[str, Any]:
    """A row with its numbers of 64 bits as numbers."""
    numbers = ("order_id", "user_id", "quantity")
    address = {**row["address"], "floor": int(row["address"]["floor"])}
    return {**row, **{name: int(row[name]) for name in numbers}, "address": address}
