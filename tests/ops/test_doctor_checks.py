"""What the doctor makes of facts that this machine's servers cannot show."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import cycle
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.clickhouse.capabilities import Capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import ServerErrorFacts, TerminalServerError
from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Column, LoadSpec, Mapped, Route, Sharding, TableSpec
from sluice.kafka.errors import KafkaRefusedError
from sluice.ops import doctor_front
from sluice.ops.doctor_decode import answer
from sluice.ops.doctor_findings import Examination, Finding, refusal
from sluice.ops.doctor_rights import check_clickhouse_rights
from sluice.ops.doctor_tables import check_dynamic, check_entry, check_shared, check_table
from sluice.ops.grants import ClickHouseRight
from tests.ops.doctor_facts import ENTRY, FACTS, NEEDS, NEW, OLD, bad, plain, table


def test_a_good_table() -> None:
    found = Examination("here")
    check_table(found, FACTS, NEW, NEEDS)
    check_entry(found, FACTS, NEW, ENTRY)
    assert bad(found) == {}
    checks = {finding.check for finding in found.findings}
    assert checks >= {"window", "lease", "engine", "durability", "replicas", "tokens", "lineage"}


@pytest.mark.parametrize(
    ("facts", "capabilities", "needs", "check", "level", "fix"),
    [
        (
            replace(FACTS, window_blocks=0),
            NEW,
            {},
            "window",
            "error",
            "ALTER TABLE `shop`.`orders` MODIFY SETTING replicated_deduplication_window = 10000",
        ),
        (replace(FACTS, window_blocks=100), OLD, {"partitions": 30}, "window", "warning", "<merge"),
        (replace(FACTS, window_blocks=100), NEW, {"partitions": 25}, "", "", ""),
        (
            replace(FACTS, window_blocks=100, partition_key="d"),
            NEW,
            {},
            "window",
            "warning",
            "= 10000",
        ),
        (replace(FACTS, window_blocks=15, partition_key="d"), NEW, {}, "window", "error", "10000"),
        (
            replace(FACTS, window_blocks=511, partition_key="d"),
            NEW,
            {"members_max": 8},
            "window",
            "error",
            "or a smaller members_max",
        ),
        (
            replace(FACTS, window_blocks=512, partition_key="d"),
            NEW,
            {"members_max": 8},
            "",
            "",
            "",
        ),
        (
            replace(FACTS, window_seconds=3599),
            NEW,
            {},
            "lease",
            "error",
            'replicated_deduplication_window_seconds = 86400; or lease = "599s"',
        ),
        (replace(FACTS, window_seconds=3600), NEW, {}, "window", "warning", "_seconds = 86400"),
        (replace(FACTS, async_insert=True), NEW, {}, "async-insert", "error", "async_insert = 0"),
        (
            replace(FACTS, replicas_active=2, replicas_total=3),
            NEW,
            {},
            "replicas",
            "warning",
            "probe",
        ),
        (FACTS, NEW, {"durability": "single"}, "durability", "warning", '"quorum"'),
        (plain(), NEW, {"urls": ("a",)}, "durability", "error", 'durability = "single"'),
        (plain(), NEW, {"durability": "single"}, "replicas", "error", "ReplicatedMergeTree"),
        (
            plain(window_blocks=0),
            NEW,
            {"durability": "single", "urls": ("a",)},
            "window",
            "error",
            "SETTING non_replicated_deduplication_window = 10000",
        ),
        (
            plain(window_blocks=0),
            OLD,
            {"durability": "single", "urls": ("a",)},
            "window",
            "error",
            "Use a ReplicatedMergeTree",
        ),
        (
            replace(FACTS, engine="ReplicatedSummingMergeTree"),
            NEW,
            {},
            "engine",
            "warning",
            "plain MergeTree",
        ),
        (
            replace(
                FACTS,
                engine="ReplicatedCollapsingMergeTree",
                sorting_key="_topic, _partition, _offset",
                drops_empty_parts=True,
            ),
            NEW,
            {},
            "window",
            "error",
            "MODIFY SETTING remove_empty_parts = 0",
        ),
        (
            replace(
                FACTS,
                engine="ReplicatedReplacingMergeTree",
                sorting_key="_topic, _partition, _offset",
            ),
            NEW,
            {},
            "",
            "",
            "",
        ),
    ],
)
def test_tables(
    facts: TableFacts,
    capabilities: Capabilities,
    needs: dict[str, object],
    check: str,
    level: str,
    fix: str,
) -> None:
    found = table(facts, capabilities, **needs)
    assert set(found) == ({check} if check else set())
    if check:
        assert found[check].level == level
        assert fix in found[check].fix


def test_a_replica_that_is_left_alone() -> None:
    found = table(replace(FACTS, replicas_active=1))
    assert found["durability"].level == "error" and "quorum needs 2" in found["durability"].what
    assert found["replicas"].level == "warning"


def test_every_target_of_a_view_is_looked_at() -> None:
    deep = Dependent("shop.second", plain(table="deep", window_blocks=0))
    middle = Dependent("shop.first", replace(FACTS, table="middle", dependents=(deep,)))
    facts = replace(FACTS, dependents=(middle,))
    found = table(facts)
    assert found["window"].level == "error"
    assert "shop.deep (written by the view shop.second)" in found["window"].what
    assert "`deep` MODIFY SETTING non_replicated_deduplication_window" in found["window"].fix
    assert found["views"].level == "warning" and "shop.first, shop.second" in found["views"].what
    assert "started again meanwhile, since shop.deep may know" in found["views"].what
    replicated = replace(FACTS, dependents=(Dependent("shop.first", replace(FACTS, table="m")),))
    assert "started again" not in table(replicated)["views"].what
    assert table(facts, OLD)["views"].level == "error"
    hidden = table(replace(FACTS, fed_unseen=("other.seer",)))["views"]
    assert hidden.level == "warning" and "feeds other.seer" in hidden.what
    memory = Dependent("shop.first", plain(table="m", engine="Memory", window_blocks=0))
    assert "engine Memory" in table(replace(FACTS, dependents=(memory,)))["window"].what
    finer = replace(plain(table="f", window_blocks=10), partition_key="id")
    found = table(replace(FACTS, dependents=(Dependent("shop.first", finer),)))
    assert "shop.f (written by the view shop.first) keeps 10 blocks" in found["window"].what


def test_several_views_into_one_table_need_a_server_that_tells_their_blocks_apart() -> None:
    """On others each block has the insert's token, and the second one is taken for a repeat."""
    sums = plain(table="sums")
    fan = plain(dependents=(Dependent("shop.a", sums), Dependent("shop.b", sums)))
    one, other = (plain(table=name, dependents=fan.dependents[:1]) for name in "xy")
    diamond = plain(dependents=(Dependent("shop.x", one), Dependent("shop.y", other)))
    unable = replace(NEW, version=(24, 7))
    for facts in (fan, diamond):
        found = table(facts, unable)["views"]
        assert found.level == "error" and "shop.sums is written by several of" in found.what
        assert "24.8" in found.fix
        assert table(facts)["views"].level == "warning"
        # Before 22.2 blocks are known by their rows.
        without_tokens = {k: v for k, v in unable.settings.items() if "token" not in k}
        hashing = replace(unable, settings=without_tokens)
        assert table(facts, hashing)["views"].level == "warning"
    chain = plain(dependents=(Dependent("shop.x", one),))
    assert table(chain, unable)["views"].level == "warning"


def test_without_tokens_rows_must_carry_their_offset() -> None:
    def entry(facts: TableFacts, capabilities: Capabilities, lineage: object) -> dict[str, Finding]:
        found = Examination("here")
        changed = replace(ENTRY, lineage=lineage)  # type: ignore[arg-type]
        check_entry(found, facts, capabilities, changed)
        return bad(found)

    bare = replace(FACTS, columns=FACTS.columns[:3])
    assert entry(FACTS, OLD, True) == {}
    assert entry(FACTS, OLD, False)["tokens"].level == "error"
    assert "lineage = true" in entry(FACTS, OLD, False)["tokens"].fix
    assert "ADD COLUMN `_offset` UInt64" in entry(bare, OLD, "auto")["tokens"].fix
    assert entry(bare, NEW, "auto")["lineage"].level == "warning"
    assert entry(bare, NEW, True)["lineage"].level == "error"


_ORDERS = TableSpec(
    entry="orders",
    database="shop",
    table="orders",
    topics=("orders",),
    format="JSONEachRow",
    columns=(Column("id", "UInt64"),),
    lineage=(),
    partition_key="",
    sorting_key="id",
    unknown_fields="ignore",
    on_null="dead-letter",
    time_zone="UTC",
    shards=("s1",),
)


@pytest.mark.parametrize(
    ("expression", "level", "words"),
    [
        ("cityHash64(id)", "ok", "shards s1, s2 by toUInt64(cityHash64(id) ) modulo 2; a Distr"),
        ("id + rand()", "error", "it depends on rand, so a message that is loaded again"),
    ],
)
def test_sharding_is_compiled(expression: str, level: str, words: str) -> None:
    sharding = Sharding("expression", expression=expression)
    table = replace(_ORDERS, shards=("s1", "s2"), sharding=sharding)
    text = LoadSpec("orders", "dc1", "chdb", 1000, (table,))
    found = {one.check: one for one in answer({"specs": [text.canonical()], "keys": []})}
    assert found["sharding"].level == level and words in found["sharding"].what


@pytest.mark.parametrize(
    ("kind", "constant", "words"),
    [
        ("UInt32", "1000", ""),
        ("String", "1000.0", ""),
        ("UInt32", "1000.0", '"1000.0" String cannot be read as column c UInt32: every message'),
        ("UInt8", "1000", '"1000" does not fit column c UInt8: every message'),
        ("Enum8('web' = 1)", "app", "column c Enum8"),
        ("Date", "2026-02-30", "column c Date"),
    ],
)
def test_a_constant_that_its_column_does_not_take(kind: str, constant: str, words: str) -> None:
    table = replace(
        _ORDERS,
        format="MsgPack",
        columns=(Column("id", "UInt64"), Column("c", kind, "DEFAULT", "id")),
        unknown_fields="refuse",
        mapping=(Mapped("c", "value", constant),),
    )
    text = LoadSpec("orders", "dc1", "chdb", 1000, (table,))
    found = [
        one for one in answer({"specs": [text.canonical()], "keys": []}) if one.level == "error"
    ]
    assert [one.check for one in found] == (["constants"] if words else [])
    assert all(words in one.what for one in found)


@pytest.mark.parametrize(
    ("name", "options", "mapping", "fix"),
    [
        ("CSV", (), (), 'write columns = "id, `a b`" into'),
        ("RowBinary", (), (), 'write columns = "id UInt64, `a b` String" into'),
        ("CSV", (), (Mapped("a b", "field", "b"),), "write columns, with the names of the fields"),
        ("CSV", (("columns", "`a b`, id"),), (), ""),
        ("CSVWithNames", (), (), ""),
        ("RawBLOB", (("columns", "`a b`"),), (), ""),
    ],
)
def test_an_order_that_only_the_table_says_is_warned_of(
    name: str, options: tuple[tuple[str, str], ...], mapping: tuple[Mapped, ...], fix: str
) -> None:
    table = replace(
        _ORDERS,
        format=name,
        options=options,
        mapping=mapping,
        columns=(
            Column("id", "UInt64"),
            Column("m", "UInt64", "MATERIALIZED", "id"),
            Column("a b", "String", "DEFAULT", "'x'"),
        ),
    )
    text = LoadSpec("orders", "dc1", "chdb", 1000, (table,))
    found = answer({"specs": [text.canonical()], "keys": []})
    bad = [one for one in found if one.level != "ok"]
    assert [(one.check, one.level) for one in bad] == ([("order", "warning")] if fix else [])
    assert all(fix in one.fix for one in bad)


def test_a_default_that_speaks_of_who_computes_it_is_warned_of() -> None:
    columns = (
        Column("id", "UInt64"),
        Column("host", "String", "DEFAULT", "upper(hostName())"),
        Column("twice", "UInt64", "DEFAULT", "id * 2"),
        Column("by", "String", "MATERIALIZED", "currentUser()"),
    )
    text = LoadSpec("orders", "dc1", "chdb", 1000, (replace(_ORDERS, columns=columns),))
    found = answer({"specs": [text.canonical()], "keys": []})
    bad = [one for one in found if one.level != "ok"]
    assert [(one.check, one.level) for one in bad] == [("defaults", "warning")]
    assert "column host of shop.orders is upper(hostName()) by default" in bad[0].what
    assert "MODIFY COLUMN host String MATERIALIZED upper(hostName())" in bad[0].fix


def test_only_what_is_away_can_be_waited_for() -> None:
    away = Finding("error", "kafka", "dc1", "away", "start it")
    wrong = Finding("error", "window", "shop.orders", "none", "ALTER …")
    fine = [Finding("ok", "clock", "here", "same"), Finding("warning", "views", "here", "x", "y")]
    assert refusal(fine) is None
    assert isinstance(refusal([*fine, away]), TransientError)
    found = refusal([away, wrong])
    assert isinstance(found, TerminalError) and "ALTER …" in str(found)
    login = Finding("error", "login", "dc1", "refused", "log in")
    assert isinstance(refusal([login, away]), KafkaRefusedError), "who runs waits for it"
    assert not isinstance(refusal([login, wrong]), KafkaRefusedError)


def test_an_ok_does_not_stand_beside_a_finding_of_its_check() -> None:
    found = Examination("here")
    found.ok("window", "fine")
    found.warning("window", "small", "widen it")
    found.ok("window", "fine")
    assert [finding.level for finding in found.findings] == ["warning"]
    found.failed("rights", TerminalError("may not", "GRANT"))
    found.failed("clock", TransientError("gone", "start it"))
    assert [finding.level for finding in found.findings] == ["warning", "warning", "error"]


@pytest.mark.parametrize(
    ("columns_max", "level", "words"),
    [(3, "ok", "room for 2 columns"), (1, "warning", "dynamic_columns.max = 1")],
)
def test_whether_new_fields_can_get_columns(columns_max: int, level: str, words: str) -> None:
    found = Examination("here")
    facts = replace(FACTS, columns=(*FACTS.columns, Column("a1", "String")))
    dynamic = DynamicColumns(allow=("a.*",), columns_max=columns_max)
    check_dynamic(found, facts, replace(ENTRY, dynamic_columns=dynamic))
    (finding,) = found.findings
    assert (finding.level, finding.check) == (level, "dynamic-columns")
    assert words in finding.what
    nothing = Examination("here")
    check_dynamic(nothing, facts, ENTRY)
    assert nothing.findings == []


NO_SOURCE = replace(FACTS, columns=tuple(c for c in FACTS.columns if c.name != "_source"))


def test_entries_that_share_a_table_need_to_be_told_apart() -> None:
    def shared(facts: TableFacts, *loaders: tuple[str, str, str], **more: object) -> list[str]:
        found = Examination("here")
        entries = [
            (connector, replace(ENTRY, name=name, **more), topic)  # type: ignore[arg-type]
            for connector, name, topic in loaders
        ]
        check_shared(found, facts, NEW, entries)
        return [finding.what for finding in found.findings if finding.level == "error"]

    entries = (("dc1", "a", "orders"), ("dc1", "b", "orders"))
    connectors = (("dc1", "a", "orders"), ("dc2", "a", "orders"))
    for both, who in ((entries, "table entries a and b"), (connectors, "connectors dc1 and dc2")):
        (what,) = shared(NO_SOURCE, *both)
        assert what.startswith(f"{who} both load a topic orders into shop.orders")
        assert shared(FACTS, *both) == shared(NO_SOURCE, *both, lineage=False) == []
    assert shared(NO_SOURCE, ("dc1", "a", "orders"), ("dc1", "b", "bids")) == []
    found = Examination("here")
    routes = [Route("header", "kind", value) for value in "ab"]
    check_shared(
        found,
        NO_SOURCE,
        NEW,
        [("dc1", replace(ENTRY, name=route.value, route=route), "orders") for route in routes],
    )
    assert bad(found) == {}


@pytest.mark.parametrize(
    ("facts", "capabilities", "why", "fix"),
    [
        (NO_SOURCE, NEW, "no lineage column _source", "`_source` LowCardinality(String)"),
        (NO_SOURCE, replace(OLD, settings=NEW.settings), "_source", "`_source` UInt64"),
        (replace(FACTS, engine="ReplicatedSummingMergeTree"), NEW, "merges rows", "plain"),
        (replace(FACTS, engine_full="M ORDER BY id TTL d + 1"), NEW, "a TTL", "plain"),
    ],
)
def test_tables_that_a_probe_cannot_tell_of(
    facts: TableFacts, capabilities: Capabilities, why: str, fix: str
) -> None:
    found = Examination("here")
    check_entry(found, facts, capabilities, ENTRY)
    (warning,) = bad(found).values()
    assert (warning.check, warning.level) == ("probe", "warning")
    assert why in warning.what and fix in warning.fix


def test_behind_a_balancer_a_shared_table_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has one content on all servers, and is loaded past its window."""
    identities = cycle(["a /", "b /"])
    monkeypatch.setattr(doctor_front, "identity_of", lambda _: next(identities))
    monkeypatch.setattr(doctor_front, "_path_of", lambda *_: "")
    access: Any = SimpleNamespace(connect=lambda _: nullcontext())
    for engine, level in (("SharedReplacingMergeTree", "warning"), ("MergeTree", "error")):
        found = Examination("here")
        facts = replace(FACTS, engine=engine)
        doctor_front._check_balancer(found, access, "http://front:8123", [facts])
        assert [finding.level for finding in found.findings] == [level]


class OldServer:
    """Knows no CHECK GRANT, and answers what else it is told with this error's code, or not at all.

    :param code: 0: it executes it.
    """

    def __init__(self, code: int) -> None:
        self.code = code

    def execute(self, text: str) -> str:
        code = 62 if text.startswith("CHECK GRANT") else self.code
        assert code == 62 or text == "SELECT `_topic`, `_offset` FROM `d`.`t` LIMIT 0"
        if code:
            facts = ServerErrorFacts(code, "NAME", "http://ch", "stop")
            raise TerminalServerError(f"refused with {code}", "none", facts)
        return ""


@pytest.mark.parametrize(("code", "level"), [(0, "ok"), (497, "error")])
def test_what_a_server_does_not_say_is_not_said_to_be_well(code: int, level: str) -> None:
    """A missing right to look showed weeks later, when the first range left its window."""
    rights = [
        ClickHouseRight(("s1",), ("INSERT", "SELECT(`_topic`, `_offset`)"), "`d`.`t`", "rows")
    ]
    found, server = Examination("here"), cast(Server, OldServer(code))
    check_clickhouse_rights(found, server, "loader", rights)
    (finding,) = found.findings
    assert finding.level == level and "has all" not in finding.what
    if code:
        assert finding.fix == "GRANT SELECT(`_topic`, `_offset`) ON `d`.`t` TO `loader`"
    else:
        assert "does not say what its user may do" in finding.what
