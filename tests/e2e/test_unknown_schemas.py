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

#: Messages of the old schema and of the new one, by turns of three.
MESSAGES = 150
#: For a machine on which ten others work.
PATIENCE = 300.0


@dataclass(frozen=True)
class Encoding:
    """How messages of a format are made, and their two schemas with the numbers of these."""

    format: str
    kind: str
    old: tuple[int, str]
    new: tuple[int, str]

    def message(self, number: int) -> bytes:
        """The number-th one of a topic."""
        head = struct.pack(">BI", 0, (self.new if is_new(number) else self.old)[0])
        note = f"n{number}".encode()
        if self.kind == "AVRO":
            body = varint(number << 1)
            return head + body + (varint(len(note) << 1) + note if is_new(number) else b"")
        body = b"\x08" + varint(number)
        has_note = b"\x12" + varint(len(note)) + note if is_new(number) else b""
        return head + b"\0" + body + has_note

    def messages(self) -> list[bytes]:
        return [self.message(number) for number in range(MESSAGES)]


def is_new(number: int) -> bool:
    """Whether the new schema is that of a topic's number-th message."""
    return number % 3 == 2


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
    "AvroConfluent",
    "AVRO",
    (1, avro(("id", "long"))),
    (2, avro(("id", "long"), ("note", "string"))),
)
_PROTO = 'syntax = "proto3"; message Order { int64 id = 1; %s}'
PROTOBUF = Encoding(
    "ProtobufConfluent",
    "PROTOBUF",
    (11, _PROTO % ""),
    (12, _PROTO % "string note = 2; "),
)
BOTH = (AVRO, PROTOBUF)


@pytest.fixture
def follower() -> Iterator[Follower]:
    with run_follower() as running:
        yield running


def produce(world: World, topic: str, values: list[bytes]) -> None:
    producer = world.producer()
    for value in values:
        producer.produce(topic, value, partition=0)
    producer.flush()


def learn(follower: Follower, encoding: Encoding, *schemas: tuple[int, str]) -> None:
    """The registry knows these from now on."""
    for number, text in schemas:
        follower.schemas[number] = encoding.kind, text


def configure(
    world: World, url: str, follower: Follower, topics: dict[str, Encoding], **batch: object
) -> Path:
    """Two tables of each topic: nothing of either may be loaded before all schemas are known."""
    tables: dict[str, list[str]] = {}
    formats: dict[str, str] = {}
    for topic, encoding in topics.items():
        world.create_topic(topic, 1)
        for table in (f"{topic}_a", f"{topic}_b"):
            tables[table] = [topic]
            formats[table] = f'format = "{encoding.format}"'
            world.execute(
                f"CREATE TABLE {table} (id UInt64, note String, {LINEAGE}) ENGINE = MergeTree "
                "ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
            )
    patience = batch.pop("patience")
    path = world.configure(tables, url=url, settings_of=formats, **batch)
    registry = f'[registry]\nurl = "{follower.url}"\npatience = "{patience}"\n'
    path.write_text(f"{path.read_text()}\n{registry}[dead_letters]\nmax_ratio = 1.0\n")
    return path


def assert_every_message_is_one_row(world: World, topic: str) -> None:
    for table in (f"{topic}_a", f"{topic}_b"):
        found = world.query(f"SELECT _offset, id, note FROM {table} ORDER BY _offset, note")
        expected = [
            {"_offset": n, "id": n, "note": f"n{n}" if is_new(n) else ""} for n in range(MESSAGES)
        ]
        assert found == expected


def test_a_schema_that_is_not_there_yet_is_waited_for(world: World, follower: Follower) -> None:
    """The first acknowledgement is lost, and the registry learns the schema then, at the latest."""
    topics = {f"late_{encoding.kind.lower()}": encoding for encoding in BOTH}
    for encoding in BOTH:
        learn(follower, encoding, encoding.old)
    with run_link(world.clickhouse.url) as link:
        path = configure(world, link.url, follower, topics, patience="2m")
        for topic, encoding in topics.items():
            produce(world, topic, encoding.messages())
        link.lose()
        driver = world.run(path, "--until-caught-up")
        refusals = [f"does not know schema {encoding.new[0]}" for encoding in BOTH]
        wait_for(
            lambda: link.lost > 0 or all(words in driver.text() for words in refusals),
            PATIENCE,
            "a lost acknowledgement, or refusals",
        )
        for encoding in BOTH:
            learn(follower, encoding, encoding.new)
        wait_for(lambda: link.lost > 0, PATIENCE, "a lost acknowledgement")
        link.heal()
        assert driver.wait(PATIENCE) == 0, driver.text()[-4000:]
    assert world.dead_letters() == []
    for topic in topics:
        assert_every_message_is_one_row(world, topic)


@pytest.mark.long
def test_a_schema_that_is_deleted_while_its_rows_are_in_doubt_makes_no_dead_letter(
    world: World, follower: Follower
) -> None:
    topics = {f"deleted_{encoding.kind.lower()}": encoding for encoding in BOTH}
    for encoding in BOTH:
        learn(follower, encoding, encoding.old, encoding.new)

    def stored(topic: str) -> set[str]:
        return {t for t in (f"{topic}_a", f"{topic}_b") if world.count(t) == MESSAGES}

    with run_link(world.clickhouse.url) as link:
        path = configure(world, link.url, follower, topics, patience="1s", lease='"20s"')
        for topic, encoding in topics.items():
            produce(world, topic, encoding.messages())
        link.lose()
        driver = world.run(path)
        wait_for(
            lambda: link.lost >= len(topics) and all(map(stored, topics)),
            PATIENCE,
            "a lost acknowledgement of each topic",
        )
        driver.kill()
        for encoding in BOTH:
            del follower.schemas[encoding.new[0]]
        link.heal()
        second = world.drain(path, PATIENCE)
        judged = world.sluice("audit", str(path))
    assert judged.returncode == 0, judged.stdout + judged.stderr
    probed = [line for line in second.text().splitlines() if "was probed" in line]
    assert all([line for line in probed if f"{topic}[0]" in line] for topic in topics), probed
    # One of a topic's tables had its rows; of the other one nobody had inserted anything.
    new, dead_letters = [n for n in range(MESSAGES) if is_new(n)], 0
    for topic in topics:
        has = stored(topic)
        assert has
        for table in {f"{topic}_a", f"{topic}_b"} - has:
            dead_letters += 1
            rows = world.query(f"SELECT _offset FROM {table} ORDER BY _offset")
            assert [r["_offset"] for r in rows] == [n for n in range(MESSAGES) if n not in new]
    assert sorted(world.dead_letters()) == sorted([(0, n) for n in new] * dead_letters)


@pytest.mark.long
def test_bytes_that_are_no_header_become_dead_letters_without_a_wait_for_each_range(
    world: World, follower: Follower
) -> None:
    """A third of the messages names another number each."""
    learn(follower, AVRO, AVRO.old)
    count, dice = 3_000, random.Random(3)
    batch = {"patience": "5s", "max_messages": 200}
    path = configure(world, world.clickhouse.url, follower, {"garbage": AVRO}, **batch)
    bad = {n for n in range(count) if is_new(n)}
    values = [AVRO.message(n) for n in range(count)]
    for n in bad:
        values[n] = struct.pack(">BI", 0, dice.randrange(10**6, 1 << 32)) + values[n][5:]
    produce(world, "garbage", values)
    driver = world.drain(path, PATIENCE)
    dead_letters = sorted(world.dead_letters())
    assert dead_letters == sorted((0, n) for n in bad for _ in range(2))
    for table in ("garbage_a", "garbage_b"):
        rows = world.query(f"SELECT _offset FROM {table} ORDER BY _offset")
        assert [row["_offset"] for row in rows] == [n for n in range(count) if n not in bad]
    texts = {entry["digest"] for entry in world.ledger() if entry["type"] == "load_spec"}
    assert len(texts) <= 3, "a text for each range"
    assert driver.text().count("is not loaded yet") < count // 200
    for command in ("audit", "verify"):
        judged = world.sluice(command, str(path))
        assert judged.returncode == 0, judged.stdout + judged.stderr
