"""Two tables, two formats, one partition: bad messages, a new column, kills; audited."""

from __future__ import annotations

import json
import random

import confluent_kafka as ck
import pytest

from sluice.producer import SQLBatchRequest
from tests.support.world import LINEAGE, World

MESSAGES = 40_000
KILLS = 3
COLUMNS = f"id UInt64, amount Decimal(18, 2), note String, {LINEAGE}"
SETTINGS = {
    "plain": 'route = { header = "" }\nunknown_fields = "ignore"',
    "bound": 'format = "SQLBatchRequest"\nrows = "many"\nroute = { header = "" }',
}

#: (offset, row in the message, id, note)
Row = tuple[int, int, int, str]


def envelope(first: int, rows: int, bad: bool, with_note: bool) -> bytes:
    names = ["id", "amount", "note"] if with_note else ["id", "amount"]
    values = [(first + n, "1.25", f"n{first + n}")[: len(names)] for n in range(rows)]
    if bad:
        values[-1] = (-1, *values[-1][1:])
    marks = ", ".join("?" * len(names))
    sql = f"INSERT INTO bound ({', '.join(names)}) VALUES ({marks})"
    return SQLBatchRequest("bound", sql, values).encode()


def produced(world: World, topic: str) -> tuple[dict[str, list[Row]], list[tuple[int, str]]]:
    """What must be in each table, and the (offset, table) of what must be a dead letter."""
    truth: dict[str, list[Row]] = {"plain": [], "bound": []}
    dead_letters: list[tuple[int, str]] = []
    dice, producer = random.Random(11), world.producer()
    for number in range(MESSAGES):
        table = dice.choice(("plain", "bound"))
        bad, with_note = dice.random() < 0.01, number > MESSAGES // 2
        rows = 1 if table == "plain" else dice.choice((1, 2, 5))
        first = number * 10
        if table == "bound":
            value = envelope(first, rows, bad, with_note)
        else:
            document = {"id": "x" if bad else first, "amount": 1.25}
            value = json.dumps(document | ({"note": f"n{first}"} if with_note else {})).encode()
        notes = [f"n{first + n}" if with_note else "" for n in range(rows)]

        def record(
            _: object,
            message: ck.Message,
            table: str = table,
            bad: bool = bad,
            first: int = first,
            notes: list[str] = notes,
        ) -> None:
            offset = message.offset()
            if bad:
                dead_letters.append((offset, table))
            else:
                truth[table] += [(offset, n, first + n, note) for n, note in enumerate(notes)]

        producer.produce(
            topic, value, partition=0, headers=[("table", table.encode())], on_delivery=record
        )
        producer.poll(0)
    producer.flush()
    return truth, dead_letters


@pytest.mark.long
def test_two_formats_in_one_partition_through_kills_and_a_new_column(world: World) -> None:
    world.create_topic("formats", 1)
    for table in SETTINGS:
        world.execute(
            f"CREATE TABLE {table} ({COLUMNS}) ENGINE = MergeTree ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )
    truth, dead_letters = produced(world, "formats")
    configuration = world.configure(
        {table: ["formats"] for table in SETTINGS}, max_messages=400, settings_of=SETTINGS
    )
    for kill in range(KILLS):
        before = world.count("plain")
        driver = world.run(configuration)
        world.wait_for_rows("plain", before + 1, driver)
        driver.kill()
        if kill == 1:
            for table in SETTINGS:
                world.execute(f"ALTER TABLE {table} ADD COLUMN added UInt8 DEFAULT 7")
    assert world.count("plain") < len(truth["plain"])
    world.drain(configuration)
    for table, wanted in truth.items():
        columns = "_offset, _row, id, note"
        found = world.query(f"SELECT {columns} FROM {table} ORDER BY _offset, _row, id")
        rows = [
            (int(str(r["_offset"])), int(str(r["_row"])), int(str(r["id"])), str(r["note"]))
            for r in found
        ]
        assert rows == sorted(wanted), table
        sevens = world.query(f"SELECT count() AS n FROM {table} WHERE added = 7")
        assert int(str(sevens[0]["n"])) == len(wanted)
    assert sorted(o for _, o in world.dead_letters()) == sorted(
        offset for offset, _ in dead_letters
    )
    audit = world.sluice("audit", str(configuration), "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    report = json.loads(audit.stdout)
    assert report["missing"] == report["doubled"] == report["foreign"] == 0
    assert report["loaded"] == sum(map(len, truth.values()))
    assert report["uncounted"] == 0
    (second,) = [offset for offset, row, _, _ in truth["bound"] if row == 4][:1]
    world.execute(
        f"ALTER TABLE bound DELETE WHERE _offset = {second} AND _row = 1 "
        "SETTINGS mutations_sync = 1"
    )
    audit = world.sluice("audit", str(configuration), "--json")
    assert json.loads(audit.stdout)["missing"] == 1, "one row of five"
    verify = world.sluice("verify", str(configuration))
    assert verify.returncode == 0, verify.stdout + verify.stderr


@pytest.mark.long
def test_a_range_of_too_many_rows_is_shortened_before_anything_is_inserted(world: World) -> None:
    """A block stays below what servers split; a message is never cut."""
    world.create_topic("rows", 1, max_message_bytes="20000000")
    world.execute(
        f"CREATE TABLE counted (id UInt64, {LINEAGE}) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )
    rows_of = (400_000, 400_000, 400_000, 7, 1_100_000, 3)
    producer = world.producer(**{"message.max.bytes": 20_000_000})
    first = 0
    for rows in rows_of:
        value = b"[" + b",".join(b'{"id":%d}' % n for n in range(first, first + rows)) + b"]"
        producer.produce("rows", value, partition=0)
        producer.flush()
        first += rows
    configuration = world.configure(
        {"counted": ["rows"]}, max_bytes='"64MiB"', settings_of={"counted": 'rows = "many"'}
    )
    world.drain(configuration)
    found = world.query(
        "SELECT _offset, count() AS n, min(id) AS low, max(id) AS high, "
        "uniqExact(_row) AS different "
        "FROM counted GROUP BY _offset ORDER BY _offset"
    )
    low = 0
    for row, rows in zip(found, rows_of, strict=True):
        assert int(str(row["n"])) == int(str(row["different"])) == rows
        assert (int(str(row["low"])), int(str(row["high"]))) == (low, low + rows - 1)
        low += rows
    receipts = [entry for entry in world.ledger() if entry["type"] == "receipt"]
    blocks = sorted(
        (int(str(e["begin"])), int(str(e["end"])), int(str(e["rows"]))) for e in receipts
    )
    assert all(rows <= 1_000_000 or end == begin + 1 for begin, end, rows in blocks), blocks
    assert any(entry.get("kind") == "shorten" for entry in world.ledger())
    audit = world.sluice("audit", str(configuration), "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr
