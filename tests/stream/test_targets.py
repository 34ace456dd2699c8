"""Tables that the sink refuses before there is a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.core.errors import TerminalError
from sluice.stream.columns import check_target
from sluice.stream.source import SluiceSink
from sluice.testbed.local.running import running_program
from tests.support.fixtures import fresh_database
from tests.support.guarded import GuardedClickHouse


@pytest.fixture
def database(embedded_url: str) -> Iterator[str]:
    yield from fresh_database(embedded_url)


def test_a_view_that_the_user_may_not_see_refuses_its_table(
    embedded_url: str, database: str
) -> None:
    """Moved rows feed none; and whether a table behind it deduplicates, nobody knows."""
    server = Server(embedded_url)
    kept = "ENGINE = MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 10"
    for name in ("t", "u"):
        server.execute(f"CREATE TABLE {database}.{name} (id Int64) {kept}")
    plain = describe_table(server, database, "t")
    check_target(plain, "staged", "Atomic")
    view = f"CREATE MATERIALIZED VIEW {database}.v TO {database}.u AS SELECT id FROM {database}.t"
    server.execute(view)
    fed = describe_table(server, database, "t")
    check_target(fed, "direct", "Atomic")
    with pytest.raises(TerminalError, match=r"feeds .*\.v, and rows that are moved feed no view"):
        check_target(fed, "staged", "Atomic")
    (dependent,) = fed.dependents
    behind = replace(dependent.target, fed_unseen=("other.seer",))
    deeper = replace(fed, dependents=(replace(dependent, target=behind),))
    hidden = replace(plain, fed_unseen=("other.seer",))
    for facts, mode in ((hidden, "staged"), (hidden, "direct"), (deeper, "direct")):
        with pytest.raises(TerminalError, match=r"feeds other\.seer, of which the server shows no"):
            check_target(facts, mode, "Atomic")


_RIGHTS = [
    "GRANT CREATE TABLE, DROP TABLE, ALTER, INSERT, SELECT ON d.*",
    "GRANT SELECT ON system.*",
]


def test_it_is_refused_until_its_view_is_shown(tmp_path: Path) -> None:
    """What the engine itself says to a user without SHOW TABLES."""
    schema = StructType([StructField("id", LongType(), False)])
    server = GuardedClickHouse(tmp_path / "clickhouse" / "data")
    shown = "GRANT SHOW TABLES, SHOW COLUMNS ON e.*"
    server.roles = {"without": _RIGHTS, "shown": [*_RIGHTS, shown]}
    with running_program(server):
        client = Server(server.url)
        for name in ("d", "e"):
            client.execute(f"CREATE DATABASE {name}")
            create = f"CREATE TABLE {name}.t (id Int64) ENGINE = MergeTree ORDER BY id"
            client.execute(create)
        client.execute("CREATE MATERIALIZED VIEW e.v TO e.t AS SELECT id FROM d.t")
        for user, words in (
            ("without", r"d\.t .* feeds e\.v, of which the server shows no"),
            ("shown", r"d\.t .* feeds e\.v, and rows that are moved feed no view"),
        ):
            options = {"url": server.url, "database": "d", "table": "t", "query": "q", "user": user}
            with pytest.raises(TerminalError, match=words):
                SluiceSink(options).streamWriter(schema, False)
