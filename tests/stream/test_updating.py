"""Output mode update: tables and shards in which a key could have two rows. What it writes is in
`test_sink.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sluice.core.errors import ConfigurationError, TerminalError
from sluice.stream.commit import Committer, QueryIdentity
from sluice.stream.options import SinkOptions, read_options
from sluice.stream.updating import check_shards, check_table
from tests.stream.committing import Target
from tests.support.fixtures import fresh_database


@pytest.fixture
def database(embedded_url: str) -> Iterator[str]:
    yield from fresh_database(embedded_url)


def _options(target: Target, shards: str, sharding: str = "") -> SinkOptions:
    places = ", ".join(f"{name}={target.url}/{name}" for name in shards)
    given = {"shards": places, "sharding": sharding, "query": target.query}
    return read_options({**given, "database": target.database, "table": target.table})


@pytest.mark.parametrize(
    ("engine", "sharding", "words"),
    [
        ("MergeTree ORDER BY id", "", "would keep each value"),
        ("ReplacingMergeTree ORDER BY id", "", ""),
        ("ReplacingMergeTree PARTITION BY id % 3 ORDER BY (text, id)", "id", ""),
        ("ReplacingMergeTree PARTITION BY id % 3 ORDER BY text", "", "id is no column of its sort"),
        ("ReplacingMergeTree PARTITION BY id ORDER BY id % 3", "", "id is no column of its sort"),
        ("ReplacingMergeTree ORDER BY text", "id", "sharding: id is no column of the sorting key"),
    ],
)
def test_a_key_has_one_place(
    embedded_url: str, database: str, engine: str, sharding: str, words: str
) -> None:
    ddl = f"CREATE TABLE {{name}} (id Int64, text String) ENGINE = {engine}"
    target = Target(embedded_url, database, ddl)
    options = _options(target, "ab", sharding)
    if not words:
        check_table(target.server, options)
        return
    with pytest.raises(TerminalError, match=words):
        check_table(target.server, options)


def test_shards_stay_as_they_are(embedded_url: str, database: str) -> None:
    target = Target(embedded_url, database)
    check_shards(target.server, _options(target, "ab"))
    who = QueryIdentity(target.query, "c")
    servers = {"s1": target.server}
    Committer(servers, database, target.table, who).commit(target.stage(0))
    with pytest.raises(ConfigurationError, match="on the shards s1, and now names a, b"):
        check_shards(target.server, _options(target, "ab"))
    alone = {"url": embedded_url, "query": target.query, "table": target.table}
    check_shards(target.server, read_options({**alone, "database": database}))
