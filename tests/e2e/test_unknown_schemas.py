"""A schema registry that changes its mind about which schemas there are, while acknowledgements
are lost: it decides no row."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.cutting import run_link
from tests.support.follower import Follower, run_follower
from tests.support.world import LINEAGE, World, wait_for

OLD, NEW = 1, 2
#: Messages of the old schema and of the new one, by turns of three.
MESSAGES = 150
#: For a machine on which ten others work.
PATIENCE = 300.0


@dataclass(frozen=True)
class Encoding:
    """How messages of a format are made, and their two schemas."""

    format: str
    kind: str
    old: str
    new: str

    def message(self, schema: int, number: int) -> bytes:
        head = struct.pack(">BI", 0, schema)
        note = f"n{number}".encode()
        if self.kind == "AVRO":
            body = varint(number << 1)
            return head + body + (varint(len(note) << 1) + note if schema == NEW else b"")
        body = b"\x08" + varint(number)
        return head + b"\0" + body + (b"\x12" + varint(len(note)) + note if schema == NEW else b"")


def varint(value: int) -> bytes:
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def avro(*fields: tuple[str, str]) -> str:
    columns = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "shop.Order", "fields": columns})


AVRO = Encoding(
    "AvroConfluent", "AVRO", avro(("id", "long")), avro(("id", "long"), ("note", "string"))
)
_PROTO = 'syntax = "proto3"; message Order { int64 id = 1; %s}'
PROTOBUF = Encoding("ProtobufConfluent", "PROTOBUF", _PROTO % "", _PROTO % "string note = 2; ")
BOTH = pytest.mark.parametrize("encoding", [AVRO, PROTOBUF], ids=["avro", "protobuf"])


@pytest.fixture
def follower() -> Iterator[Follower]:
    with run_follower() as running:
        yield running


def schema_of(number: int) -> int:
    return NEW if number % 3 == 2 else OLD


def produce(world: World, topic: str, values: list[bytes]) -> None:
    producer = world.producer()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush()


def configure(
    world: World, url: str, follower: Follower, encoding: Encoding, name: str, **batch: object
) -> Path:
    """Two tables of one topic: nothing of either may be loaded before all schemas are known."""
    world.create_topic(name, 1)
    tables = {table: [name] for table in (f"{name}_a", f"{name}_b")}
    for table in tables:
        world.execute(
            f"CREATE TABLE {table} (id UInt64, note String, {LINEAGE}) ENGINE = MergeTree "
            "ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
        )
    patience = batch.pop("patience")
    path = world.configure(tables, url=url, table_settings=f'format = "{encoding.format}"', **batch)
    registry = f'[registry]\nurl = "{follower.url}"\npatience = "{patience}"\n'
    path.write_text(f"{path.read_text()}\n{registry}[dead_letters]\nmax_ratio = 1.0\n")
    return path


def assert_every_message_is_one_row(world: World, name: str, bad: frozenset[int]) -> None:
    for table in (f"{name}_a", f"{name}_b"):
        found = world.query(f"SELECT _offset, id, note FROM {table} ORDER BY _offset, note")
        expected = [
            {"_offset": n, "id": n, "note": f"n{n}" if schema_of(n) == NEW else ""}
            for n in range(MESSAGES)
            if n not in bad
        ]
        assert found == expected


@BOTH
def test_a_schema_that_is_not_there_yet_is_waited_for(
    world: World, follower: Follower, encoding: Encoding
) -> None:
    """The first acknowledgement is lost, and the registry learns the schema then, at the latest."""
    name = f"late_{encoding.kind.lower()}"
    follower.schemas[OLD] = encoding.kind, encoding.old
    with run_link(world.clickhouse.url) as link:
        path = configure(world, link.url, follower, encoding, name, patience="2m")
        produce(world, name, [encoding.message(schema_of(n), n) for n in range(MESSAGES)])
        link.lose()
        driver = world.run(path, "--until-caught-up")
        wait_for(
            lambda: link.lost > 0 or "does not know schema 2" in driver.text(),
            PATIENCE,
            "a lost acknowledgement, or a refusal",
        )
        follower.schemas[NEW] = encoding.kind, encoding.new
        wait_for(lambda: link.lost > 0, PATIENCE, "a lost acknowledgement")
        link.heal()
        assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert world.dead_letters() == []
    assert_every_message_is_one_row(world, name, frozenset())


@BOTH
def test_a_schema_that_is_deleted_while_its_rows_are_in_doubt_makes_no_dead_letter(
    world: World, follower: Follower, encoding: Encoding
) -> None:
    name = f"deleted_{encoding.kind.lower()}"
    follower.schemas[OLD] = encoding.kind, encoding.old
    follower.schemas[NEW] = encoding.kind, encoding.new
    with run_link(world.clickhouse.url) as link:
        batch = {"patience": "1s", "lease": '"20s"'}
        path = configure(world, link.url, follower, encoding, name, **batch)
        produce(world, name, [encoding.message(schema_of(n), n) for n in range(MESSAGES)])
        link.lose()
        driver = world.run(path)
        wait_for(lambda: link.lost > 0, PATIENCE, "a lost acknowledgement")
        driver.kill()
        del follower.schemas[NEW]
        link.heal()
        second = world.drain(path, PATIENCE)
        judged = world.sluice("audit", str(path))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "was probed" in second.text()
    # One of the tables had its rows; of the other one nobody had inserted anything.
    stored = {t for t in ("a", "b") if world.count(f"{name}_{t}") == MESSAGES}
    letters = world.dead_letters()
    new = [(0, n) for n in range(MESSAGES) if schema_of(n) == NEW]
    assert letters == new * (2 - len(stored)) and stored
    for table in {"a", "b"} - stored:
        rows = world.query(f"SELECT _offset FROM {name}_{table} ORDER BY _offset")
        assert [r["_offset"] for r in rows] == [n for n in range(MESSAGES) if (0, n) not in new]


def test_bytes_that_are_no_header_become_dead_letters_without_a_wait_for_each_range(
    world: World, follower: Follower
) -> None:
    """A third of the messages names another number each."""
    follower.schemas[OLD] = "AVRO", AVRO.old
    count, dice = 3_000, random.Random(3)
    batch = {"patience": "5s", "max_messages": 200}
    path = configure(world, world.clickhouse.url, follower, AVRO, "garbage", **batch)
    bad = {n for n in range(count) if n % 3 == 2}
    produce(
        world,
        "garbage",
        [
            AVRO.message(dice.randrange(10**6, 1 << 32) if n in bad else OLD, n)
            for n in range(count)
        ],
    )
    driver = world.drain(path, PATIENCE)
    letters = sorted(world.dead_letters())
    assert letters == sorted((0, n) for n in bad for _ in range(2))
    for table in ("garbage_a", "garbage_b"):
        rows = world.query(f"SELECT _offset FROM {table} ORDER BY _offset")
        assert [row["_offset"] for row in rows] == [n for n in range(count) if n not in bad]
    texts = [entry for entry in world.ledger() if entry["type"] == "text"]
    assert len(texts) <= 3, "a text for each range"
    assert driver.text().count("is not loaded yet") < count // 200
    for command in ("audit", "verify"):
        judged = world.sluice(command, str(path))
        assert judged.returncode == 0, judged.stdout + judged.stderr
