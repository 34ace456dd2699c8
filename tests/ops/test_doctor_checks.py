"""What the doctor makes of facts that this machine's servers cannot show."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.capabilities import Capabilities
from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.config.model import TableConfiguration
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import TerminalError, TransientError
from sluice.core.text import Column, ConfigurationText, Sharding, TableText
from sluice.kafka.topics import TopicFacts
from sluice.ops.doctor_clickhouse import ReplicaLook
from sluice.ops.doctor_decode import answer
from sluice.ops.doctor_findings import Examination, Finding, refusal
from sluice.ops.doctor_shards import check_contact, check_differences
from sluice.ops.doctor_tables import TableNeeds, check_dynamic, check_entry, check_table
from sluice.ops.doctor_topics import (
    SourceNeeds,
    check_dead_letters,
    check_ledger,
    check_replication,
    check_source,
)

LINEAGE = (
    Column("_topic", "String"),
    Column("_partition", "UInt32"),
    Column("_offset", "UInt64"),
    Column("_row", "UInt32"),
)
FACTS = TableFacts(
    url="http://one:8123",
    database="shop",
    table="orders",
    uuid="",
    engine="ReplicatedMergeTree",
    engine_full="",
    columns=(Column("id", "UInt64"), *LINEAGE),
    partition_key="",
    sorting_key="id",
    replicated=True,
    zookeeper_path="/orders",
    replicas_total=2,
    replicas_active=2,
    is_readonly=False,
    window_blocks=10_000,
    window_seconds=604_800,
    async_insert=False,
    dependents=(),
)
NEW = Capabilities(
    url="http://one:8123",
    version=(26, 9),
    time_zone="UTC",
    host_name="one",
    settings={
        "insert_deduplication_token": "",
        "deduplicate_blocks_in_dependent_materialized_views": "0",
    },
    locked=frozenset(),
)
OLD = replace(NEW, version=(18, 16, 1), settings={})
NEEDS = TableNeeds(partitions=4, lease_seconds=600, durability="quorum", urls=("a", "b"))
ENTRY = TableConfiguration(
    name="orders",
    database="shop",
    table="orders",
    topics=("orders",),
    format="JSONEachRow",
    lineage=True,
    unknown_fields="ignore",
    on_null="dead-letter",
    on_error="stop-partition",
)


def plain(**changes: object) -> TableFacts:
    facts = replace(
        FACTS,
        engine="MergeTree",
        replicated=False,
        zookeeper_path="",
        replicas_total=1,
        replicas_active=1,
        window_seconds=None,
    )
    return replace(facts, **changes)  # type: ignore[arg-type]


def table(
    facts: TableFacts = FACTS, capabilities: Capabilities = NEW, **needs: object
) -> dict[str, Finding]:
    """The findings that are not ok, by check; asserts that everything else is in order."""
    found = Examination("here")
    check_table(found, facts, capabilities, replace(NEEDS, **needs))  # type: ignore[arg-type]
    return bad(found)


def bad(found: Examination) -> dict[str, Finding]:
    for finding in found.findings:
        assert (finding.level == "ok") == (finding.mend == ""), finding
    return {finding.check: finding for finding in found.findings if finding.level != "ok"}


def test_a_good_table() -> None:
    found = Examination("here")
    check_table(found, FACTS, NEW, NEEDS)
    check_entry(found, FACTS, NEW, ENTRY)
    assert bad(found) == {}
    checks = {finding.check for finding in found.findings}
    assert checks >= {"window", "lease", "engine", "durability", "replicas", "tokens", "lineage"}


@pytest.mark.parametrize(
    ("facts", "capabilities", "needs", "check", "level", "mend"),
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
    mend: str,
) -> None:
    found = table(facts, capabilities, **needs)
    assert set(found) == ({check} if check else set())
    if check:
        assert found[check].level == level
        assert mend in found[check].mend


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
    assert "`deep` MODIFY SETTING non_replicated_deduplication_window" in found["window"].mend
    assert found["views"].level == "warning" and "shop.first, shop.second" in found["views"].what
    assert table(facts, OLD)["views"].level == "error"
    memory = Dependent("shop.first", plain(table="m", engine="Memory", window_blocks=0))
    assert "engine Memory" in table(replace(FACTS, dependents=(memory,)))["window"].what
    finer = Dependent("shop.first", replace(FACTS, table="f", partition_key="id"))
    assert "partitioned otherwise" in table(replace(FACTS, dependents=(finer,)))["window"].what


def test_without_tokens_rows_must_carry_their_offset() -> None:
    def entry(facts: TableFacts, capabilities: Capabilities, lineage: object) -> dict[str, Finding]:
        found = Examination("here")
        changed = replace(ENTRY, lineage=lineage)  # type: ignore[arg-type]
        check_entry(found, facts, capabilities, changed)
        return bad(found)

    bare = replace(FACTS, columns=FACTS.columns[:3])
    assert entry(FACTS, OLD, True) == {}
    assert entry(FACTS, OLD, False)["tokens"].level == "error"
    assert "lineage = true" in entry(FACTS, OLD, False)["tokens"].mend
    assert "ADD COLUMN `_offset` UInt64" in entry(bare, OLD, "auto")["tokens"].mend
    assert entry(bare, NEW, "auto")["lineage"].level == "warning"
    assert entry(bare, NEW, True)["lineage"].level == "error"


def topic(replication: int = 3, partitions: int = 1, **settings: str) -> TopicFacts:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return TopicFacts("t", partitions, replication, named)


@pytest.mark.parametrize(
    ("facts", "brokers", "checks"),
    [
        (topic(3, min_insync_replicas="2"), 3, {}),
        (topic(2, min_insync_replicas="2"), 3, {"replication": "error"}),
        (topic(2, min_insync_replicas="2"), 2, {}),
        (topic(1), 1, {}),
        (topic(1), 2, {"replication": "error"}),
        (topic(3), 5, {"min-insync-replicas": "warning"}),
        (
            topic(3, min_insync_replicas="2", unclean_leader_election_enable="true"),
            3,
            {"unclean-leader-election": "warning"},
        ),
    ],
)
def test_replication(facts: TopicFacts, brokers: int, checks: dict[str, str]) -> None:
    found = Examination("here")
    check_replication(found, facts, brokers, "b:9092")
    assert {name: finding.level for name, finding in bad(found).items()} == checks


DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("settings", "checks"),
    [
        ({}, {}),
        ({"retention_ms": "-1"}, {}),
        ({"retention_ms": str(DAY_MS)}, {}),
        ({"retention_ms": str(DAY_MS - 1)}, {"retention": "warning"}),
        ({"retention_bytes": "1000"}, {"retention": "warning"}),
        ({"cleanup_policy": "compact"}, {"cleanup-policy": "error"}),
        ({"cleanup_policy": "compact,delete"}, {"cleanup-policy": "error"}),
        (
            {"cleanup_policy": "compact", "min_compaction_lag_ms": str(DAY_MS)},
            {"cleanup-policy": "warning"},
        ),
        (
            {"cleanup_policy": "compact", "min_compaction_lag_ms": "600000"},
            {"cleanup-policy": "error"},
        ),
    ],
)
def test_sources(settings: dict[str, str], checks: dict[str, str]) -> None:
    found = Examination("here")
    check_source(found, topic(**settings), SourceNeeds("b:9092", lease_seconds=600))
    assert {name: finding.level for name, finding in bad(found).items()} == checks
    for finding in bad(found).values():
        assert "kafka-configs.sh --bootstrap-server b:9092 --alter" in finding.mend


@pytest.mark.parametrize(
    ("facts", "level"),
    [
        (topic(retention_ms="-1", retention_bytes="-1"), None),
        (topic(partitions=2), "error"),
        (topic(cleanup_policy="compact"), "error"),
        (topic(retention_ms=str(6 * DAY_MS)), "error"),
        (topic(retention_ms=str(7 * DAY_MS)), "warning"),
        (topic(retention_bytes="1000000"), "error"),
    ],
)
def test_ledgers(facts: TopicFacts, level: str | None) -> None:
    found = Examination("here")
    check_ledger(found, facts, "b:9092")
    assert [finding.level for finding in bad(found).values()] == ([level] if level else [])


def test_dead_letters_take_what_a_source_takes() -> None:
    def of(facts: TopicFacts) -> str:
        found = Examination("here")
        check_dead_letters(found, facts, 2_000_000, "b:9092")
        return " ".join(finding.level + finding.mend for finding in bad(found).values())

    assert of(topic(max_message_bytes="2000000")) == ""
    assert "max.message.bytes=2004096" in of(topic(max_message_bytes="1000000"))
    assert "error" in of(topic(cleanup_policy="compact"))
    assert "warning" in of(topic(retention_ms="1000"))


def look(shard: str, url: str, facts: TableFacts | None = FACTS, zone: str = "UTC") -> ReplicaLook:
    if facts is None:
        return ReplicaLook(shard, url, away=TransientError("refused", "Start it."))
    found = ReplicaLook(shard, url, capabilities=replace(NEW, url=url, time_zone=zone))
    found.tables["shop", "orders"] = replace(facts, url=url)
    return found


@pytest.mark.parametrize(
    ("alive", "durability", "levels"),
    [
        ((True, True, True), "quorum", []),
        ((True, True, False), "quorum", ["warning"]),
        ((True, False, False), "quorum", ["error", "error"]),
        ((True, False, False), "single", ["warning", "warning"]),
        ((False, True, True), "quorum", ["warning"]),
        ((False, False, False), "single", ["error"] * 3),
    ],
)
def test_servers_that_are_away(alive: tuple[bool, ...], durability: str, levels: list[str]) -> None:
    looks = [look("s1", f"http://{n}", FACTS if a else None) for n, a in enumerate(alive)]
    needed = 2 if durability == "quorum" else 1
    findings = check_contact(looks, lambda shard: needed)
    assert [finding.level for finding in findings] == levels
    assert {finding.check for finding in findings} <= {"clickhouse"}


def test_a_server_that_is_read_only_takes_no_blocks() -> None:
    """The others may be enough. It does not say how many replicas there are."""
    frozen = replace(FACTS, is_readonly=True, replicas_total=0, replicas_active=0)
    looks = [look("s1", "http://a", frozen), look("s1", "http://b")]
    (warning,) = check_contact(looks, lambda shard: 1)
    assert warning.level == "warning" and "shop.orders is read-only" in warning.what
    assert "RESTART REPLICA" in warning.mend
    (error,) = check_contact(looks, lambda shard: 2)
    assert error.level == "error" and isinstance(refusal([error]), TransientError)
    found = Examination("here")
    check_table(found, frozen, NEW, NEEDS)
    assert bad(found) == {}


def test_servers_of_one_shard_with_other_windows_or_versions() -> None:
    narrow = replace(FACTS, window_blocks=100)
    warning, _ = check_differences([look("s1", "http://a"), look("s1", "http://b", narrow)])
    assert (warning.level, warning.check) == ("warning", "window")
    assert "http://b: 100 blocks" in warning.what
    other = look("s1", "http://b")
    assert other.capabilities is not None
    other.capabilities = replace(other.capabilities, version=(25, 8))
    (warning, _) = check_differences([look("s1", "http://a"), other])
    assert (warning.level, warning.check) == ("warning", "version")
    assert "http://a: 26.9, http://b: 25.8" in warning.what
    (fine,) = check_differences([look("s1", "http://a"), look("s2", "http://b", narrow)])
    assert fine.level == "ok"


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (look("s1", "http://b"), ""),
        (look("s1", "http://b", replace(FACTS, columns=LINEAGE)), "another columns"),
        (look("s2", "http://b", replace(FACTS, partition_key="id")), "another partition key"),
        (look("s1", "http://b", replace(FACTS, zookeeper_path="/x")), "different tables: /orders"),
        (look("s2", "http://b", replace(FACTS, zookeeper_path="/x")), ""),
        (look("s1", "http://b", zone="Asia/Tokyo"), "http://b: Asia/Tokyo"),
    ],
)
def test_servers_that_differ(other: ReplicaLook, words: str) -> None:
    findings = check_differences([look("s1", "http://a"), other])
    errors = [finding for finding in findings if finding.level == "error"]
    assert len(errors) == (1 if words else 0)
    assert not words or words in errors[0].what


def test_a_table_that_all_shards_have_alike_is_said_to_be() -> None:
    (finding,) = check_differences([look("s1", "http://a"), look("s2", "http://b")])
    assert (finding.level, finding.what) == ("ok", "2 servers in 2 shards describe it alike")


@pytest.mark.parametrize(
    ("expression", "level", "words"),
    [
        ("cityHash64(id)", "ok", "shards s1, s2 by toUInt64(cityHash64(id) ) modulo 2; a Distr"),
        ("id + rand()", "error", "it depends on rand, so a message that is loaded again"),
    ],
)
def test_sharding_is_compiled(expression: str, level: str, words: str) -> None:
    table = TableText(
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
        shards=("s1", "s2"),
        sharding=Sharding("expression", expression=expression),
    )
    text = ConfigurationText("orders", "dc1", "chdb", 1000, (table,))
    found = {one.check: one for one in answer({"texts": [text.canonical()], "keys": []})}
    assert found["sharding"].level == level and words in found["sharding"].what


def test_only_what_is_away_can_be_waited_for() -> None:
    away = Finding("error", "kafka", "dc1", "away", "start it")
    wrong = Finding("error", "window", "shop.orders", "none", "ALTER …")
    fine = [Finding("ok", "clock", "here", "same"), Finding("warning", "views", "here", "x", "y")]
    assert refusal(fine) is None
    assert isinstance(refusal([*fine, away]), TransientError)
    found = refusal([away, wrong])
    assert isinstance(found, TerminalError) and "ALTER …" in str(found)


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
    ("columns_max", "is_closed", "level", "words"),
    [
        (3, False, "ok", "room for 2 columns"),
        (3, True, "error", "no right to add any to shop.orders"),
        (1, False, "warning", "dynamic_columns.max = 1"),
        (1, True, "warning", "dynamic_columns.max = 1"),  # it asks for none
    ],
)
def test_whether_new_fields_can_get_columns(
    columns_max: int, is_closed: bool, level: str, words: str
) -> None:
    found = Examination("here")
    facts = replace(FACTS, columns=(*FACTS.columns, Column("a1", "String")))
    dynamic = DynamicColumns(allow=("a.*",), columns_max=columns_max)
    check_dynamic(found, facts, replace(ENTRY, dynamic=dynamic), is_closed=is_closed)
    (finding,) = found.findings
    assert (finding.level, finding.check) == (level, "dynamic-columns")
    assert words in finding.what
    assert level != "error" or "GRANT ALTER ADD COLUMN ON `shop`.`orders`" in finding.mend
    nothing = Examination("here")
    check_dynamic(nothing, facts, ENTRY, is_closed=True)
    assert nothing.findings == []
