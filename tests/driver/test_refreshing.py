"""Reading the tables again: what changes a load spec, what bars a topic, and who is told when."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from sluice.clickhouse.comparing import Today, why_not_executable
from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Column, LoadSpec
from sluice.driver import refreshing
from sluice.driver.ports import SchemaRead
from sluice.driver.refreshing import SchemaChangedError, SchemaReader, refreshed
from sluice.driver.specs import build_spec, read_spec
from tests.driver.test_specs import COLUMNS, LINEAGE, configuration_of, facts_of, today_of
from tests.support.world import wait_for

#: What blocks do not carry, and what does not decide which block is which.
HARMLESS = (
    (*COLUMNS, Column("added", "String", "DEFAULT", "'a'")),
    (*COLUMNS, Column("added", "UInt64", "ALIAS", "id")),
    (COLUMNS[0], Column("d", "Date", "DEFAULT", "toDate(id + 1)"), *COLUMNS[2:]),
    (COLUMNS[0], Column("d", "Date"), *COLUMNS[2:]),
    (*COLUMNS[:2], Column("m", "UInt64", "MATERIALIZED", "id * 3"), *COLUMNS[3:]),
    (*COLUMNS[:2], *COLUMNS[3:]),
)


@pytest.fixture
def configuration(tmp_path: Path) -> Configuration:
    return configuration_of(tmp_path)


@pytest.fixture
def spec(configuration: Configuration) -> LoadSpec:
    return build_spec(configuration, "dc1", {"orders": facts_of()}, "UTC", "chdb 1")


@pytest.mark.parametrize("columns", HARMLESS)
def test_what_is_altered_harmlessly_is_a_new_spec(
    configuration: Configuration, spec: LoadSpec, columns: tuple[Column, ...]
) -> None:
    """Also a DEFAULT that has changed: it decides rows."""
    today = today_of(facts_of(columns))
    found = refreshed(configuration, spec, today)
    assert found.barred == {} and len(found.changes) == 1
    assert found.spec.digest() != spec.digest()
    assert found.spec.tables[0].columns == columns
    # What is in doubt under the old load spec can be repeated where blocks carry tokens.
    assert why_not_executable(spec, today, "a") is None
    assert refreshed(configuration, found.spec, today).spec is found.spec


def test_nothing_new_is_the_same_spec(configuration: Configuration, spec: LoadSpec) -> None:
    assert refreshed(configuration, spec, today_of()).spec is spec
    missing = refreshed(configuration, spec, today_of(tables={}))
    assert missing.spec is spec and missing.barred == {}


def test_what_blocks_carry_and_is_altered_bars_the_entry_of_the_table(
    configuration: Configuration, spec: LoadSpec
) -> None:
    columns = (Column("id", "UInt8"), Column("d", "Date", "ALIAS", "now()"), *COLUMNS[4:])
    found = refreshed(configuration, spec, today_of(facts_of((*columns, Column("x", "String")))))
    assert found.spec is spec
    assert set(found.barred) == {"orders"}
    error = found.barred["orders"]
    assert isinstance(error, SchemaChangedError)
    for words in (
        "table entry orders: shop.orders: ",
        "column id was UInt64, and is UInt8 now",
        "column d was Date DEFAULT toDate(id), and is Date ALIAS now() now",
        "has no column _topic any more, which was String",
    ):
        assert words in str(error)
    other_key = refreshed(configuration, spec, today_of(replace(facts_of(), partition_key="d")))
    assert "is by d today" in str(other_key.barred["orders"])


def test_an_entry_that_may_be_parked_bars_nothing(
    configuration: Configuration, spec: LoadSpec
) -> None:
    tables = tuple(replace(table, on_error="park") for table in configuration.tables)
    today = today_of(facts_of((Column("id", "UInt8"), *COLUMNS[1:])))
    found = refreshed(replace(configuration, tables=tables), spec, today)
    assert found.barred == {} and found.spec is spec
    assert "column id was UInt64, and is UInt8 now" in str(found.altered["orders"])


def hashed(columns: tuple[Column, ...] = COLUMNS, **changes: object) -> Today:
    facts = replace(facts_of(columns), **changes)  # type: ignore[arg-type]
    return today_of(facts, tokens=False)


@pytest.mark.parametrize(
    ("today", "why"),
    [
        (hashed(), None),
        (hashed((*COLUMNS, Column("x", "UInt64", "ALIAS", "id"))), None),
        (hashed((*COLUMNS, Column("x", "UInt64", "EPHEMERAL", "1"))), None),
        (hashed((COLUMNS[0], Column("d", "Date"), *COLUMNS[2:])), None),
        (hashed((*COLUMNS, Column("x", "String"))), "has a column x"),
        (hashed((*COLUMNS, Column("x", "UInt8", "MATERIALIZED", "1"))), "has a column x"),
        (hashed((*COLUMNS[:2], *COLUMNS[3:])), "had a column m"),
        (
            hashed((*COLUMNS[:2], Column("m", "UInt64", "MATERIALIZED", "1"), *COLUMNS[3:])),
            "computes its column m otherwise",
        ),
        (hashed(sorting_key="d"), "was sorted by id, and is by d"),
    ],
)
def test_a_server_that_hashes_what_it_stores_knows_less_again(
    spec: LoadSpec, today: Today, why: str | None
) -> None:
    """Measured on 18.16: see tests/e2e/test_schema.py."""
    found = why_not_executable(spec, today, "a")
    assert found is None if why is None else found is not None and why in found


def test_a_partition_key_over_a_column_that_is_computed_otherwise(
    configuration: Configuration,
) -> None:
    """The same row may lie in another ClickHouse partition, where its token is not known."""
    facts = replace(facts_of(), partition_key="intDiv(m, 10)")
    spec = build_spec(configuration, "dc1", {"orders": facts}, "UTC", "chdb 1")
    assert why_not_executable(spec, today_of(facts), "a") is None
    columns = (*COLUMNS[:2], Column("m", "UInt64", "MATERIALIZED", "id"), *COLUMNS[3:])
    why = why_not_executable(spec, today_of(replace(facts, columns=columns)), "a")
    assert why is not None and "partitioned over m, which has changed" in why


# The thread


class Reading:
    """A reader of one real table, and what it told."""

    def __init__(self, configuration: Configuration, server: Server, table: str) -> None:
        self.server = server
        self.table = table
        self.told: list[SchemaRead] = []
        self.refusal: Exception | None = None
        self.bugs: tuple[Exception, ...] = ()
        self.examined = 0
        self.spec = read_spec(configuration, "dc1")
        self.reader = SchemaReader(
            configuration,
            self.spec,
            lambda: time.time_ns() // 1_000_000,
            self._examine,
            self._put,
        )

    def _put(self, read: SchemaRead) -> None:
        bugs, self.bugs = self.bugs, ()
        for bug in bugs:
            raise bug
        self.told.append(read)

    def _examine(self) -> None:
        self.examined += 1
        if self.refusal is not None:
            raise self.refusal

    def alter(self, how: str) -> SchemaRead:
        """ALTER, ask for a reading, and wait for one that began later."""
        self.server.execute(f"ALTER TABLE {self.table} {how}")
        return self.ask()

    def ask(self) -> SchemaRead:
        since_ms = time.time_ns() // 1_000_000
        self.reader.request()
        wait_for(lambda: any(r.started_ms >= since_ms for r in self.told), 60, "a reading")
        return next(read for read in self.told if read.started_ms >= since_ms)


@dataclass
class Shards:
    """Two shards, a table in each, and what was told of them."""

    reader: SchemaReader
    columns: dict[str, tuple[Column, ...]]
    away: set[str]
    told: list[SchemaRead]

    def read(self) -> SchemaRead:
        """The next reading."""
        self.reader._read()
        return self.told[-1]


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shards:
    plain = configuration_of(tmp_path)
    (one,) = plain.clickhouse.shards
    clickhouse = replace(plain.clickhouse, shards=(one, replace(one, name="s2")))
    table = plain.tables[0]
    names = {"s1": "orders", "s2": "other"}
    tables = tuple(
        replace(table, name=n, target=f"shop.{n}", shards=(s,)) for s, n in names.items()
    )
    configuration = replace(plain, clickhouse=clickhouse, tables=tables)
    spec = build_spec(plain, "dc1", {"orders": facts_of()}, "UTC", "chdb 1")
    in_shard = partial(replace, spec.tables[0])
    spec = replace(
        spec,
        tables=tuple(in_shard(entry=n, table=n, shards=(s,)) for s, n in names.items()),
    )
    told: list[SchemaRead] = []
    reader = SchemaReader(configuration, spec, lambda: 0, lambda: None, told.append)
    found = Shards(reader, dict.fromkeys(names, COLUMNS), set(), told)

    def on_replicas(_: object, shard: str, question: object) -> dict[str, object]:
        if shard in found.away:
            raise TransientError(f"{shard} is away", "wait")
        return {"http://h": {("shop", names[shard]): found.columns[shard]}}

    def read_today(_: object, specs: object, unread: Collection[str] = ()) -> Today:
        facts = {
            f"shop.{name}": replace(facts_of(found.columns[shard]), table=name)
            for shard, name in names.items()
            if shard not in unread
        }
        return replace(today_of(tables=facts), shards=frozenset(names))

    monkeypatch.setattr(refreshing, "on_replicas", on_replicas)
    monkeypatch.setattr(refreshing, "read_today", read_today)
    return found


def test_a_shard_that_is_away_keeps_nobody_from_hearing_of_the_others(shards: Shards) -> None:
    first = shards.read()
    assert first.today is not None and not first.unread and not first.barred
    shards.away.add("s2")
    again = shards.read()
    assert again.today is None and again.unread == {"s2"}
    shards.columns["s1"] += (Column("added", "String"),)
    found = shards.read()
    assert found.spec.tables[0].columns == shards.columns["s1"] and found.unread == {"s2"}
    assert found.today is not None and "shop.other" in found.today.tables, "it is what it was"
    shards.columns["s2"] += (Column("added", "UInt8"),)
    assert shards.read().spec.tables[1].columns == COLUMNS
    shards.away.clear()
    whole = shards.read()
    assert whole.spec.tables[1].columns == shards.columns["s2"] and not whole.unread
    shards.away |= {"s1", "s2"}
    told = len(shards.told)
    shards.read()
    assert len(shards.told) == told, "nothing was read"


@pytest.fixture
def reading(
    tmp_path: Path, clickhouse_url: str, server: Server, database: str
) -> Iterator[Reading]:
    configuration = configuration_of(tmp_path, clickhouse_url, lineage='"auto"')
    clickhouse = replace(
        configuration.clickhouse, user="", password=type(configuration.clickhouse.password)("")
    )
    tables = (replace(configuration.tables[0], target=f"{database}.orders"),)
    server.execute(
        f"CREATE TABLE {database}.orders (id UInt64, d Date, {LINEAGE}) "
        "ENGINE = MergeTree PARTITION BY toYYYYMM(d) ORDER BY id"
    )
    found = Reading(
        replace(configuration, clickhouse=clickhouse, tables=tables), server, f"{database}.orders"
    )
    found.reader.start()
    wait_for(lambda: bool(found.told), 60, "the first reading")
    try:
        yield found
    finally:
        found.reader.stop()


@pytest.mark.slow
def test_readings_of_a_real_table(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    first = reading.told[0]
    assert first.spec is reading.spec and first.today is not None and first.barred == {}
    assert reading.ask().today is None, "nothing has changed"
    added = reading.alter("ADD COLUMN x String DEFAULT 'a'")
    assert added.today is not None and added.spec.tables[0].columns[-1] == Column(
        "x", "String", "DEFAULT", "'a'"
    )
    assert reading.examined == 1
    reading.refusal = TerminalError("not such a column", "drop it")
    refused = reading.alter("ADD COLUMN y String")
    assert refused.spec is added.spec and refused.today is not None
    tokens = refused.today.tokens
    assert set(refused.barred) == (set() if tokens else {refused.spec.tables[0].entry})
    reading.refusal = None
    taken = reading.ask()
    assert taken.spec.tables[0].columns[-1].name == "y" and taken.barred == {}
    monkeypatch.setattr(refreshing, "AGAIN_SECONDS", 0.1)
    reading.refusal = TransientError("nobody answers", "wait")
    told, examined = len(reading.told), reading.examined
    reading.server.execute(f"ALTER TABLE {reading.table} ADD COLUMN z String")
    reading.reader.request()
    wait_for(lambda: reading.examined > examined + 1, 60, "a second attempt")
    assert len(reading.told) == told
    reading.refusal = None
    assert reading.ask().spec.tables[0].columns[-1].name == "z"
    gone = reading.alter("DROP COLUMN x")
    assert "has no column x any more, which was String DEFAULT 'a'" in str(
        gone.barred[gone.spec.tables[0].entry]
    )
    back = reading.alter("ADD COLUMN x String DEFAULT 'a'")
    assert back.barred == {}


def test_the_timer_reads_by_itself(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refreshing, "READ_EVERY_SECONDS", 0.3)
    reading.ask()  # from now on
    reading.server.execute(f"ALTER TABLE {reading.table} ADD COLUMN x String")
    wait_for(lambda: reading.told[-1].spec is not reading.spec, 60, "the timer")


def test_what_was_asked_for_is_read_again_after_a_bug(reading: Reading) -> None:
    """And not only by the timer, a minute later."""
    since_ms = time.time_ns() // 1_000_000
    reading.bugs = (RuntimeError("a bug"),)
    reading.reader.request()
    wait_for(lambda: reading.told[-1].started_ms > since_ms, 20, "a reading")


def test_replicas_that_differ_are_waited_for(tmp_path: Path, old: Server, second: Server) -> None:
    """An ALTER reaches them one after the other; the one that is behind would seem to have lost
    the column."""
    name = f"differ_{tmp_path.name}".replace("-", "_")[:40]
    for server in (old, second):
        server.execute(f"CREATE DATABASE {name}")
        server.execute(
            f"CREATE TABLE {name}.orders (id UInt64, d Date, {LINEAGE}) "
            "ENGINE = MergeTree ORDER BY id"
        )
    try:
        plain = configuration_of(tmp_path, f'{old.url}", "{second.url}')
        clickhouse = replace(
            plain.clickhouse, user="", password=type(plain.clickhouse.password)("")
        )
        tables = (replace(plain.tables[0], target=f"{name}.orders"),)
        configuration = replace(plain, clickhouse=clickhouse, tables=tables)
        spec = read_spec(configuration, "dc1")
        reader = SchemaReader(configuration, spec, lambda: 0, lambda: None, lambda read: None)
        assert reader._structures()[0]["s1"][name, "orders"].columns == spec.tables[0].columns
        second.execute(f"ALTER TABLE {name}.orders ADD COLUMN added UInt8")
        with pytest.raises(TransientError, match=f"{name}.orders is not the same on {old.url}"):
            reader._structures()
        old.execute(f"ALTER TABLE {name}.orders ADD COLUMN added UInt8")
        columns = reader._structures()[0]["s1"][name, "orders"].columns
        assert [column.name for column in columns][-1] == "added"
    finally:
        for server in (old, second):
            server.execute(f"DROP DATABASE {name}")
