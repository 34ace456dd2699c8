"""Today's load spec, and whether an older one can still be executed (R8)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.clickhouse.comparing import Today, why_not_executable, zone_matters
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import Dependent, TableFacts, describe_table
from sluice.config import Configuration, Quorum, ShardConfiguration
from sluice.core.errors import ConfigurationError, TerminalError, TransientError
from sluice.core.load_spec import Column, LoadSpec, Sharding, parse_spec
from sluice.decode import RULES
from sluice.decode.messages.facts import facts_named
from sluice.decode.version import decoder_version
from sluice.driver.refreshing import refreshed
from sluice.driver.specs import access_of, build_spec, kafka_access, read_spec, read_today
from sluice.testbed.local.children import free_ports
from tests.config.support import MINIMAL, load_text

LINEAGE = "_topic String, _partition UInt32, _offset UInt64, _row UInt32"
ENGINE = "ENGINE = MergeTree PARTITION BY toYYYYMM(d) ORDER BY id"


def configuration_of(
    folder: Path, url: str = "http://localhost:8123", lineage: str = "true", more: str = ""
) -> Configuration:
    return load_text(
        folder,
        f"""
[pipeline]
name = "p"
[[connector]]
name = "dc1"
brokers = "one:9092"
topics = ["b", "a"]
kafka = {{ "sasl.password" = "secret" }}
[[connector]]
name = "dc2"
brokers = "two:9092"
topics = ["c"]
[batch]
max_bytes = "2MiB"
[clickhouse]
database = "shop"
shards = {{ s1 = ["{url}"] }}
user = "u"
password = "hidden"
durability = "single"
{more}
[[table]]
name = "orders"
topics = ["c", "b", "a"]
lineage = {lineage}
[[table]]
name = "late"
target = "other.late"
topics = ["c"]
lineage = false
""",
    )


COLUMNS = (
    Column("id", "UInt64"),
    Column("d", "Date", "DEFAULT", "toDate(id)"),
    Column("m", "UInt64", "MATERIALIZED", "id * 2"),
    Column("_topic", "String"),
    Column("_partition", "UInt32"),
    Column("_offset", "UInt64"),
    Column("_row", "UInt32"),
)


def facts_of(columns: tuple[Column, ...] = COLUMNS, table: str = "orders") -> TableFacts:
    return TableFacts(
        url="http://localhost:8123",
        database="shop",
        table=table,
        uuid="",
        engine="MergeTree",
        engine_full="MergeTree",
        columns=columns,
        partition_key="toYYYYMM(d)",
        sorting_key="id",
        replicated=False,
        zookeeper_path="",
        replicas_total=1,
        replicas_active=1,
        is_readonly=False,
        window_blocks=100,
        window_seconds=None,
        async_insert=False,
        dependents=(),
    )


def test_a_spec_holds_what_decides_the_rows_of_its_connector(tmp_path: Path) -> None:
    configuration = configuration_of(tmp_path)
    spec = build_spec(configuration, "dc1", {"orders": facts_of()}, "UTC", "chdb 1")
    assert (spec.pipeline, spec.connector, spec.decoder) == ("p", "dc1", "chdb 1")
    assert spec.range_bytes_max == 3 * 1024**2
    (table,) = spec.tables
    assert (table.entry, table.target, table.topics) == ("orders", "shop.orders", ("a", "b"))
    assert table.lineage == ("_topic", "_partition", "_offset", "_row")
    assert (table.shards, table.time_zone, table.columns) == (("s1",), "UTC", COLUMNS)
    assert parse_spec(spec.canonical()) == spec
    assert "secret" not in spec.canonical() and "hidden" not in spec.canonical()
    both = {"orders": facts_of(), "late": facts_of(table="late")}
    other = build_spec(configuration, "dc2", both, "UTC", "chdb 1")
    assert [(t.entry, t.topics, t.lineage) for t in other.tables] == [
        ("late", ("c",), ()),
        ("orders", ("c",), table.lineage),
    ]


def test_a_spec_says_for_how_many_replicas_its_blocks_wait(
    tmp_path: Path, recorded: LoadSpec
) -> None:
    single = configuration_of(tmp_path)
    shard = ShardConfiguration("s1", ("http://a:1", "http://b:1", "http://c:1", "http://d:1"))

    def spec_of(quorum: Quorum) -> LoadSpec:
        clickhouse = replace(
            single.clickhouse,
            shards=(shard,),
            durability="quorum",
            quorum=quorum,
        )
        configuration = replace(single, clickhouse=clickhouse)
        assert access_of(configuration).quorum_of("s1") == (3 if quorum == "auto" else quorum)
        return build_spec(configuration, "dc1", {"orders": facts_of()}, "UTC", "chdb 1")

    assert spec_of(2).tables[0].quorums == (("s1", 2),)
    assert spec_of("auto").tables[0].quorums == (("s1", 3),)
    assert parse_spec(spec_of("auto").canonical()) == spec_of("auto")
    assert spec_of("auto") == spec_of(3) != spec_of(2)
    assert "quorum" not in recorded.canonical()  # the names of other load specs stay what they were
    assert access_of(single).quorum_of("s1") == 1


def test_a_spec_says_which_replicated_table_it_is_for(tmp_path: Path, recorded: LoadSpec) -> None:
    """So that blocks of it are offered to replicas of that table only (H15)."""
    paths = {("shop.orders", "s1"): "/t/orders", ("shop.other", "s1"): "/t/other"}
    configuration = configuration_of(tmp_path)
    spec = build_spec(configuration, "dc1", {"orders": facts_of()}, "UTC", "chdb 1", paths)
    assert spec.tables[0].zookeeper_paths == (("s1", "/t/orders"),)
    assert parse_spec(spec.canonical()) == spec
    assert spec.digest() != recorded.digest()
    assert (
        "zookeeper" not in recorded.canonical()
    )  # the names of other load specs stay what they were
    assert why_not_executable(spec, today_of(paths=paths), "a") is None
    assert why_not_executable(recorded, today_of(paths=paths), "a") is None
    moved = today_of(paths={("shop.orders", "s1"): "/t/again"})
    why = why_not_executable(spec, moved, "a")
    assert why is not None and "was the table at /t/orders, and is /t/again today" in why


def test_missing_lineage_names_the_statement(tmp_path: Path) -> None:
    without = (*COLUMNS[:3], Column("_topic", "String"), Column("_row", "UInt32", "ALIAS", "1"))
    with pytest.raises(ConfigurationError) as caught:
        build_spec(configuration_of(tmp_path), "dc1", {"orders": facts_of(without)}, "UTC", "x")
    assert "shop.orders" in str(caught.value)
    assert "_partition, _offset, _row" in str(caught.value)
    assert caught.value.hint.startswith(
        "ALTER TABLE `shop`.`orders` ADD COLUMN `_partition` UInt32, ADD COLUMN `_offset` UInt64"
    )
    auto = configuration_of(tmp_path, lineage='"auto"')
    spec = build_spec(auto, "dc1", {"orders": facts_of(without)}, "UTC", "x")
    assert spec.tables[0].lineage == ("_topic",)
    never = configuration_of(tmp_path, lineage="false")
    assert build_spec(never, "dc1", {"orders": facts_of()}, "UTC", "x").tables[0].lineage == ()


def test_access_carries_secrets_and_hides_them(tmp_path: Path) -> None:
    configuration = configuration_of(tmp_path)
    clickhouse = access_of(configuration)
    assert dict(clickhouse.shards) == {"s1": ("http://localhost:8123",)}
    assert (clickhouse.user, clickhouse.password) == ("u", "hidden")
    kafka = kafka_access(configuration, "dc1")
    assert (kafka.connector, kafka.brokers) == ("dc1", "one:9092")
    assert kafka.properties == {"sasl.password": "secret"}
    assert "hidden" not in repr(clickhouse) and "secret" not in repr(kafka)
    with pytest.raises(ConfigurationError, match="none is named"):
        kafka_access(configuration, "dc9")


@pytest.fixture
def recorded(tmp_path: Path) -> LoadSpec:
    return build_spec(configuration_of(tmp_path), "dc1", {"orders": facts_of()}, "UTC", "chdb 1")


def today_of(facts: TableFacts | None = None, **changes: object) -> Today:
    facts = facts or facts_of()
    today = Today("chdb 1", "UTC", frozenset({"s1"}), {facts.target: facts})
    return replace(today, **changes)  # type: ignore[arg-type]


def with_column(name: str, changed: Column | None) -> TableFacts:
    kept = [changed if c.name == name else c for c in COLUMNS]
    return facts_of(tuple(c for c in kept if c is not None))


def test_what_does_not_matter_leaves_a_spec_executable(recorded: LoadSpec) -> None:
    assert why_not_executable(recorded, today_of(), "a") is None
    added = facts_of((*COLUMNS, Column("new", "String")))
    assert why_not_executable(recorded, today_of(added), "a") is None
    assert why_not_executable(recorded, today_of(with_column("m", None)), "a") is None
    assert why_not_executable(recorded, today_of(tables={}), "not a topic of it") is None


@pytest.mark.parametrize(
    ("today", "why"),
    [
        (today_of(decoder="chdb 2"), "decoded by chdb 1"),
        (today_of(shards=frozenset({"s2"})), "shard s1"),
        (today_of(tables={}), "shop.orders of table entry orders"),
        (today_of(replace(facts_of(), partition_key="d")), "is by d today"),
        (today_of(time_zone="Asia/Tokyo"), "time zone was UTC"),
        (today_of(with_column("id", None)), "no column id"),
        (today_of(with_column("_offset", None)), "no column _offset"),
        (
            today_of(with_column("d", Column("d", "Date32"))),
            "d was Date DEFAULT toDate(id), and is Date32 now",
        ),
        (
            today_of(with_column("d", Column("d", "Date", "ALIAS", "x"))),
            "d was Date DEFAULT toDate(id), and is Date ALIAS x now",
        ),
    ],
)
def test_what_makes_a_spec_impossible(recorded: LoadSpec, today: Today, why: str) -> None:
    found = why_not_executable(recorded, today, "b")
    assert found is not None and why in found


def test_a_spec_is_read_from_the_server(
    tmp_path: Path, clickhouse_url: str, server: Server, database: str
) -> None:
    server.execute(
        f"CREATE TABLE {database}.orders (id UInt64, d Date DEFAULT toDate(0), {LINEAGE}) {ENGINE}"
    )
    path = configuration_of(tmp_path, clickhouse_url)
    clickhouse = replace(path.clickhouse, user="", password=type(path.clickhouse.password)(""))
    tables = (replace(path.tables[0], target=f"{database}.orders"),)
    configuration = replace(path, clickhouse=clickhouse, tables=tables)
    spec = read_spec(configuration, "dc1")
    (table,) = spec.tables
    assert table.columns == describe_table(server, database, "orders").columns
    assert (table.partition_key, table.sorting_key) == ("toYYYYMM(d)", "id")
    assert table.time_zone == server.query("SELECT timezone() AS zone")[0]["zone"]
    assert spec.decoder == decoder_version()

    assert why_not_executable(spec, read_today(configuration, [spec]), "a") is None
    server.execute(f"ALTER TABLE {database}.orders MODIFY COLUMN _row UInt64")
    why = why_not_executable(spec, read_today(configuration, [spec]), "a")
    assert why is not None and "_row was UInt32" in why
    server.execute(f"DROP TABLE {database}.orders")
    why = why_not_executable(spec, read_today(configuration, [spec]), "a")
    assert why is not None and "cannot be loaded any more" in why
    with pytest.raises(TerminalError, match="no table"):
        read_spec(configuration, "dc1")


def test_the_first_replica_that_answers_is_read(
    tmp_path: Path, embedded: Server, embedded_url: str
) -> None:
    dead = f"http://127.0.0.1:{free_ports(1)[0]}"
    name = f"texts_{tmp_path.name}".replace("-", "_")[:40]
    embedded.execute(f"CREATE DATABASE {name}")
    try:
        embedded.execute(f"CREATE TABLE {name}.orders (id UInt64, d Date, {LINEAGE}) {ENGINE}")
        configuration = configuration_of(tmp_path, dead)
        tables = (replace(configuration.tables[0], target=f"{name}.orders"),)
        (shard,) = configuration.clickhouse.shards
        with pytest.raises(TransientError):
            read_spec(replace(configuration, tables=tables), "dc1")
        both = replace(shard, replicas=(dead, embedded_url))
        clickhouse = replace(configuration.clickhouse, shards=(both,))
        spec = read_spec(replace(configuration, tables=tables, clickhouse=clickhouse), "dc1")
        assert spec.tables[0].target == f"{name}.orders"
        # Another shard that is away holds back only who needs it.
        away = ShardConfiguration("away", (dead,))
        clickhouse = replace(clickhouse, shards=(both, away))
        only = (replace(tables[0], shards=("s1",)),)
        spec = read_spec(replace(configuration, tables=only, clickhouse=clickhouse), "dc1")
        assert spec.tables[0].shards == ("s1",)
        spread = (replace(tables[0], sharding=Sharding("key", "id")),)
        with pytest.raises(TransientError):
            read_spec(replace(configuration, tables=spread, clickhouse=clickhouse), "dc1")
    finally:
        embedded.execute(f"DROP DATABASE {name}")


def test_a_spec_says_where_rows_go_and_is_executed_so(tmp_path: Path) -> None:
    """Whatever the file says later, as long as the shards are there."""
    configuration = configuration_of(tmp_path)
    west = ShardConfiguration("west", ("http://w:8123",))
    orders, late = configuration.tables
    spread = replace(
        configuration,
        clickhouse=replace(
            configuration.clickhouse, shards=(west, *configuration.clickhouse.shards)
        ),
        tables=(replace(orders, sharding=Sharding("key", "id")), replace(late, shards=("west",))),
    )
    facts = {"orders": facts_of(), "late": replace(facts_of(table="late"), database="other")}
    spec = build_spec(spread, "dc2", facts, "UTC", "chdb 1")
    late_spec, orders_spec = spec.tables
    assert (late_spec.shards, late_spec.sharding) == (("west",), None)
    assert (orders_spec.shards, orders_spec.sharding) == (("s1", "west"), Sharding("key", "id"))
    tables = {one.target: one for one in facts.values()}
    today = Today("chdb 1", "UTC", frozenset({"s1", "west", "east"}), tables)
    before = replace(orders_spec, sharding=Sharding("offset"))
    recorded = parse_spec(replace(spec, tables=(late_spec, before)).canonical())
    assert why_not_executable(recorded, today, "c") is None
    gone = replace(today, shards=frozenset({"s1"}))
    assert "shard west of table entry late" in str(why_not_executable(recorded, gone, "c"))


def test_the_decoder_is_named_without_loading_it() -> None:
    from importlib.metadata import version

    assert decoder_version() == f"chdb {version('chdb-core')}, rules {RULES}"


def of_view(uuid: str, key: str = "") -> Dependent:
    target = replace(facts_of(table="daily"), uuid=uuid, partition_key=key)
    return Dependent("shop.view", target)


def test_another_table_in_the_place_of_one_makes_a_spec_unexecutable(tmp_path: Path) -> None:
    """The table itself, or what a view of it writes to; a table added behind it does not."""
    facts = replace(facts_of(), uuid="u1", dependents=(of_view("v1"),))
    uuids = {("shop.orders", "s1"): dict(facts.own_uuids())}
    build = configuration_of(tmp_path), "dc1", {"orders": facts}, "UTC", "chdb 1"
    spec = build_spec(*build, uuids=uuids)
    (table,) = spec.tables
    assert table.uuids == (("s1", "shop.daily", "v1"), ("s1", "shop.orders", "u1"))
    assert parse_spec(spec.canonical()) == spec != build_spec(*build)
    assert why_not_executable(spec, today_of(facts, uuids=uuids), "a") is None
    more = {("shop.orders", "s1"): {**uuids["shop.orders", "s1"], "shop.new": "n"}}
    assert why_not_executable(spec, today_of(facts, uuids=more), "a") is None
    for name, uuid in (("shop.orders", "u2"), ("shop.daily", "v2")):
        other = {("shop.orders", "s1"): {**uuids["shop.orders", "s1"], name: uuid}}
        why = why_not_executable(spec, today_of(facts, uuids=other), "a")
        assert why is not None and name in why and uuid in why
        # New ranges go on, under a load spec of the table that is there now.
        today = today_of(facts, uuids=other)
        found = refreshed(configuration_of(tmp_path), spec, today)
        assert found.barred == {} and ("s1", name, uuid) in found.spec.tables[0].uuids
        assert any(uuid in change for change in found.changes)


def test_tables_without_a_uuid_and_replicated_ones_have_none() -> None:
    zeros = replace(facts_of(), uuid="00000000-0000-0000-0000-000000000000")
    assert dict(zeros.own_uuids()) == {}
    assert dict(replace(facts_of(), uuid="u", replicated=True).own_uuids()) == {}


def test_the_zone_matters_where_rows_or_hashes_depend_on_it(recorded: LoadSpec) -> None:
    (table,) = (table for table in recorded.tables if table.entry == "orders")
    plain, facts = replace(table, partition_key=""), replace(facts_of(), partition_key="")
    assert zone_matters(table, facts_of(), tokens=True)
    assert not zone_matters(plain, facts, tokens=True) and zone_matters(plain, facts, tokens=False)
    behind = replace(facts, dependents=(of_view("v", "toDate(d)"),))
    assert zone_matters(plain, behind, tokens=True)
    moved = {"time_zone": "Asia/Tokyo"}
    spec = replace(recorded, tables=(plain,))
    assert why_not_executable(spec, today_of(facts, **moved), "a") is None
    for today in (today_of(behind, **moved), today_of(facts, tokens=False, **moved)):
        assert "time zone was UTC" in (why_not_executable(spec, today, "a") or "")


def test_keys_and_values_have_the_registry_of_the_file(tmp_path: Path) -> None:
    text = f"""{MINIMAL}
format = "JSONEachRow"
lineage = false
key = {{ format = "AvroConfluent", options = {{ schema_id = "header" }} }}
columns = {{ id = {{ key = "id" }} }}
[registry]
url = "http://registry:8081"
"""
    configuration = load_text(tmp_path, text)
    (table,) = build_spec(configuration, "dc1", {"orders": facts_of()}, "UTC", "chdb").tables
    assert table.key is not None and table.options == ()
    assert table.registry == "http://registry:8081" == dict(table.key.options)["registry"]
    assert facts_named(table) == ("_key", "_headers")
