"""The difference of two insert counters is at least the number of entries created in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from sluice.clickhouse.http import Server
from sluice.clickhouse.probe import why_not_in_sync
from sluice.clickhouse.reactions import ServerError
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.window import read_insert_counter
from sluice.core.budget import HISTORY_GONE, WindowState, created_since, still_remembered
from sluice.core.errors import TerminalError, TransientError
from sluice.testbed.local.running import running_clickhouse
from tests.clickhouse.helpers import ProfiledServer, count, insert

COLUMNS = ["a", "d"]


def block(begin: int, partitions: int) -> str:
    """`partitions` rows, each in a ClickHouse partition of its own."""
    return f"SELECT number + {begin} AS a, toUInt8(number) AS d FROM numbers({partitions})"


def create(server: Server, database: str, engine: str, settings: str = "") -> str:
    server.execute(
        f"CREATE TABLE {database}.t (a UInt64, d UInt8) ENGINE = {engine} "
        f"PARTITION BY d ORDER BY a{settings}"
    )
    return f"{database}.t"


def test_plain_inserts_deduplicated_inserts_and_merges(server: Server, database: str) -> None:
    tokens = server.version() > (22, 2)
    window = " SETTINGS non_replicated_deduplication_window = 1000" if tokens else ""
    target = create(server, database, "MergeTree", window)
    facts = describe_table(server, database, "t")
    insert_counters = [read_insert_counter(server, facts)]
    entries = [0]
    for number, partitions in enumerate([1, 5, 30, 1, 1, 7]):
        insert(server, target, COLUMNS, block(number * 100, partitions), f"t{number}")
        insert_counters.append(read_insert_counter(server, facts))
        entries.append(entries[-1] + partitions)
        if number == 2:
            server.execute(f"OPTIMIZE TABLE {target} PARTITION 0 FINAL")
            insert(server, target, COLUMNS, block(200, 30), "t2")  # deduplicated with tokens
            insert_counters.append(read_insert_counter(server, facts))
            entries.append(entries[-1] + (0 if tokens else 30))
            assert count(server, target) == entries[-1]
    for one in range(len(insert_counters)):
        for other in range(one, len(insert_counters)):
            assert insert_counters[other] - insert_counters[one] >= entries[other] - entries[one]


def test_plain_drop_partition_never_grows_the_insert_counter_by_less(
    server: Server, database: str
) -> None:
    target = create(server, database, "MergeTree")
    facts = describe_table(server, database, "t")
    insert(server, target, COLUMNS, block(0, 10), "a")
    before = read_insert_counter(server, facts)
    server.execute(f"ALTER TABLE {target} DROP PARTITION 9")
    insert(server, target, COLUMNS, block(100, 3), "b")
    assert read_insert_counter(server, facts) - before >= 3


def test_plain_insert_counter_over_a_restart(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path) as own:
        client = Server(own.url)
        client.execute("CREATE DATABASE w")
        target = create(client, "w", "MergeTree", " SETTINGS non_replicated_deduplication_window=9")
        insert(client, target, COLUMNS, block(0, 4), "a")
        facts = describe_table(client, "w", "t")
        before = read_insert_counter(client, facts)
        own.stop()
        own.start()
        assert read_insert_counter(client, facts) == before
        insert(client, target, COLUMNS, block(100, 3), "b")
        assert read_insert_counter(client, facts) - before >= 3


def test_plain_truncate_and_restart_shrinks(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path) as own:
        client = Server(own.url)
        client.execute("CREATE DATABASE w")
        target = create(client, "w", "MergeTree")
        insert(client, target, COLUMNS, block(0, 8), "a")
        facts = describe_table(client, "w", "t")
        before = read_insert_counter(client, facts)
        client.execute(f"TRUNCATE TABLE {target}")
        own.stop()
        own.start()
        insert(client, target, COLUMNS, block(0, 1), "b")
        after = read_insert_counter(client, facts)
        assert after < before or after - before >= 1


def test_replicated_counts_exactly(old: Server, second: Server, replicated: str) -> None:
    engine = f"ReplicatedMergeTree('/{replicated}/t', '{{replica}}')"
    settings = " SETTINGS replicated_deduplication_window = 20"
    for each in (old, second):
        create(each, replicated, engine, settings)
    target = f"{replicated}.t"
    facts = describe_table(old, replicated, "t")
    assert read_insert_counter(old, facts) == 0
    insert(old, target, COLUMNS, block(0, 5), "a")
    assert read_insert_counter(old, facts) == 5
    insert(second, target, COLUMNS, block(100, 7), "b")
    insert(second, target, COLUMNS, block(0, 5), "a")  # the same rows: deduplicated
    assert read_insert_counter(old, facts) == read_insert_counter(second, facts) == 12
    with ProfiledServer(old.url) as user:
        user.profile = {"max_result_rows": "1"}  # newer servers have `limit`, which says no word
        assert read_insert_counter(user, facts) == 12
    old.execute(f"OPTIMIZE TABLE {target} PARTITION 1 FINAL")
    assert read_insert_counter(old, facts) == 12
    old.execute(f"ALTER TABLE {target} DROP PARTITION 0")
    before = read_insert_counter(old, facts)
    assert before in (12, 13)
    insert(old, target, COLUMNS, block(0, 5), "a")  # DROP PARTITION forgot one entry of five
    assert read_insert_counter(old, facts) == before + 1
    for number in range(30):  # beyond the window, with evictions
        insert(old, target, COLUMNS, block(1000 * number + 7, 1), f"c{number}")
    assert read_insert_counter(second, facts) == before + 31


def test_a_table_whose_nodes_zookeeper_does_not_show(
    old: Server, replicated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since 20.11 a table may be in an auxiliary ensemble, and newer servers show no rows then, and
    no error: a window that nobody has used would look the same."""
    engine = f"ReplicatedMergeTree('/{replicated}/t', '{{replica}}')"
    create(old, replicated, engine)
    facts = describe_table(old, replicated, "t")
    assert facts.zookeeper_name == ""
    elsewhere = replace(facts, zookeeper_path=f"/{replicated}")
    silent = partial(_without_missing_nodes, old.query)
    monkeypatch.setattr(old, "query", silent)
    for look in (read_insert_counter, why_not_in_sync):
        assert not look(old, facts)
        with pytest.raises(TransientError, match="ZooKeeper shows no /"):
            look(old, elsewhere)
        with pytest.raises(TerminalError, match="is in the auxiliary ensemble two of ZooKeeper"):
            look(old, replace(facts, zookeeper_name="two"))


def _without_missing_nodes(
    ask: Callable[..., list[dict[str, Any]]], sql: str, *more: Any
) -> list[dict[str, Any]]:
    """18.16 answers "no node" where newer servers have no rows."""
    try:
        return ask(sql, *more)
    except ServerError as error:
        if error.code != 999:
            raise
        return []


def test_a_forgotten_partition_hides_no_entries(
    old: Server, second: Server, replicated: str, zookeeper_port: int
) -> None:
    """FORGET PARTITION takes the entries of years out of the sum. By the difference alone a window
    that was overrun since would seem to remember."""
    engine = f"ReplicatedMergeTree('/{replicated}/t', '{{replica}}')"
    for each in (old, second):
        create(each, replicated, engine, " SETTINGS replicated_deduplication_window = 20")
    target = f"{replicated}.t"
    facts = describe_table(old, replicated, "t")
    for number in range(8):
        insert(old, target, COLUMNS, block(1000 * number, 1), f"a{number}")
    before = read_insert_counter(old, facts)
    assert before == 8
    old.execute(f"ALTER TABLE {target} DROP PARTITION 0")
    node = f"/{replicated}/t/block_numbers/0"
    with zookeeper_at(zookeeper_port) as zookeeper:
        zookeeper.delete(node)  # as FORGET PARTITION does, which this server does not know yet
    for number in range(12):
        rows = f"SELECT toUInt64({1000 * number}) AS a, toUInt8(1) AS d"
        insert(second, target, COLUMNS, rows, f"b{number}")
    after = read_insert_counter(old, facts)
    assert after == read_insert_counter(second, facts)
    assert after % HISTORY_GONE - before <= WindowState(20, 0).usable < 12
    assert not still_remembered(WindowState(20, after), before)
    assert created_since(WindowState(20, after), before) == "an unknown number of"
    with zookeeper_at(zookeeper_port) as zookeeper:
        zookeeper.create(node)  # this server takes for there what was there
    insert(old, target, COLUMNS, block(99_000, 2), "c")  # it comes back
    assert read_insert_counter(second, facts) == after + 2
    assert still_remembered(WindowState(20, after + 2), after)


def test_entries_that_share_a_block_number_are_counted(
    old: Server, second: Server, replicated: str, zookeeper_port: int
) -> None:
    """Of a part that was inserted asynchronously, newer servers keep an entry for each insert in
    one window with all others. This one has no such window: what it would have is written here."""
    engine = f"ReplicatedMergeTree('/{replicated}/t', '{{replica}}')"
    for each in (old, second):
        create(each, replicated, engine, " SETTINGS replicated_deduplication_window = 20")
    insert(old, f"{replicated}.t", COLUMNS, block(0, 5), "a")
    facts = describe_table(old, replicated, "t")
    before = read_insert_counter(old, facts)
    assert before == 5
    with zookeeper_at(zookeeper_port) as zookeeper:
        hashes = f"/{replicated}/t/deduplication_hashes"
        zookeeper.create(hashes)
        for number in range(30):
            zookeeper.create(f"{hashes}/{number}")
        for number in range(25):
            zookeeper.delete(f"{hashes}/{number}")  # what the window has no room for
    after = read_insert_counter(second, facts)
    assert after == before + 30
    assert not still_remembered(WindowState(20, after), before)


@contextmanager
def zookeeper_at(port: int) -> Iterator[KazooClient]:
    client = KazooClient(f"127.0.0.1:{port}")
    client.start(timeout=30)
    yield client
    client.stop()
    client.close()


def test_an_empty_table_has_insert_counter_zero(server: Server, database: str) -> None:
    create(server, database, "MergeTree")
    assert read_insert_counter(server, describe_table(server, database, "t")) == 0
