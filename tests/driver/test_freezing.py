"""R23. A person freezes a part of a pipeline: what is out is settled, and nothing else happens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sluice.core.decided import Decided, Frozen, Standing, Subject
from sluice.core.errors import TerminalError, TransientError
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed
from sluice.driver.loop import ConnectorLoop
from sluice.driver.parking import Parking
from sluice.driver.ports import DecisionsRead, SchemaRead
from sluice.driver.record_updates import RESETTLE_MS
from sluice.driver.state import Probed, Probing, ToProbe
from sluice.ops.running import Lags, Look
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, World, kinds, run, table_spec

P0, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)
WHOLE = Subject("connector")


def frozen(*subjects: Subject) -> Standing:
    return tuple(Frozen(subject, "alice", "a disk is changed", START_MS) for subject in subjects)


def two_tables() -> World:
    return World([P0, OTHER], (table_spec("t", ("a",)), table_spec("u", ("b",))))


def tell(world: World, *subjects: Subject) -> None:
    world.put(DecisionsRead(Decided(frozen(*subjects))))


def run_until(world: World, after_ms: int, loop: ConnectorLoop | None = None) -> None:
    """Run for so long, then stop; what stands still does not use up the grace."""
    loop = loop or world.loop()
    loop.stopping.clear()
    world.at(after_ms, loop.stopping.set)
    loop.run(None, 3600.0)


def test_what_is_out_is_settled_and_nothing_new_is_intended() -> None:
    world = two_tables()
    world.ends.update({P0: 100, OTHER: 30})
    world.at(150, lambda: tell(world, Subject("table", "t")))
    run_until(world, 5_000)
    assert kinds(world, P0) == [("INTEND", 0, 10), ("SETTLE", 10, 10)]
    # The other table goes on.
    assert world.rows_of(OTHER, "u") == [1] * 30


def test_it_stands_from_the_start_on_and_goes_on_when_it_is_resumed() -> None:
    for subject in (Subject("pipeline"), WHOLE, Subject("table", "t")):
        world = World([P0])
        world.ends[P0] = 25
        world.frozen = frozen(subject)
        world.at(60_000, lambda world=world: world.put(DecisionsRead(Decided())))  # type: ignore[misc]
        run_until(world, 59_000, loop := world.loop())
        assert not world.jobs and not world.commits
        run_until(world, 20_000, loop)
        assert world.rows_of(P0) == [1] * 25


def test_each_freeze_is_resumed_by_itself() -> None:
    world = World([P0])
    world.ends[P0] = 25
    world.frozen = frozen(WHOLE, Subject("table", "t"))
    world.at(1_000, lambda: tell(world, Subject("table", "t")))
    run_until(world, 20_000)
    assert not world.jobs


def test_a_range_in_doubt_is_neither_sent_nor_probed_until_it_is_resumed() -> None:
    """However long it takes; its record is written again so that its offset does not expire."""
    world = World([P0])
    world.ends[P0] = 10
    sent: list[int] = []

    def script(world: World, assignment: Assignment) -> Answer:
        sent.append(world.now)
        return (
            Failed(TransientError("away"), "t", False) if len(sent) == 1 else world.load(assignment)
        )

    world.script = script
    world.at(150, lambda: tell(world, WHOLE))
    loop = world.loop()
    for _ in range(3):
        world.at(5_000, lambda: setattr(world, "now", world.now + RESETTLE_MS))
        run_until(world, 20_000, loop)
    assert len(sent) == 1 and world.probes == []
    world.put(DecisionsRead(Decided()))
    run_until(world, 2_000, loop)
    recorded = kinds(world, P0)
    assert recorded[0] == ("INTEND", 0, 10) and recorded[-1] == ("SETTLE", 10, 10)
    assert {kind for kind, *_ in recorded[1:-1]} == {"RENEW"} and len(recorded) >= 4
    assert world.rows_of(P0) == [1] * 10


def test_a_driver_that_is_to_stop_does_not_wait_for_what_is_frozen() -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.script = lambda world, assignment: Failed(TransientError("away"), "t", False)
    world.at(150, lambda: tell(world, WHOLE))
    run_until(world, 10_000)
    assert world.now < START_MS + 20_000
    world = World([P0])
    world.ends[P0] = 10
    world.frozen = frozen(WHOLE)
    run(world)  # until it has caught up, which what is frozen never does
    assert world.now < START_MS + 20_000


def test_what_a_probe_found_is_looked_for_again_after_the_freeze() -> None:
    """A person may have been at the table."""
    world = World([P0])
    state = world.overrun(P0, 10, 1)
    world.ends[P0] = 10
    world.frozen = frozen(WHOLE)
    loop = world.loop([state])
    run_until(world, 5_000, loop)
    assert world.probes == []
    # A probe that ran when it was frozen.
    state.become(Probing(None))
    state.become(Probed(None))
    run_until(world, 5_000, loop)
    assert type(state.stage) is ToProbe and world.probes == []
    world.put(DecisionsRead(Decided()))
    loop.stopping.clear()
    run(world, loop)
    assert len(world.probes) == 1
    assert world.rows_of(P0) == [1] * 10


def test_a_table_that_is_away_while_it_is_frozen_stops_nothing() -> None:
    """Neither its partition, nor, where it may be parked, its entry; not even when it is resumed,
    as long as the tables were not read since."""
    world = two_tables()
    world.ends.update({P0: 10})
    world.frozen = frozen(Subject("table", "t"))
    world.parking = Parking(["t"])
    away = {"t": TerminalError("t is gone")}
    reads: list[int] = []

    def read() -> None:
        reads.append(world.now)
        began = world.now
        world.at(2_000, lambda: world.put(SchemaRead(began, None, world.spec, {}, {})))

    world.read_schema = read
    loop = world.loop()
    world.gone["t"] = "t is gone"
    world.at(1_000, lambda: world.put(SchemaRead(world.now, None, world.spec, away, {})))
    world.at(30_000, world.gone.clear)
    world.at(31_000, lambda: world.put(DecisionsRead(Decided())))
    run_until(world, 60_000, loop)
    assert loop.states[P0].stopped is None
    assert loop.waits.parked == {"t": False}
    assert world.rows_of(P0, "t") == [1] * 10
    assert START_MS + 31_000 <= reads[0] < START_MS + 33_000
    assert world.jobs[0].assignments[0].sent_at_ms >= reads[0] + 2_000


def test_a_lost_job_of_a_frozen_partition_stays_lost() -> None:
    world = World([P0])
    world.ends[P0] = 10
    world.script = lambda world, assignment: JobLostError("lost")
    world.at(150, lambda: tell(world, WHOLE))
    loop = world.loop()
    run_until(world, 60_000, loop)
    assert len(world.jobs) == 1
    assert [state.source for state in loop.in_doubt()] == [P0]


def test_many_frozen_partitions_cost_a_round_nothing() -> None:
    world = World([TopicPartition("a", number) for number in range(500)])
    world.ends = dict.fromkeys(world.ends, 1_000)
    world.frozen = frozen(WHOLE)
    loop = world.loop()
    run_until(world, 5_000, loop)
    backlogs, due = loop._pending.due({}, world.now, flush=True)
    assert backlogs == [] and due == set()
    assert loop._pending.misfiled() == []


def test_what_is_resumed_waits_for_a_look_at_the_tables() -> None:
    world = World([P0])
    world.frozen = frozen(WHOLE)
    assert not world.loop().freezing.take((), 1_000)  # nobody looks
    world.read_schema = lambda: None
    freezing = world.loop().freezing
    assert freezing.hold(["t"]) and freezing.hold([])
    assert freezing.take((), 1_000)
    assert freezing.hold(["t"])
    assert not freezing.saw_tables(999)
    assert freezing.saw_tables(1_000) and not freezing.is_any
    freezing.take(frozen(Subject("table", "t")), 2_000)
    assert freezing.hold(["u"]) == freezing.frozen(["u"]) == ()
    (held,) = freezing.hold(["t", "u"])
    assert held.line() == (
        "table t is frozen by alice since 2027-01-15T08:00:00Z: a disk is changed"
    )


def test_a_shard_that_cannot_be_read_holds_only_its_own_tables_when_all_is_resumed() -> None:
    """And nobody is told that a person still keeps them frozen."""
    elsewhere = replace(table_spec("u", ("b",)), shards=("s2",))
    world = World([P0, OTHER], (table_spec("t", ("a",)), elsewhere))
    world.shards = {"s1": ("http://h",), "s2": ("http://i",)}
    world.ends.update({P0: 10, OTHER: 10})
    world.frozen = frozen(WHOLE)
    world.read_schema = lambda: None
    loop = world.loop()
    look = partial(SchemaRead, today=None, spec=world.spec, barred={})
    world.at(1_000, lambda: world.put(DecisionsRead(Decided())))
    world.at(2_000, lambda: world.put(look(world.now, unread=frozenset({"s2"}))))
    run_until(world, 10_000, loop)
    assert world.rows_of(P0) == [1] * 10 and not world.own["u"].rows
    (held,) = loop.freezing.hold(["u"])
    assert "table u is resumed, and waits until its tables are read" in loop.freezing.line(held)
    assert loop.waits.frozen == {"t": False, "u": False}
    verdicts = {each.topic: each.verdict for each in Look(loop, Lags(), world.now).partitions()}
    assert verdicts == {"a": "idle", "b": "waits"}
    world.put(look(world.now))
    loop.stopping.clear()
    run(world, loop)
    assert world.rows_of(OTHER, "u") == [1] * 10


def test_a_replica_that_is_resumed_waits_for_its_own_shard() -> None:
    world = two_tables()
    world.shards = {"s1": ("http://h:8123",), "s2": ("http://i:8123",)}
    place = Frozen(Subject("replica", "i:8123"), "alice", "a disk", START_MS, ("i:8123",))
    world.frozen = (place,)
    world.read_schema = lambda: None
    freezing = world.loop().freezing
    assert freezing.why("http://i:8123") == place.line()
    freezing.take((), 1_000)
    assert not freezing.saw_tables(1_000, {"s2"}) and "is resumed" in freezing.why("http://i:8123")
    assert freezing.saw_tables(1_001, {"s1"}) and not freezing.is_any
