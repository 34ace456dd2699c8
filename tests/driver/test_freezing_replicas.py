"""R23. A replica or a data center that a person has frozen gets no blocks: others take them, and
what nobody else can take stands still."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.core.decided import Decided, Frozen, Standing, Subject
from sluice.core.errors import TerminalError, TransientError
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed
from sluice.driver.ports import ClusterRead, DecisionsRead, SchemaRead
from sluice.driver.shards import ShardReader
from sluice.driver.state import Probed, Probing, ToProbe
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, World, run, table_spec
from tests.driver.test_freezing import run_until

P0, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)
A, B, C = "http://a.east:8123", "http://b.west:8123", "http://c.west:8123"


def replica(*hosts: str) -> Standing:
    return tuple(
        Frozen(Subject("replica", host), "alice", "a disk is changed", START_MS, (host,))
        for host in hosts
    )


WEST = Frozen(Subject("data center", "west"), "bob", "the power goes", START_MS, ("*.west",))


def pair(**shards: tuple[str, ...]) -> World:
    world = World([P0])
    world.shards = shards or {"s1": (A, B)}
    world.ends[P0] = 25
    return world


def taking(world: World, shard: str = "s1") -> list[tuple[str, ...]]:
    """Who was allowed to take the blocks of each job."""
    return [environment.clickhouse.taking(shard) for environment in world.environments]


def test_others_take_the_blocks_from_the_start_on() -> None:
    world = pair()
    world.frozen = replica("a.east:8123")
    run(world)
    assert set(taking(world)) == {(B,)}
    assert world.rows_of(P0) == [1] * 25


def test_a_driver_hears_of_it_and_takes_it_back_once_the_tables_were_read() -> None:
    world = pair()
    reads: list[int] = []

    def read() -> None:
        reads.append(world.now)
        began = world.now
        world.at(2_000, lambda: world.put(SchemaRead(began, None, world.spec, {}, {})))

    world.read_schema = read
    loop = world.loop()
    for at_ms, end in ((10_000, 50), (21_000, 75), (30_000, 100)):
        world.at(at_ms, lambda end=end: world.ends.update({P0: end}))  # type: ignore[misc]
    world.at(5_000, lambda: world.put(DecisionsRead(Decided(replica("a.east:8123")))))
    world.at(20_000, lambda: world.put(DecisionsRead(Decided())))
    run_until(world, 40_000, loop)
    at = [job.assignments[0].sent_at_ms - START_MS for job in world.jobs]
    resumed = reads[0] + 2_000 - START_MS
    for sent, takers in zip(at, taking(world), strict=True):
        assert takers == ((B,) if 5_000 <= sent < resumed else (A, B)), sent
    assert any(5_000 <= sent < resumed for sent in at) and at[-1] >= resumed
    # What workers knew of servers before counts no more.
    assert [e.clickhouse.looks for e in (world.environments[0], world.environments[-1])] == [0, 1]
    assert world.rows_of(P0) == [1] * 100


def test_what_nobody_else_can_take_stands_still() -> None:
    """Two freezes may do it together; when one of them is resumed, the other replica takes all."""
    world = pair()
    world.frozen = (*replica("a.east:8123"), WEST)
    loop = world.loop()
    run_until(world, 60_000, loop)
    assert world.jobs == []
    assert [str(each.subject) for each in loop.freezing.hold(["t"])] == [
        "replica a.east:8123",
        "data center west",
    ]
    assert loop.waits.frozen == {"t": True}
    run(world, loop)  # until it has caught up, which what stands still never does
    assert world.jobs == [] and world.now < START_MS + 90_000
    world.put(DecisionsRead(Decided((WEST,))))
    run_until(world, 20_000, loop)
    assert set(taking(world)) == {(A,)}
    assert world.rows_of(P0) == [1] * 25


def test_a_shard_holds_only_who_needs_it() -> None:
    tables = (table_spec("t", ("a",)), replace(table_spec("u", ("b",)), shards=("s2",)))
    world = World([P0, OTHER], tables)
    world.shards = {"s1": (A,), "s2": (B, C)}
    world.ends.update({P0: 30, OTHER: 30})
    world.frozen = replica("a.east:8123", "c.west:8123")
    loop = world.loop()
    run_until(world, 20_000, loop)
    assert world.rows_of(P0, "t") == [0] * 30
    assert world.rows_of(OTHER, "u") == [1] * 30
    assert set(taking(world, "s2")) == {(B,)}
    assert loop.waits.frozen == {"t": True, "u": False}
    # A range is one record for all of its shards.
    both = World([P0], (replace(table_spec("t", ("a",)), shards=("s1", "s2")),))
    both.shards, both.frozen = world.shards, world.frozen
    both.ends[P0] = 30
    run_until(both, 20_000)
    assert both.jobs == []


def test_replicas_that_come_belong_to_their_data_center() -> None:
    world = pair(s1=(A,))
    world.frozen = (WEST,)
    came = ClickHouseAccess({"s1": (A, C)}, "", "", "single")
    world.at(5_000, lambda: world.put(ClusterRead(came)))
    went = ClickHouseAccess({"s1": (C,)}, "", "", "single")
    world.at(15_000, lambda: world.put(ClusterRead(went)))
    for at_ms, end in ((10_000, 50), (20_000, 75)):
        world.at(at_ms, lambda end=end: world.ends.update({P0: end}))  # type: ignore[misc]
    loop = world.loop()
    run_until(world, 60_000, loop)
    assert set(taking(world)) == {(A,)}
    assert loop.freezing.replicas == {C} and loop.freezing.looks == 0
    assert world.rows_of(P0) == [1] * 50 + [0] * 25


def test_a_block_in_doubt_goes_to_another_replica() -> None:
    world = pair()
    world.ends[P0] = 10
    sent: list[Assignment] = []

    def script(world: World, assignment: Assignment) -> Answer:
        sent.append(assignment)
        return (
            Failed(TransientError("away"), "t", False) if len(sent) == 1 else world.load(assignment)
        )

    world.script = script
    world.at(150, lambda: world.put(DecisionsRead(Decided(replica("a.east:8123")))))
    run_until(world, 20_000)
    assert taking(world) == [(A, B), (B,)]
    assert sent[0].record == sent[1].record and not sent[1].is_first
    assert world.rows_of(P0) == [1] * 10


@pytest.mark.parametrize("found", [False, True])
def test_nothing_is_looked_for_while_a_person_is_at_a_replica(found: bool) -> None:
    """Also what a probe has found meanwhile counts no more."""
    world = pair()
    state = world.overrun(P0, 10, 1)
    world.ends[P0] = 10
    world.frozen = replica("b.west:8123")
    if found:
        state.become(Probing(None))
        state.become(Probed(None))
    loop = world.loop([state])
    run_until(world, 60_000, loop)
    assert world.probes == [] and world.jobs == [] and type(state.stage) is ToProbe
    assert loop.freezing.of(state) and not loop.freezing.hold(["t"])
    world.put(DecisionsRead(Decided()))
    loop.stopping.clear()
    run(world, loop)
    assert len(world.probes) == 1
    assert world.rows_of(P0) == [1] * 10


class _Access(ClickHouseAccess):
    """Servers that answer with their URL."""

    def connect(self, url: str) -> Server:
        return cast(Server, SimpleNamespace(url=url, ping=lambda: None))


def test_a_frozen_replica_that_refuses_is_passed_by() -> None:
    """Its table may be gone, or be made anew; that parks nothing and holds nobody up."""

    def refusing(server: Server) -> str:
        if server.url == A:
            raise TerminalError(f"there is no table on {A}")
        return server.url

    access = _Access({"s1": (A, B)}, "", "", "single")
    with pytest.raises(TerminalError):
        ShardReader(access, "s1", lambda: START_MS).ask(refusing)
    assert ShardReader(access, "s1", lambda: START_MS, replica("a.east:8123")).ask(refusing) == B
    only = _Access({"s1": (A,)}, "", "", "single")
    with pytest.raises(TerminalError):
        ShardReader(only, "s1", lambda: START_MS, replica("a.east:8123")).ask(refusing)
