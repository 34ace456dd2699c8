"""Which rights follow from a configuration. That they suffice is in tests/e2e/test_rights.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import sluice
from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.schema import Dependent
from sluice.config import Configuration
from sluice.ops.doctor_clickhouse import look_at_replica
from sluice.ops.grants import DOCTOR, clickhouse_rights, kafka_rights, literal_begin
from sluice.testbed.local.running import running_program
from tests.config.support import MINIMAL, changed, load_text
from tests.ops.doctor_facts import FACTS, plain
from tests.support.guarded import GuardedClickHouse

#: What a server shows to everybody, of what the user may see.
_OPEN = {"tables", "columns", "databases", "settings", "functions", "data_type_families"}


def on_kafka(configuration: Configuration) -> set[tuple[str, str, str, bool]]:
    """Kind, name, operation and whether it is a prefix, of what loading needs."""
    (connector,) = configuration.connectors
    return {
        (right.kind, right.name, operation, right.is_prefix)
        for right in kafka_rights(configuration, connector)
        if not right.command
        for operation in right.operations
    }


def on_clickhouse(configuration: Configuration, *facts: object) -> set[tuple[str, str]]:
    known = {each.target: each for each in facts}  # type: ignore[attr-defined]
    return {
        (privilege, right.on)
        for right in clickhouse_rights(configuration, known)
        if not right.command
        for privilege in right.privileges
    }


@pytest.mark.parametrize(
    ("pattern", "begin"),
    [
        ("orders", "orders"),
        (r"orders\..*", "orders."),
        (r"shop_(eu|us)", "shop_"),
        ("eu.*|us.*", ""),
        (r"a[bc|]d", "a"),
        ("abc*", "ab"),
        ("abc+", "abc"),
        (r"ab\d", "ab"),
        ("(?i)orders", ""),
        (".*", ""),
    ],
)
def test_with_what_the_names_begin_that_an_expression_takes(pattern: str, begin: str) -> None:
    assert literal_begin(pattern) == begin


def test_the_least_on_kafka(tmp_path: Path) -> None:
    group = "sluice.orders.dc1"
    own = {
        ("topic", f"sluice.orders.{name}", operation, False)
        for name in ("ledger", "decisions")
        for operation in ("Read", "Write", "Create")
    }
    letters = "sluice.orders.dead-letters"
    own |= {("topic", letters, each, False) for each in ("Write", "Create", "DescribeConfigs")}
    least = {
        ("topic", "orders", "Read", False),
        ("group", group, "Read", False),
        ("transactional-id", f"{group}.", "Write", True),
        ("group", "sluice.reader", "Describe", False),
        *own,
    }
    assert on_kafka(load_text(tmp_path, MINIMAL)) == least
    topics = 'topics = ["orders"]\n[batch]'
    named = changed(topics, 'topic_pattern = "orders_.*"\nstart = "group:old"\n[batch]')
    table = '[[table]]\nname = "orders"\ntopics = ["orders"]\n'
    named = changed(table, table.replace('topics = ["orders"]', 'topic_pattern = ".*"'), named)
    found = on_kafka(load_text(tmp_path, f'{named}on_error = "park"\n'))
    assert ("topic", "orders_", "Read", True) in found
    assert ("topic", "orders", "Read", False) not in found
    assert ("group", "old", "Describe", False) in found
    assert ("topic", "sluice.orders.parking", "Write", False) in found


def test_who_serves_metrics_reads_the_parking_topic(tmp_path: Path) -> None:
    """Without the right it loads all the same, and the doctor warns."""
    parks = f'{MINIMAL}on_error = "park"\n'

    def reads(text: str) -> bool:
        configuration = load_text(tmp_path, text)
        (connector,) = configuration.connectors
        return any(
            (right.name, right.command) == ("sluice.orders.parking", DOCTOR)
            and "Read" in right.operations
            for right in kafka_rights(configuration, connector)
        )

    assert reads(f'{parks}[http]\nlisten = "127.0.0.1:0"\n') and not reads(parks)


def test_a_member_of_a_fleet_reports_and_reads(tmp_path: Path) -> None:
    least = on_kafka(load_text(tmp_path, MINIMAL))
    found = on_kafka(load_text(tmp_path, f"{MINIMAL}[fleet]\n"))
    operations = ("Read", "Write", "Create")
    assert found - least == {("topic", "sluice.orders.fleet", each, False) for each in operations}


def test_the_least_on_clickhouse(tmp_path: Path) -> None:
    configuration = load_text(
        tmp_path, changed("[clickhouse]\n", '[clickhouse]\ndatabase = "shop"\n')
    )
    name = "`shop`.`orders`"
    system = {
        "parts",
        "processes",
        "merge_tree_settings",
        "replicas",
        "mutations",
    }
    columns = "`_offset`, `_partition`, `_row`, `_source`, `_topic`, `_part`"
    least = {("INSERT", name), (f"SELECT({columns})", name)}
    least |= {("SELECT", f"system.{table}") for table in system}
    assert on_clickhouse(configuration, plain()) == least
    replicated = on_clickhouse(configuration, FACTS)
    assert replicated - least == {
        ("SELECT", f"system.{table}")
        for table in ("zookeeper", "replication_queue", "replicated_merge_tree_settings")
    }
    assert ("SELECT", name) in on_clickhouse(configuration), "what it feeds is not known"


def test_views_and_staged_blocks(tmp_path: Path) -> None:
    text = changed("[clickhouse]\n", '[clickhouse]\ndatabase = "shop"\n')
    configuration = load_text(tmp_path, f'{text}delivery = "staged"\n')
    view = Dependent("shop.view", plain(table="sums"), "", "CREATE MATERIALIZED VIEW shop.view")
    found = on_clickhouse(configuration, plain(dependents=(view,)))
    assert ("SELECT", "`shop`.`orders`") in found, "the view reads with the rights of who inserts"
    assert ("SHOW TABLES", "`shop`.`view`") in found
    assert ("SHOW COLUMNS", "`shop`.`sums`") not in found, "who may insert sees them"
    assert {("INSERT", "`shop`.`sums`"), ("DROP TABLE", "`shop`.`orders__sluice_`*")} <= found
    unstaged = load_text(tmp_path, text)
    found = on_clickhouse(unstaged, plain(dependents=(view,)))
    assert ("SHOW COLUMNS", "`shop`.`sums`") in found
    defined = replace(view, statement="CREATE … DEFINER = a SQL SECURITY DEFINER AS SELECT 1")
    assert ("SELECT", "`shop`.`orders`") not in on_clickhouse(
        configuration, plain(dependents=(defined,))
    )


def test_every_system_table_that_a_driver_reads_is_named(tmp_path: Path) -> None:
    cluster = 'cluster = { name = "c", servers = ["http://localhost:8123"] }\nshards = ["s1"]'
    text = changed('shards = { s1 = ["http://localhost:8123"] }', cluster)
    rights = clickhouse_rights(load_text(tmp_path, text), {})
    named = {right.on.removeprefix("system.") for right in rights}
    package = Path(sluice.__file__).parent
    read = {
        found
        for folder in ("clickhouse", "driver", "worker", "verify")
        for file in (package / folder).rglob("*.py")
        for found in re.findall(r"FROM system\.([a-z_]+)", file.read_text())
    }
    assert {"parts", "zookeeper"} <= read
    assert read - named - _OPEN == set()


def test_who_lacks_what_loading_does_without_is_warned(tmp_path: Path) -> None:
    """The start refused users who had all that had been printed before there was this right."""
    (right,) = (
        each
        for each in clickhouse_rights(load_text(tmp_path, MINIMAL), {})
        if each.command == DOCTOR
    )
    assert right.on == "system.server_settings"
    program = GuardedClickHouse(tmp_path / "clickhouse" / "data")
    program.roles = {"without": ["GRANT SELECT ON system.one"]}
    rights = [replace(right, on=f"default.{name}") for name in "ab"]  # the engine gives that one
    needed = [rights[0], replace(rights[1], command="")]
    with running_program(program) as own:
        access = ClickHouseAccess({"s1": (own.url,)}, "without", "", "single")
        look = look_at_replica(access, "s1", own.url, [], rights=lambda tables: needed)
    found = {each.level: each.fix for each in look.findings if each.check == "rights"}
    assert found == {
        "warning": "GRANT SELECT ON default.a TO `without`",
        "error": "GRANT SELECT ON default.b TO `without`",
    }
