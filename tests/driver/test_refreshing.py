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
from sluice.clickhouse.schema import Structure
from sluice.clickhouse.topology import OtherPathError
from sluice.config import Configuration
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Column, LoadSpec
from sluice.driver import refreshing
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import SchemaRead
from sluice.driver.refreshing import (
    SchemaChangedError,
    SchemaReader,
    _refuse_other_structures,
    refreshed,
)
from sluice.driver.specs import build_spec, read_spec
from sluice.kafka.errors import KafkaRefusedError
from tests.driver.schema_reading import Reading, reading_of
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


def test_what_a_person_means_is_taken_up_of_an_entry_that_is_parked(
    configuration: Configuration, spec: LoadSpec
) -> None:
    """As a start would; but a table that is partitioned otherwise is another one."""
    tables = tuple(replace(table, on_error="park") for table in configuration.tables)
    parkable = replace(configuration, tables=tables)
    columns = (Column("id", "UInt8"), *COLUMNS[1:])
    found = refreshed(parkable, spec, today_of(facts_of(columns)), {"orders"})
    assert found.altered == {} and found.spec.tables[0].columns == columns
    assert "shop.orders: column id was UInt64, and is UInt8" in found.changes
    other = replace(facts_of(columns), partition_key="d")
    assert set(refreshed(parkable, spec, today_of(other), {"orders"}).altered) == {"orders"}


def of_format(spec: LoadSpec, format_name: str, *options: tuple[str, str]) -> LoadSpec:
    return replace(spec, tables=(replace(spec.tables[0], format=format_name, options=options),))


#: What an ALTER makes of the order of the columns that messages fill: id and d.
OTHER_ORDERS = {
    "id, d, added": (*COLUMNS, Column("added", "String")),
    "d, id": (COLUMNS[1], COLUMNS[0], *COLUMNS[2:]),
}


@pytest.mark.parametrize("now", OTHER_ORDERS)
@pytest.mark.parametrize("name", ["CSV", "TSV", "JSONCompactEachRow", "MsgPack", "RowBinary"])
def test_another_order_bars_what_has_no_other_names(
    configuration: Configuration, spec: LoadSpec, name: str, now: str
) -> None:
    """Values would go into other columns without a word, or no message would fit any more."""
    before = of_format(spec, name)
    found = refreshed(configuration, before, today_of(facts_of(OTHER_ORDERS[now])))
    assert found.spec is before
    error = found.barred["orders"]
    assert isinstance(error, SchemaChangedError)
    assert f"of {name} go into the columns of shop.orders in their order" in str(error)
    assert f"was id, d, and is {now} now" in str(error)
    types = name in ("MsgPack", "RowBinary")
    assert f'columns = "{"id UInt64, d Date" if types else "id, d"}"' in error.hint
    tables = tuple(replace(table, on_error="park") for table in configuration.tables)
    parkable = replace(configuration, tables=tables)
    parked = refreshed(parkable, before, today_of(facts_of(OTHER_ORDERS[now])))
    assert set(parked.altered) == {"orders"} and parked.barred == {}
    asked = refreshed(parkable, before, today_of(facts_of(OTHER_ORDERS[now])), {"orders"})
    assert set(asked.altered) == {"orders"} and asked.spec is before


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("CSV", (("columns", "id, d"),)),
        ("RowBinary", (("columns", "id UInt64, d Date"),)),
        ("CSVWithNames", ()),
        ("RawBLOB", ()),
    ],
)
@pytest.mark.parametrize("now", OTHER_ORDERS)
def test_another_order_is_nothing_to_messages_that_say_theirs(
    configuration: Configuration,
    spec: LoadSpec,
    name: str,
    options: tuple[tuple[str, str], ...],
    now: str,
) -> None:
    before = of_format(spec, name, *options)
    found = refreshed(configuration, before, today_of(facts_of(OTHER_ORDERS[now])))
    assert found.barred == {} and found.spec.tables[0].columns == OTHER_ORDERS[now]


def test_columns_that_messages_do_not_fill_change_no_order(
    configuration: Configuration, spec: LoadSpec
) -> None:
    """Computed ones, and those of lineage."""
    before = of_format(spec, "CSV")
    columns = (*COLUMNS[3:], Column("twice", "UInt64", "MATERIALIZED", "id * 2"), *COLUMNS[:3])
    found = refreshed(configuration, before, today_of(facts_of(columns)))
    assert found.barred == {} and found.spec.tables[0].columns == columns


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
    reader = SchemaReader(configuration, LoadSpecs(spec), lambda: 0, lambda: None, told.append)
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


def test_who_is_not_let_in_for_now_stops_nothing(
    shards: Shards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where blocks carry no tokens either, and those of before would be hashed otherwise."""
    read, refusals = refreshing.read_today, [KafkaRefusedError("no such user")]
    monkeypatch.setattr(refreshing, "read_today", lambda *a: replace(read(*a), tokens=False))

    def examine() -> None:
        if refusals:
            raise refusals.pop()

    shards.read()
    monkeypatch.setattr(shards.reader, "_examine", examine)
    shards.columns["s1"] += (Column("added", "String", "DEFAULT", "'a'"),)
    shards.reader._read()
    assert not refusals and len(shards.told) == 1, "it was examined, and nothing is told"
    found = shards.read()
    assert found.spec.tables[0].columns == shards.columns["s1"] and not found.barred


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
        f"CREATE TABLE {database}.orders (id UInt64, d Date, note String, {LINEAGE}) "
        "ENGINE = MergeTree PARTITION BY toYYYYMM(d) ORDER BY id"
    )
    configuration = replace(configuration, clickhouse=clickhouse, tables=tables)
    with reading_of(configuration, server, f"{database}.orders") as found:
        yield found


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


def test_a_parked_entry_takes_up_its_altered_table_when_it_is_asked_to(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    """`sluice reload`, which the log names; until then its messages are parked."""
    reader, entry = reading.reader, reading.spec.tables[0].entry
    tables = tuple(replace(t, on_error="park") for t in reader._configuration.tables)
    reader._configuration = replace(reader._configuration, tables=tables)
    altered = reading.alter("MODIFY COLUMN note FixedString(9)")
    assert set(altered.altered) == {entry} and altered.spec is reading.spec
    assert set(reading.ask().altered) == {entry}, "nobody has said that it was meant"
    reading.refusal = TerminalError("not such a column", "drop it")
    refused = reading.ask(by_a_person=True)
    assert set(refused.altered) == {entry} and refused.spec is reading.spec
    assert caplog.text.count(str(altered.altered[entry])) == 2, "and not for who has not asked"
    reading.refusal = None
    taken = reading.ask(by_a_person=True)
    assert taken.altered == {} and taken.asked
    assert taken.spec.tables[0].columns != reading.spec.tables[0].columns


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
    wait_for(lambda: reading.told[-1].started_ms > since_ms, 40, "a reading")


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
        specs = LoadSpecs(read_spec(configuration, "dc1"))
        (table,) = specs.today.spec.tables
        reader = SchemaReader(configuration, specs, lambda: 0, lambda: None, lambda read: None)
        assert reader._structures()[0]["s1"][name, "orders"].columns == table.columns
        second.execute(f"ALTER TABLE {name}.orders ADD COLUMN added UInt8")
        with pytest.raises(TransientError, match=f"{name}.orders is not the same on {old.url}"):
            reader._structures()
        old.execute(f"ALTER TABLE {name}.orders ADD COLUMN added UInt8")
        columns = reader._structures()[0]["s1"][name, "orders"].columns
        assert [column.name for column in columns][-1] == "added"
    finally:
        for server in (old, second):
            server.execute(f"DROP DATABASE {name}")


def test_replicas_of_different_tables_are_named_with_both_paths() -> None:
    """One that was made anew under another path has the same columns."""
    name = ("shop", "orders")
    first, other = (Structure((), "", "id", zookeeper_path=path) for path in ("/t/1", "/t/2"))
    _refuse_other_structures("http://a", {name: first}, "http://b", {name: first})
    silent = replace(first, zookeeper_path="")
    _refuse_other_structures("http://a", {name: first}, "http://b", {name: silent})
    with pytest.raises(OtherPathError, match=r"shop\.orders on http://b, .*at /t/2 .*at /t/1"):
        _refuse_other_structures("http://a", {name: first}, "http://b", {name: other})
