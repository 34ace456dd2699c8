"""Care for the servers: how many ranges are out for each replica, and how large they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.decided import MAX_INFLIGHT_INSERTS, Decided, Setting
from sluice.core.flights import InFlight
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.planning import Backlog, Limits, next_range, stretched_delay_ms
from sluice.core.ranges import TopicPartition
from sluice.driver.ports import DecisionsRead, ShardWindow
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import TASK_MS, Answer, World, kinds, run, table_spec

SOURCES = [TopicPartition("a", number) for number in range(8)]
OTHER = TopicPartition("b", 0)


class Busy(World):
    """Counts the ranges that are out."""

    slots = 8

    def __init__(self, tables: tuple[TableSpec, ...], sources: list[TopicPartition]) -> None:
        super().__init__(sources, tables)
        self.ends.update(dict.fromkeys(sources, 30))
        self.out: Counter[int] = Counter()
        self.most: Counter[int] = Counter()
        self.script = self._load

    def _load(self, world: World, assignment: Assignment) -> Answer:
        replica = assignment.block_range.source.partition % len(self.shards["s1"])
        self.out[replica] += 1
        self.most[replica] = max(self.most[replica], self.out[replica])
        self.at(TASK_MS - 1, lambda: self.out.subtract([replica]))
        return self.answer(assignment)

    def answer(self, assignment: Assignment) -> Answer:
        return self.load(assignment)


def two_replicas(world: World) -> None:
    world.shards = {"s1": ("http://one", "http://two")}


REPLICATED = replace(table_spec("t", ("a",)), zookeeper_paths=(("s1", "/t"),))


def test_ranges_count_where_they_go_by_now() -> None:
    """Data centers and replicas that are behind change that, and so do replicas that come."""
    spec = LoadSpec("p", "c", "chdb", 1, (REPLICATED,))
    flights = InFlight(1, {"s1": ("http://one", "http://two")}, tasks=8)

    def replicas() -> list[str]:
        found = [flights.places(spec, "digest", source) for source in SOURCES[:2]]
        return [place.replica for (place,) in found]

    assert replicas() == ["http://one", "http://two"]
    shards = {"s1": ("http://one", "http://three", "http://two")}
    flights.use(shards, {"http://two"})
    assert replicas() == ["http://two", "http://two"]
    flights.use(shards, {"http://two"}, {"http://two"})
    assert replicas() == ["http://one", "http://three"]
    flights.use(shards, (), set(shards["s1"]))
    assert replicas() == ["http://one", "http://three"]


@pytest.mark.parametrize("most", [1, 2, 3])
def test_each_replica_gets_so_many_and_no_more(most: int) -> None:
    world = Busy((REPLICATED,), SOURCES)
    two_replicas(world)
    world.inflight_inserts_max = most
    run(world)
    assert world.most == {0: most, 1: most}
    assert all(world.rows_of(source) == [1] * 30 for source in SOURCES)


def test_a_person_lowers_the_limit_and_takes_that_back() -> None:
    world = Busy((REPLICATED,), SOURCES)
    two_replicas(world)
    world.inflight_inserts_max = 3
    loop = world.loop()
    one = Setting(MAX_INFLIGHT_INSERTS, 1, "alice", "a disk is slow", 1)
    for settings, most in (((one,), 1), ((), 3)):
        world.put(DecisionsRead(Decided(settings=settings)))
        world.most.clear()
        world.ends.update({source: world.ends[source] + 30 for source in SOURCES})
        run(world, loop)
        assert world.most == {0: most, 1: most}
        assert loop.settings == settings
    assert all(world.rows_of(source) == [1] * 90 for source in SOURCES)


def test_without_replicas_the_first_server_gets_all() -> None:
    world = Busy((table_spec("t", ("a",)),), SOURCES)
    two_replicas(world)
    world.inflight_inserts_max = 3
    run(world)
    assert sum(world.most.values()) >= 3
    at_once = max(len(job.assignments) for job in world.jobs)
    assert at_once <= 3
    assert all(world.rows_of(source) == [1] * 30 for source in SOURCES)


def test_another_table_of_the_replica_is_not_held_back() -> None:
    world = Busy((table_spec("t", ("a",)), table_spec("u", ("b",))), [*SOURCES, OTHER])
    world.inflight_inserts_max = 1
    loop = world.loop()
    held: list[int] = []
    world.at(TASK_MS * 3 // 2, lambda: held.append(loop.held_back))
    run(world, loop)
    first = [a.block_range.source for job in world.jobs[:1] for a in job.assignments]
    assert first == [SOURCES[0], OTHER]
    assert world.rows_of(OTHER, "u") == [1] * 30
    assert held == [7]


def test_ranges_that_are_sent_again_wait_for_their_turn_too() -> None:
    class Failing(Busy):
        def answer(self, assignment: Assignment) -> Answer:
            loaded = self.load(assignment)
            return JobLostError("lost") if assignment.is_first else loaded

    world = Failing((table_spec("t", ("a",)),), SOURCES)
    world.inflight_inserts_max = 2
    run(world)
    assert world.most == {0: 2}
    assert all(world.rows_of(source) == [1] * 30 for source in SOURCES)


@pytest.mark.parametrize(
    ("crowding", "blocks"), [(0.0, 5), (0.5, 5), (0.75, 2), (1.0, 1), (3.0, 1)]
)
def test_small_ranges_wait_for_company_while_merges_fall_behind(
    crowding: float, blocks: int
) -> None:
    """One message every second, `max_delay` of one second, for ten seconds."""

    class Crowded(World):
        def current(self) -> Mapping[TargetShard, ShardWindow]:
            return {
                target_shard: replace(window, crowding=crowding)
                for target_shard, window in super().current().items()
            }

    source = SOURCES[0]
    world = Crowded([source])

    def produce() -> None:
        world.ends[source] += 1
        if world.ends[source] < 10:
            world.at(1000, produce)

    world.at(0, produce)
    loop = world.loop()
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    intended = [kind for kind, *_ in kinds(world, source) if kind == "INTEND"]
    assert len(intended) == blocks, kinds(world, source)
    assert world.rows_of(source) == [1] * 10


def test_a_full_range_does_not_wait() -> None:
    assert stretched_delay_ms(1000, 1.0) == 10_000
    backlog = Backlog(SOURCES[0], 0, 10, 0)
    limits = Limits(10, 1 << 20, stretched_delay_ms(1000, 1.0))
    assert next_range(backlog, limits, 1, flush=False) is not None


def test_how_long_company_is_waited_for() -> None:
    assert [stretched_delay_ms(1000, c) for c in (0, 0.5, 0.6, 1, 9)] == [
        1000,
        1000,
        2800,
        10_000,
        10_000,
    ]
    assert stretched_delay_ms(20_000, 1) == 60_000
    assert stretched_delay_ms(3_600_000, 1) == 3_600_000
