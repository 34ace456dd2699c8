"""What a worker believes of a replica's OK to a block that was sent before, and which table it
takes for the one that its block is for; on real servers. None of these versions says OK to a block
whose quorum was given up: what ZooKeeper says then is written there by the test.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import pytest
from kazoo.client import KazooClient

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.topology import OtherPathError
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Kind, Record
from sluice.driver.ports import ProbeEnded, ProbeFound, Sought
from sluice.driver.probing import ClickHouseProber
from sluice.kafka.clients import KafkaAccess
from sluice.worker import inserting
from sluice.worker.asking import require_same_table
from sluice.worker.errors import BlockRefusedError, QuorumGivenUpError
from tests.driver.loop_world import table_spec
from tests.support.block_loader import ROWS, Loader, create
from tests.support.clickhouse_server import ClickHouseServer


@pytest.fixture
def loader(clickhouse_18: ClickHouseServer, clickhouse_18_second: ClickHouseServer) -> Loader:
    servers = [clickhouse_18, clickhouse_18_second]
    table, path = create(servers)  # type: ignore[arg-type]
    return Loader(
        servers,  # type: ignore[arg-type]
        table,
        path,
        tuple(each.url for each in servers),
        durability="quorum",
    )


@contextmanager
def giving_up(
    zookeeper_port: int, loader: Loader, monkeypatch: pytest.MonkeyPatch, part: str
) -> Iterator[None]:
    """Before a server's answer is heard, a part is listed as given up."""
    insert = inserting.insert_surely

    def insert_and_give_up(*parts: Any) -> Any:
        reply = insert(*parts)
        zookeeper.create(f"{loader.path}/quorum/failed_parts/{part}")
        return reply

    zookeeper = KazooClient(f"127.0.0.1:{zookeeper_port}")
    zookeeper.start(timeout=30)
    with monkeypatch.context() as patch:
        patch.setattr(inserting, "insert_surely", insert_and_give_up)
        yield
    zookeeper.stop()
    zookeeper.close()


def test_a_repeat_is_not_believed_while_a_quorum_is_given_up(
    loader: Loader, zookeeper_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with giving_up(zookeeper_port, loader, monkeypatch, "all_90_90_0"):
        loader.insert()  # of a first attempt the server itself knows
    loader.is_first = False
    loader.blocks = 0
    with (
        giving_up(zookeeper_port, loader, monkeypatch, "all_91_91_0"),
        pytest.raises(QuorumGivenUpError, match="too few of them had: it may be this block's"),
    ):
        loader.insert()
    loader.blocks = 0
    assert loader.insert().rows == ROWS  # none was given up since
    loader.assert_stored_once()


def test_without_a_quorum_nobody_asks(
    loader: Loader, zookeeper_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader.durability, loader.is_first = "single", False
    with giving_up(zookeeper_port, loader, monkeypatch, "all_90_90_0"):
        loader.insert()
    loader.assert_stored_once()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_table_that_was_made_anew_gets_nothing(loader: Loader, is_first: bool) -> None:
    """Under another path, while no block came: a worker that has loaded into the one before has had
    no error with it."""
    loader.durability = "single"
    loader.insert()
    make_anew(loader)
    loader.is_first = is_first
    with pytest.raises(BlockRefusedError, match=f"is the table at {loader.path}_other") as refused:
        loader.insert()
    assert isinstance(refused.value.error, OtherPathError)
    with Server(loader.urls[0]) as server:
        assert server.query(f"SELECT count() AS n FROM {loader.table}") == [{"n": 0}]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("tokens", [True, False])
def test_a_table_that_was_made_anew_as_a_plain_one_gets_nothing(
    embedded: Server, tokens: bool, is_first: bool
) -> None:
    """It would take the block, and no replica of the table would have it."""
    name = f"t{uuid.uuid4().hex[:8]}"
    embedded.execute(f"CREATE DATABASE {name} ENGINE = Atomic")
    embedded.execute(f"CREATE TABLE {name}.t (id UInt64) ENGINE = MergeTree ORDER BY id")
    paths = (("s1", "/replicated"),)
    table = replace(table_spec("t", ("a",)), database=name, zookeeper_paths=paths)
    with pytest.raises(BlockRefusedError, match="is not replicated, and the blocks") as refused:
        require_same_table(
            embedded, table, "s1", tokens=tokens, zone_matters=False, is_first=is_first
        )
    assert refused.value.is_unstored is is_first


def test_replicas_of_different_tables_are_not_probed_as_one(loader: Loader) -> None:
    """A probe reads one replica's rows: what another table lacks is not missing."""
    first, second = loader.urls
    assert not isinstance(probed(loader).error, OtherPathError)
    make_anew(loader)
    why = f"on {second}, unlike on {first}, is the table at {loader.path} in ZooKeeper"
    assert isinstance(error := probed(loader).error, OtherPathError) and why in str(error)
    # One that was taken out of the cluster gets no block, and is not read.
    left = replace(loader.access, shards={"s1": (second,)})
    assert not isinstance(probed(loader, left).error, OtherPathError)


def make_anew(loader: Loader) -> None:
    """The first replica's table, under another path."""
    with Server(loader.urls[0]) as server:
        server.execute(f"DROP TABLE {loader.table}")
    create(loader.servers[:1], f"{loader.path}_other", table=loader.table)


def probed(loader: Loader, now: ClickHouseAccess | None = None) -> ProbeFound:
    """:param now: how the cluster is described since the prober was made."""
    record = Record(Kind.INTEND, 1, 1, 0, 10, "a", 0, "topicid", "text", 1, 0)
    sought = Sought(Range(TopicPartition("a", 0), 0, 10), record)
    spec = LoadSpec("p", "dc1", "chdb 1", 1 << 20, (loader.spec,))
    prober = ClickHouseProber(loader.access, "p", KafkaAccess("dc1", "127.0.0.1:1"))
    ended: SimpleQueue[ProbeEnded] = SimpleQueue()
    prober.use(now or loader.access)
    try:
        prober.submit([sought], spec, 1, ended.put)
        return ended.get(timeout=60).found[0]
    finally:
        prober.close()
