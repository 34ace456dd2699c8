"""Rows of a query over two servers: where each row goes, and that an epoch is in all of them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from sluice.clickhouse.http import Server
from sluice.clickhouse.moving import StagedRowsError
from sluice.core.errors import ConfigurationError
from sluice.stream.commit import Committer, Epoch, QueryIdentity
from sluice.stream.errors import OtherCheckpointError
from sluice.stream.marks import Marks
from sluice.stream.names import query_prefix, staged_name
from sluice.stream.options import read_options
from sluice.stream.source import SluiceSink, plan_tasks
from sluice.testbed.local.running import running_clickhouse
from tests.stream.committing import DiedError, Mortal

_SCHEMA = StructType(
    [StructField("id", LongType(), False), StructField("text", StringType(), False)]
)
_DDL = (
    "CREATE TABLE {name} (id Int64, text String) ENGINE = MergeTree PARTITION BY id % 3 ORDER BY id"
)


@dataclass
class Pair:
    """A table on two servers."""

    urls: dict[str, str]
    table: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(-100, 100))

    def __post_init__(self) -> None:
        for url in self.urls.values():
            Server(url).execute(_DDL.format(name=f"d.{self.table}"))

    def options(self, **more: str) -> dict[str, str]:
        shards = ", ".join(f"{name}={url}" for name, url in self.urls.items())
        return {"shards": shards, "database": "d", "table": self.table, "query": self.table, **more}

    def stage(self, epoch: int, sharding: str = "id", partition: int = 0) -> Epoch:
        """100 rows that no other call stages."""
        given = {"sharding": sharding} if sharding else {}
        plan = plan_tasks(read_options(self.options(**given)), _SCHEMA)
        first = next(self.numbers)
        batches = (
            pa.record_batch({"id": pa.array(ids), "text": pa.array(["x"] * len(ids))})
            for ids in (range(first, first + 30), range(first + 30, first + 100))
        )
        prefix, unique = query_prefix(self.table), uuid.uuid4().hex[:12]
        name = staged_name(prefix, "c", epoch, partition, unique)
        return Epoch(epoch, *plan.stage(name, partition, batches), replaces=False)

    def committer(self, **mortal: Server) -> Committer:
        servers = {name: mortal.get(name) or Server(url) for name, url in self.urls.items()}
        return Committer(servers, "d", self.table, QueryIdentity(self.table, "c"))

    def ids(self, shard: str) -> list[int]:
        rows = Server(self.urls[shard]).query(f"SELECT id FROM d.{self.table} ORDER BY id")
        return [row["id"] for row in rows]

    def left(self) -> int:
        """How many tables beside the target there are on both servers."""
        counts = (
            Server(url).query(
                "SELECT count() AS n FROM system.tables WHERE database = 'd' "
                f"AND startsWith(name, '{query_prefix(self.table)}')"
            )
            for url in self.urls.values()
        )
        return sum(int(count[0]["n"]) for count in counts)


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    found = {}
    with ExitStack() as stack:
        for name in ("a", "b"):
            folder = tmp_path_factory.mktemp(name)
            found[name] = stack.enter_context(running_clickhouse(folder)).url
            Server(found[name]).execute("CREATE DATABASE d")
        yield found


def test_each_row_goes_where_its_number_says(urls: dict[str, str]) -> None:
    """Negative numbers as those of toUInt64(id) % 2."""
    pair = Pair(urls)
    for epoch in range(2):
        pair.committer().commit(pair.stage(epoch))
    assert pair.ids("a") == list(range(-100, 100, 2))
    assert pair.ids("b") == list(range(-99, 100, 2))
    assert pair.left() == 2  # a mark, and what says whose it is


def test_tasks_go_to_the_shards_in_turn_without_a_column(urls: dict[str, str]) -> None:
    pair = Pair(urls)
    for epoch in range(2):
        pair.committer().commit(pair.stage(epoch, sharding="", partition=epoch))
    assert (pair.ids("a"), pair.ids("b")) == (list(range(-100, 0)), list(range(100)))


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["a", "b"])
def test_death_at_each_statement(urls: dict[str, str], shard: str) -> None:
    """What was sealed is finished on both; what was not is nowhere."""
    pair, epoch, rows = Pair(urls), 0, 0
    for number in range(30):
        staged, again = pair.stage(epoch), pair.stage(epoch)
        try:
            mortal = Mortal(urls[shard], number, after=number % 2 == 1)
            pair.committer(**{shard: mortal}).commit(staged)
            break
        except DiedError:
            pair.committer().commit(again)
        finally:
            epoch, rows = epoch + 1, rows + 100
        found = pair.ids("a") + pair.ids("b")
        assert len(found) == len(set(found)) == rows
        assert pair.left() == 2
    assert number > 4


def test_a_shard_that_is_needed_and_the_one_that_remembers_stay(urls: dict[str, str]) -> None:
    pair = Pair(urls)
    staged = pair.stage(0)
    with pytest.raises(DiedError):
        pair.committer(a=Mortal(urls["a"], 1)).commit(staged)
    alone = Committer({"a": Server(urls["a"])}, "d", pair.table, QueryIdentity(pair.table, "c"))
    with pytest.raises(StagedRowsError, match="rows on the shard b, which no option names"):
        alone.commit(pair.stage(1))
    pair.committer().commit(staged)
    assert len(pair.ids("a") + pair.ids("b")) == 100
    turned = Pair(dict(reversed(urls.items())), f"{pair.table}x")
    turned.table = pair.table
    with pytest.raises(OtherCheckpointError, match="remembered by the shard a"):
        SluiceSink(turned.options()).streamWriter(_SCHEMA, False)


def test_another_shard_that_is_first_is_known(urls: dict[str, str]) -> None:
    """Left out, or behind a shard that is new: what it has marked would be committed again."""
    pair = Pair(urls)
    for epoch in range(2):
        pair.committer().commit(pair.stage(epoch))
    pair.committer().homes.check()
    alone = {"shards": "", "url": urls["b"]}
    with pytest.raises(OtherCheckpointError, match="by another shard than s1"):
        SluiceSink(pair.options(**alone)).streamWriter(_SCHEMA, False)
    Server(urls["a"]).execute("CREATE DATABASE other")
    Server(urls["b"]).execute("CREATE DATABASE other")
    servers = {name: Server(url) for name, url in urls.items()}
    new = Committer(servers, "other", pair.table, QueryIdentity(pair.table, "c"))
    new.homes.check()
    marks = Marks(servers["b"], "other", query_prefix(pair.table))
    assert marks.keep_home("others") == "others"
    assert marks.keep_home("mine") == "others"
    with pytest.raises(OtherCheckpointError, match="by another shard than a"):
        new.homes.check()


def test_a_batch_without_a_name_leaves_nothing(urls: dict[str, str]) -> None:
    pair = Pair(urls)
    pair.committer().commit(pair.stage(0))
    pair.committer().forget()
    assert pair.left() == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"url": "http://x:1"}, "options url and shards are both there"),
        ({"shards": ""}, "option url is missing"),
        ({"shards": "http://x:1"}, "is no shard"),
        ({"shards": "a=http://x:1, b=http://x:1"}, "is there twice"),
        ({"sharding": "it"}, "the query has no column it"),
        ({"sharding": "text"}, "text is string, and only whole numbers"),
        ({"mode": "direct"}, "goes to one server"),
    ],
)
def test_what_says_nothing_is_refused(
    urls: dict[str, str], changes: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SluiceSink(Pair(urls).options(**changes)).streamWriter(_SCHEMA, False)
    assert words in str(refused.value)


def test_several_tables_are_not_replaced_at_once(urls: dict[str, str]) -> None:
    sink = SluiceSink(Pair(urls).options())
    for writer in (sink.streamWriter, sink.writer):
        with pytest.raises(ConfigurationError, match="cannot be replaced at once"):
            writer(_SCHEMA, True)
