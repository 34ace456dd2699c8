"""A table that takes nothing: its messages wait, and the other tables of its topic go on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.reactions import build_error, reaction_to
from sluice.core.dead_letters import PARKED, DeadLetterLimit
from sluice.core.errors import SluiceError, TerminalError
from sluice.core.ledger import Rest
from sluice.core.load_spec import LoadSpec, parse_spec
from sluice.core.ranges import Range, TopicPartition, contains
from sluice.core.receipts import DeadLetter, Failed, Loaded
from sluice.driver.parking import Parking
from sluice.driver.ports import ProbeFound, SchemaRead
from sluice.driver.refreshing import SchemaChangedError
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import Answer, World, kinds, run, table_spec

P0 = TopicPartition("a", 0)
RIGHTS = 497


class ParkingWorld(World):
    """Two tables of one topic, of which `bad` refuses blocks while `is_refusing`."""

    def __init__(self, good: str = "good", bad: str = "bad", *, allowed: bool = True) -> None:
        tables = tuple(table_spec(name, ("a",)) for name in sorted({good, bad}))
        super().__init__((P0,), tables)
        self.good, self.bad = good, bad
        self.is_refusing = True
        self.read_schema = lambda: self.at(20, self.tell)
        self.script = type(self).task
        if allowed:
            self.parking = Parking([bad])

    def task(self, assignment: Assignment) -> Answer:
        """What a task does under the load spec that the record names."""
        spec = parse_spec(self.environments[-1].specs[assignment.record.spec])
        tables = spec.tables_of("a")
        inserted = [t for t in tables if not t.parked]
        refused = self.is_refusing and any(t.entry == self.bad for t in inserted)
        if refused:
            inserted = [t for t in inserted if t.entry < self.bad]
        loaded = self.load_into(assignment, replace(spec, tables=tuple(inserted)))
        if refused:
            error = build_error(reaction_to(RIGHTS), RIGHTS, "http://h", "no rights")
            names = tuple(t.entry for t in inserted)
            return Failed(error, self.bad, assignment.is_first, names)
        rest = assignment.background.rest
        dead_letters = [
            letter(offset, table.entry, PARKED)
            for table in tables
            if table.parked
            for offset in range(assignment.block_range.begin, assignment.block_range.end)
            if not rest or contains(rest[table.entry], offset)
        ]
        return replace(loaded, dead_letters=tuple(dead_letters))

    def load_into(self, assignment: Assignment, spec: LoadSpec) -> Loaded:
        """Insert into the tables of this load spec only."""
        self.spec, whole = spec, self.spec
        try:
            return self.load(assignment)
        finally:
            self.spec = whole

    def tell(self, altered: dict[str, SluiceError] | None = None, *, asked: bool = False) -> None:
        """A reading of the tables is there."""
        self.put(SchemaRead(self.now, None, self.spec, {}, altered or {}, asked=asked))

    def parked(self) -> list[int]:
        """Offsets in the parking topic."""
        return [one.offset for one in self.dead_letters if one.reason == PARKED]


def stored(world: World, entry: str) -> list[int]:
    """Offsets of the rows of an entry, each as often as it is there."""
    target_shard = next(
        target_shard for target_shard in world.tables if target_shard.entry == entry
    )
    rows = world.tables[target_shard].rows
    return sorted(offset for (_, offset), count in rows.items() for _ in range(count))


def span(*ends: int) -> list[int]:
    return list(range(*ends))


def letter(offset: int, entry: str, reason: str) -> DeadLetter:
    return DeadLetter("a", 0, offset, None, None, b"v", (), reason, "e", entry)


@pytest.mark.parametrize(("good", "bad"), [("good", "bad"), ("a_good", "bad")])
def test_a_refused_first_attempt_is_parked_and_the_others_go_on(good: str, bad: str) -> None:
    """Whichever of the tables comes first."""
    world = ParkingWorld(good, bad)
    world.ends[P0] = 25
    loop = run(world)
    assert loop.states[P0].stopped is None and loop.states[P0].settled == 25
    assert stored(world, good) == span(25)
    assert stored(world, bad) == []
    assert sorted(world.parked()) == span(25)
    assert [kind for kind, _, _ in kinds(world, P0)][:2] == ["INTEND", "CHANGE_SPEC"], world.commits
    assert not world.probes


def test_rows_that_an_earlier_attempt_stored_are_not_parked() -> None:
    """With an attempt in doubt, the table is looked at first."""
    world = ParkingWorld()
    world.ends[P0] = 20
    tries: list[int] = []

    def lost_then_refused(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, ParkingWorld)
        tries.append(assignment.block_range.begin)
        if len(tries) == 1:
            world.is_refusing = False
            world.task(assignment)
            world.is_refusing = True
            return JobLostError("lost after the insert")
        return world.task(assignment)

    world.script = lost_then_refused
    run(world)
    assert world.probes and "PROBE" in [kind for kind, _, _ in kinds(world, P0)]
    assert stored(world, "bad") == span(10)
    assert stored(world, "good") == span(20)
    assert sorted(world.parked()) == span(10, 20)


def test_a_range_of_which_messages_have_rows_waits_for_its_table() -> None:
    """Of messages of several rows: whoever replays a parked one loads all of its rows."""
    world = ParkingWorld()
    world.ends[P0] = 20
    tries: list[int] = []

    def half_then_refused(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, ParkingWorld)
        tries.append(assignment.block_range.begin)
        return JobLostError("lost half-way") if len(tries) == 1 else world.task(assignment)

    real = world._probed

    def some_rows(block_range: Range, spec: LoadSpec, known: Rest) -> ProbeFound:
        if len(world.probes) == 3:  # it is looked at again and again, until a person fixes it
            assert not world.parked()
            world.is_refusing = False
            world.tell(asked=True)
        found = real(block_range, spec, known)
        return replace(found, stored={"bad": ((4, 0, 1), (7, 0, 2))})

    world.script, world._probed = half_then_refused, some_rows  # type: ignore[method-assign]
    loop = run(world)
    assert loop.states[P0].settled == 20 and not world.parked()
    assert len(world.probes) >= 3 and stored(world, "bad") == span(20)


def test_where_every_table_of_a_topic_is_parked_its_probe_ends() -> None:
    world = ParkingWorld("bad", "bad")
    world.ends[P0] = 20
    tries: list[int] = []

    def never_first(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, ParkingWorld)
        tries.append(assignment.block_range.begin)
        return JobLostError("lost") if len(tries) == 1 else world.task(assignment)

    world.script = never_first
    loop = run(world)
    assert world.probes
    assert loop.states[P0].settled == 20 and sorted(world.parked()) == span(20)


def test_a_parked_range_in_doubt_does_not_ask_for_the_table() -> None:
    """Nothing was inserted under its record, and the table may be gone."""
    world = ParkingWorld()
    world.ends[P0] = 10
    loop = world.loop()
    tries: list[int] = []

    def lost_for_long(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, ParkingWorld)
        answer = world.task(assignment)
        if assignment.block_range.begin == 10:
            tries.append(assignment.block_range.begin)
            if len(tries) == 1:
                for table in world.tables.values():
                    table.fill(2_000)  # the good table's window forgets the block
                return JobLostError("lost")
        return answer

    world.script = lost_for_long
    world.at(10_000, lambda: world.ends.update({P0: 20}))
    world.at(800_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.probes and loop.states[P0].settled == 20
    assert stored(world, "good") == span(20) and stored(world, "bad") == []
    assert sorted(world.parked()) == span(20)


def test_what_is_parked_says_how_it_is_tried_again_without_applying_a_file(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Parking(["t"]).refuse("t", TerminalError("no rights"))
    assert "Fix the table, then `sluice reload CONFIG --why TEXT`, or start" in caplog.text


def test_somebody_asks_and_the_table_is_tried_again() -> None:
    world = ParkingWorld()
    world.ends[P0] = 10
    loop = world.loop()

    def fixed() -> None:
        world.is_refusing = False
        world.tell()  # a reading by itself changes nothing
        world.ends[P0] = 20

    def asked() -> None:
        world.tell(asked=True)
        world.ends[P0] = 30

    world.at(10_000, fixed)
    world.at(20_000, asked)
    world.at(40_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert sorted(world.parked()) == span(20)
    assert stored(world, "bad") == span(20, 30)
    assert stored(world, "good") == span(30)


def test_an_altered_table_is_parked_as_long_as_it_is_altered() -> None:
    world = ParkingWorld()
    world.is_refusing = False
    world.ends[P0] = 10
    loop = world.loop()

    def altered() -> None:
        world.tell({"bad": SchemaChangedError("column x is gone")})
        world.ends[P0] = 20

    def undone() -> None:
        world.tell()
        world.ends[P0] = 30

    world.at(10_000, altered)
    world.at(20_000, undone)
    world.at(40_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert sorted(world.parked()) == span(10, 20)
    assert stored(world, "bad") == span(10) + span(20, 30)
    assert stored(world, "good") == span(30)


def test_a_table_that_is_gone_is_parked_before_anybody_inserts() -> None:
    """Its window cannot be read, so no range would ever be planned for it."""
    world = ParkingWorld()
    world.ends[P0] = 20
    world.gone = {"bad": "d.bad does not exist"}
    loop = run(world)
    assert loop.states[P0].settled == 20
    assert stored(world, "good") == span(20) and sorted(world.parked()) == span(20)
    world = ParkingWorld(allowed=False)
    world.ends[P0] = 20
    world.gone = {"bad": "d.bad does not exist"}
    loop = world.loop()
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert not world.jobs, "without leave everybody waits for the table"


def test_too_many_dead_letters_park_their_table_and_good_rows_stay() -> None:
    """Of the range that was judged, rows that landed are found; the bad ones are parked."""
    world = ParkingWorld()
    world.dead_letter_limit = DeadLetterLimit(0.5, 1, 10)
    world.ends[P0] = 20

    def mostly_bad(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, ParkingWorld)
        spec = parse_spec(world.environments[-1].specs[assignment.record.spec])
        if any(table.parked for table in spec.tables):
            return world.task(assignment)
        begin = assignment.block_range.begin
        target_shard = next(
            target_shard for target_shard in world.tables if target_shard.entry == "bad"
        )
        world.tables[target_shard].insert("token", [(P0, begin), (P0, begin + 1)])
        good = replace(spec, tables=tuple(t for t in spec.tables if t.entry == "good"))
        loaded = world.load_into(assignment, good)
        bad = range(begin + 2, assignment.block_range.end)
        dead_letters = tuple(letter(offset, "bad", "cannot-parse") for offset in bad)
        return replace(loaded, dead_letters=dead_letters)

    world.script = mostly_bad
    loop = run(world)
    assert loop.states[P0].stopped is None and loop.states[P0].settled == 20
    assert stored(world, "bad") == [0, 1] and stored(world, "good") == span(20)
    assert sorted(world.parked()) == span(2, 20) == sorted(x.offset for x in world.dead_letters)


def test_without_leave_the_partition_stops() -> None:
    world = ParkingWorld(allowed=False)
    world.ends[P0] = 10
    loop = run(world)
    stopped = loop.states[P0].stopped
    assert isinstance(stopped, TerminalError) and "no rights" in str(stopped)
    assert world.dead_letters == []
