"""What other people's encoders write, through the whole loader: envelopes, keys, compression."""

from __future__ import annotations

import gzip
import json

import pytest

from tests.support.world import LINEAGE, World

CHANGES = """
delivery = "replacing"
tombstones = "delete"
envelope = "debezium"
format = "JSONEachRow"
key = { format = "JSONEachRow" }
columns = { id = { key = "id" }, gone = { sql = "_tombstone OR `__op` = 'd'" } }
fields = { "__op" = "String" }
"""
PACKED = 'format = "JSONEachRow"\ndecompress = "gzip"\ntimestamps = "ms"\n'


def event(op: str, before: object, after: object) -> bytes:
    payload = {"before": before, "after": after, "op": op, "ts_ms": 1}
    return json.dumps({"schema": {"type": "struct"}, "payload": payload}).encode()


@pytest.mark.long
def test_change_events_with_keys_and_values_that_are_compressed(world: World) -> None:
    world.create_topic("changes", 1)
    world.create_topic("packed", 1)
    world.execute(
        f"CREATE TABLE changes (id UInt32, name String, gone UInt8, {LINEAGE}) "
        "ENGINE = ReplacingMergeTree(_offset, gone) ORDER BY id"
    )
    world.execute(
        f"CREATE TABLE packed (id UInt32, at DateTime64(3, 'UTC'), {LINEAGE}) "
        "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    producer = world.producer()

    def change(number: int, value: bytes | None) -> None:
        key = json.dumps({"schema": {}, "payload": {"id": number}}).encode()
        producer.produce("changes", value, key, partition=0)

    for number in range(400):
        change(number, event("c", None, {"id": number, "name": "a"}))
        if number % 2:
            change(number, event("u", None, {"id": number, "name": "b"}))
        if number % 4 == 3:
            change(number, event("d", {"id": number, "name": None}, None))
            change(number, None)
    producer.produce("changes", event("t", None, None), b"{}", partition=0)
    for number in range(1_000):
        raw = json.dumps({"id": number, "at": 1_767_225_600_000 + number}).encode()
        producer.produce("packed", gzip.compress(raw) if number % 100 else raw, partition=0)
    producer.flush()
    configuration = world.configure(
        {"changes": ["changes"], "packed": ["packed"]},
        settings_of={"changes": CHANGES, "packed": PACKED},
        max_messages=300,
    )
    world.drain(configuration)
    found = world.query("SELECT name, count() AS n FROM changes FINAL GROUP BY name ORDER BY name")
    assert [(row["name"], int(str(row["n"]))) for row in found] == [("a", 200), ("b", 100)]
    (packed,) = world.query("SELECT count() AS n, sum(toUnixTimestamp64Milli(at)) AS s FROM packed")
    numbers = [number for number in range(1_000) if number % 100]
    assert int(str(packed["n"])) == len(numbers)
    assert int(str(packed["s"])) == sum(1_767_225_600_000 + number for number in numbers)
    assert len(world.dead_letters()) == 1 + 10
    audited = world.sluice("audit", str(configuration))
    assert audited.returncode == 0, audited.stdout
