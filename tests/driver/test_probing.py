"""What a probe makes of several shards; with real servers: tests/e2e/test_shards.py."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.core.errors import TransientError
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import Interval, Range, TopicPartition, intervals_of
from sluice.core.records import Kind, Record
from sluice.driver import probing
from sluice.driver.ports import ProbeEnded, Sought
from sluice.driver.probing import (
    ClickHouseProber,
    StillRunningError,
    first_overlap,
    require_fetched,
)
from sluice.kafka.clients import KafkaAccess
from tests.driver.loop_world import table_spec

OFFSETS = st.sets(st.integers(0, 40), max_size=20)


@given(st.lists(OFFSETS, max_size=4))
def test_an_offset_in_two_shards_is_found(held: list[set[int]]) -> None:
    present: dict[str, tuple[Interval, ...]] = {
        f"s{place}": intervals_of(offsets) for place, offsets in enumerate(held)
    }
    twice = {
        offset
        for place, offsets in enumerate(held)
        for other in held[place + 1 :]
        for offset in offsets & other
    }
    found = first_overlap(present)
    assert (found is None) == (not twice)
    if found is not None:
        (begin, end), (first, second) = found
        inside = set(range(begin, end))
        assert begin == min(twice) and inside <= twice
        assert inside <= held[int(first[1:])] & held[int(second[1:])]


def test_a_replica_that_is_gone_for_good_is_to_be_taken_out_of_its_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was taken out of the configuration, as another hint says, and ZooKeeper still has it."""
    why = "shop.orders on http://r1 has 2 of 3 replicas active, without r3"
    monkeypatch.setattr(probing, "describe_table", lambda *_: None)
    monkeypatch.setattr(probing, "why_not_in_sync", lambda *_: why)
    access = Cluster.access("a")
    with pytest.raises(StillRunningError, match="without r3") as behind:
        require_fetched(access, "http://r1", table_spec("t", ("a",)))
    assert "SYSTEM DROP REPLICA 'NAME' FROM TABLE" in behind.value.hint


class Cluster:
    """A prober of one shard, whose replicas change when it is about to ask for them, or when it has
    asked all of them and is about to read rows; no server is there.

    :param ended: replicas that were asked whether an insert runs there.
    :param read: the one of which rows were read.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, urls: str) -> None:
        self.ended, self.read, self.is_quiet = list[str](), list[str](), False
        self.prober = ClickHouseProber(self.access(urls), "p", KafkaAccess("dc1", "127.0.0.1:1"))
        monkeypatch.setattr(probing, "require_all_answer", lambda *_: None)
        monkeypatch.setattr(probing, "require_one_table", lambda *_: None)
        monkeypatch.setattr(self.prober, "_still_serves", lambda *_: True)
        monkeypatch.setattr(self.prober, "_require_ended", lambda url, *_: self.ended.append(url))
        monkeypatch.setattr(ClickHouseAccess, "connect", self.connect)

    @staticmethod
    def access(urls: str) -> ClickHouseAccess:
        return ClickHouseAccess({"s1": tuple(urls)}, "default", "", "single")

    def connect(self, url: str) -> Server:
        self.read.append(url)
        raise TransientError("no server is there")

    def probe(self) -> None:
        record = Record(Kind.INTEND, 1, 1, 0, 10, "a", 0, "topicid", "text", 1, 0)
        sought = Sought(Range(TopicPartition("a", 0), 0, 10), record)
        spec, ended = (
            LoadSpec("p", "dc1", "chdb 1", 1, (table_spec("t", ("a",)),)),
            list[ProbeEnded](),
        )
        self.prober._run([sought], spec, 0, ended.append)
        assert "no server is there" in str(ended[0].found[0].error)


class Changing(dict[str, tuple[str, ...]]):
    """Shards that are others as soon as somebody has looked at them."""

    change: Callable[[], None] | None = None

    def __getitem__(self, shard: str) -> tuple[str, ...]:
        urls, change, self.change = super().__getitem__(shard), self.change, None
        if change is not None:
            change()
        return urls


@pytest.mark.parametrize("before", ["ab", "a"])
def test_a_replica_that_leaves_or_comes_back_while_it_is_looked_for_is_asked(
    monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """An insert may be on its way into it, whenever that was."""
    cluster = Cluster(monkeypatch, "ab")
    monkeypatch.setattr(probing, "require_fetched", lambda *_: None)
    cluster.prober.use(cluster.access(before))
    after = cluster.access("a" if before == "ab" else "ab")
    shards = Changing(cluster.prober._access.shards)
    shards.change = lambda: cluster.prober.use(after)
    cluster.prober._access = ClickHouseAccess(shards, "default", "", "single")
    cluster.probe()
    assert cluster.ended == ["a", "b"]


def test_rows_are_read_of_a_replica_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that joins the cluster meanwhile, and stands first there, may have fetched nothing."""
    cluster = Cluster(monkeypatch, "ab")
    monkeypatch.setattr(
        probing, "require_fetched", lambda *_: cluster.prober.use(cluster.access("cab"))
    )
    cluster.probe()
    assert (cluster.ended, cluster.read) == (["a", "b"], ["a"])
