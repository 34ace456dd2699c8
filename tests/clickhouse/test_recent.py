"""Which rows came lately, told by the parts of the oldest and of the newest server."""

from __future__ import annotations

import os
import time

import pytest

from sluice.clickhouse.http import Server, pieces
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.vanishing import CannotTellError, require_all_rows
from sluice.decode.engine.native import fixed_columns
from sluice.verify.stored_keys import old_parts, rows_but, seeing_all_but

HOUR = 3600


class Numbers:
    """A table of them."""

    def __init__(self, server: Server, database: str) -> None:
        self.server = server
        self.name = f"{database}.t"
        self.database = database
        server.execute(
            f"CREATE TABLE {self.name} (day Date, n UInt64) ENGINE = MergeTree "
            "PARTITION BY toYYYYMM(day) ORDER BY n"
        )

    @property
    def facts(self) -> TableFacts:
        return describe_table(self.server, self.database, "t")

    def insert(self, first: int, count: int = 1, day: str = "2026-01-01") -> None:
        self.server.execute(
            f"INSERT INTO {self.name} SELECT toDate('{day}'), number + {first} "
            f"FROM system.numbers LIMIT {count}"
        )

    def age(self, seconds: int) -> None:
        """All its parts came so long ago."""
        age_parts(self.server, self.database, "t", seconds)

    def seconds_old(self) -> int:
        """Its only part, by the server's clock."""
        (row,) = self.server.query(
            "SELECT toUnixTimestamp(now()) - toUnixTimestamp(modification_time) AS age "
            "FROM system.parts WHERE database = {d:String} AND active",
            {"d": self.database},
        )
        return int(row["age"])

    def read(self, old: list[str]) -> list[int]:
        """The rows that are in none of these parts."""
        settings = seeing_all_but(self.server, self.facts, old)
        stream = rows_but(self.server, self.facts, ["n"], "last", old, settings)
        found, _ = fixed_columns(b"".join(stream), ["<u8", "u1"])
        return sorted(found.tolist())


def age_parts(server: Server, database: str, table: str, seconds: int) -> None:
    """Parts are as old as their folders."""
    rows = server.query(
        "SELECT path FROM system.parts WHERE database = {d:String} AND table = {t:String} "
        "AND active",
        {"d": database, "t": table},
    )
    server.execute(f"DETACH TABLE {database}.{table}")
    for row in rows:
        os.utime(str(row["path"]), (time.time() - seconds,) * 2)
    server.execute(f"ATTACH TABLE {database}.{table}")


@pytest.fixture
def numbers(server: Server, database: str) -> Numbers:
    return Numbers(server, database)


def test_what_came_lately_is_read(numbers: Numbers) -> None:
    numbers.insert(0, 10)
    numbers.age(2 * HOUR)
    numbers.insert(100, 3)
    numbers.insert(200, 2, day="2026-02-01")
    old = old_parts(numbers.server, numbers.facts, HOUR)
    assert len(old) == 1
    assert numbers.read(old) == [100, 101, 102, 200, 201]
    assert old_parts(numbers.server, numbers.facts, 3 * HOUR) == []
    assert len(numbers.read([])) == 15


def test_a_part_counts_as_lately_for_some_seconds_more(numbers: Numbers) -> None:
    """Clocks tell seconds, and disks their own time."""
    numbers.insert(0)
    numbers.age(HOUR)
    facts = numbers.facts
    for _ in range(100):
        age = numbers.seconds_old()
        lately, before = (old_parts(numbers.server, facts, age - more) for more in (10, 11))
        if numbers.seconds_old() == age:  # all was asked in one second of the server's clock
            break
    else:
        pytest.fail("two questions took a second each time")
    assert (lately, len(before)) == ([], 1)


def test_a_merge_in_between_hides_nothing(numbers: Numbers) -> None:
    numbers.insert(0)
    numbers.age(2 * HOUR)
    numbers.insert(1)
    old = old_parts(numbers.server, numbers.facts, HOUR)
    numbers.server.execute(f"OPTIMIZE TABLE {numbers.name} FINAL")
    assert numbers.read(old) == [0, 1]
    assert old_parts(numbers.server, numbers.facts, HOUR) == []


def test_more_rows_than_a_block_come_as_they_are_read(numbers: Numbers) -> None:
    numbers.insert(0, 300_000)
    settings = seeing_all_but(numbers.server, numbers.facts, [])
    stream = rows_but(numbers.server, numbers.facts, ["n"], "last", [], settings)
    first = next(stream)
    rest = b"".join(stream)
    assert 0 < len(first) <= 1 << 20
    found, _ = fixed_columns(first + rest, ["<u8", "u1"])
    assert sorted(found.tolist()) == list(range(300_000))


def test_names_of_very_many_parts_are_a_statement_still(numbers: Numbers) -> None:
    numbers.insert(0)
    assert numbers.read([f"202601_{n}_{n}_0" for n in range(1000, 21_000)]) == [0]


def test_an_error_at_the_begin_is_the_servers(numbers: Numbers) -> None:
    with pytest.raises(ServerError):
        list(pieces(numbers.server, "SELECT nothing FORMAT Native", {}, {}, 10.0))
    assert numbers.server.query("SELECT 1 AS one") == [{"one": 1}]


def test_an_error_in_the_middle_does_not_look_like_the_end(numbers: Numbers) -> None:
    """It is an error, or stands where no block is (`verify.stored_keys.blocks`)."""
    query = "SELECT throwIf(number = 3000000) AS n FROM system.numbers LIMIT 4000000 FORMAT Native"
    try:
        found = b"".join(pieces(numbers.server, query, {}, {"max_block_size": "1000"}, 30.0))
    except ServerError:
        return
    assert b"Exception" in found


def test_rows_that_were_deleted_have_come(embedded: Server, embedded_database: str) -> None:
    numbers = Numbers(embedded, embedded_database)
    numbers.insert(0, 3)
    embedded.execute(f"DELETE FROM {numbers.name} WHERE n = 1", settings={"mutations_sync": "2"})
    assert embedded.query(f"SELECT count() AS n FROM {numbers.name}") == [{"n": 2}]
    with pytest.raises(CannotTellError, match="deleted"):
        require_all_rows(embedded, numbers.facts, {})
    assert numbers.read([]) == [0, 1, 2]


def test_what_hides_rows_that_are_not_read_is_no_matter(
    embedded: Server, embedded_database: str
) -> None:
    numbers = Numbers(embedded, embedded_database)
    numbers.insert(0, 3)
    embedded.execute(f"DELETE FROM {numbers.name} WHERE n = 1", settings={"mutations_sync": "2"})
    numbers.age(2 * HOUR)
    numbers.insert(3)
    require_all_rows(embedded, numbers.facts, {}, old_parts(embedded, numbers.facts, HOUR))
