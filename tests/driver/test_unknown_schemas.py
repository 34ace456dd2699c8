"""Ranges of which a message names a schema that the registry does not know, as a loop sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.core.budget import TargetShard
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.errors import TerminalError
from sluice.core.ledger import Rest
from sluice.core.load_spec import LoadSpec, TableSpec, parse_spec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import DeadLetter, Outdated, UnknownSchemas
from sluice.driver.ports import ProbeFound
from sluice.driver.probing import DoubledRowsError
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import (
    START_MS,
    TASK_MS,
    Answer,
    EndlessLoopError,
    World,
    kinds,
    run,
    table_spec,
)

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
SCHEMA_1 = 1


class RegistryWorld(World):
    """Two entries of one topic, of which `a` has a registry that knows some schemas.

    :param names: by offset, the schema that a message names; all others name the first one.
    """

    def __init__(self, names: dict[int, int], known: set[int]) -> None:
        super().__init__((P0, P1), (table_spec("a", ("a",)), table_spec("z", ("a",))))
        self.names, self.known = names, known
        self.script = type(self).task  # type: ignore[assignment]
        self.dead: list[tuple[int, int]] = []

    def task(self, assignment: Assignment) -> Answer:
        """What a task does under the load spec that its record names."""
        spec = parse_spec(self.environments[-1].specs[assignment.record.spec])
        begin, end = assignment.block_range.begin, assignment.block_range.end
        rest = assignment.background.rest.get("a", ((begin, end),))
        offsets = [o for b, e in rest for o in range(b, e)]
        # Those of another topic are other ones.
        more = 5000 if assignment.block_range.source.topic == "b" else 0
        schemas = {o: self.names[o] + more if o in self.names else SCHEMA_1 for o in offsets}
        listed = spec.tables[0].schemas
        asked = {n for n in schemas.values() if listed is None or n in listed}
        unknown = sorted(asked - self.known)
        if unknown:
            count = sum(number in unknown for number in schemas.values())
            known = tuple(sorted(asked & self.known))
            found = UnknownSchemas(tuple(unknown), known, count, len(schemas))
            return Outdated("a", f"does not know schema {unknown}", (), schemas={"a": found})
        bad = {o for o, number in schemas.items() if number not in asked}
        return self.load_but(assignment, bad)

    def load_but(self, assignment: Assignment, bad: set[int]) -> Answer:
        before = dict(self.tables[TargetShard("a", "s1")].rows)
        loaded = self.load(assignment)
        rows = self.tables[TargetShard("a", "s1")].rows
        for offset in bad:
            if (P0, offset) not in before and assignment.block_range.source == P0:
                rows.pop((P0, offset), None)
            self.dead.append((assignment.record.attempt, offset))
        dead_letters = tuple(
            DeadLetter("a", 0, o, None, None, b"", (), "unknown-schema", "no", "a")
            for o in sorted(bad)
        )
        return replace(loaded, dead_letters=dead_letters)

    def text_of_last(self, source: TopicPartition) -> TableSpec:
        last = [r for c in self.commits for s, r in c.records.items() if s == source]
        return parse_spec(self.canonical(last[-1].spec)).tables[0]


def first(answer: Callable[[RegistryWorld, Assignment], Answer]) -> Callable[..., Answer]:
    left = [answer]

    def task(world: RegistryWorld, assignment: Assignment) -> Answer:
        return left.pop()(world, assignment) if left else world.task(assignment)

    return task


def lost_after_it_was_stored(world: RegistryWorld, assignment: Assignment) -> Answer:
    world.load(assignment)
    return JobLostError("the worker is gone")


def assert_specs_are_recorded(world: World) -> None:
    known: set[object] = {world.spec.digest()}
    for commit in world.commits:
        known |= {e.body["digest"] for e in commit.entries if e.body["type"] == "load_spec"}
        assert {record.spec for record in commit.records.values()} <= known, "unrecorded load spec"


def test_a_schema_that_the_registry_learns_in_time_costs_no_row() -> None:
    world = RegistryWorld({3: 2}, {1})
    world.ends[P0] = 10
    world.at(30_000, lambda: world.known.add(2))
    run(world)
    assert world.rows_of(P0, "a") == world.rows_of(P0, "z") == [1] * 10
    assert world.dead_letters == [] and world.text_of_last(P0).schemas is None
    assert "ADD_COLUMNS" not in [kind for kind, _, _ in kinds(world, P0)]
    assert world.now < START_MS + 40_000, "it is asked again often enough"


def test_one_that_it_does_not_learn_stands_in_the_spec_whatever_it_says_later() -> None:
    """The task that executes the load spec is lost after it inserted, and the registry has learned
    the schema when it is repeated: the same rows and the same dead letters."""
    world = RegistryWorld({3: 2, 5: 2}, {1})
    world.ends[P0] = 10

    def task(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, RegistryWorld)
        spec = parse_spec(world.environments[-1].specs[assignment.record.spec])
        if spec.tables[0].schemas is None or 2 in world.known:
            return world.task(assignment)
        world.task(assignment)
        world.known.add(2)
        return JobLostError("the worker is gone")

    world.script = task
    run(world)
    assert world.rows_of(P0, "a") == [1, 1, 1, 0, 1, 0, 1, 1, 1, 1]
    assert world.rows_of(P0, "z") == [1] * 10
    assert [letter.offset for letter in world.dead_letters] == [3, 5]
    assert world.text_of_last(P0).schemas is None or kinds(world, P0)[-1][0] == "SETTLE"
    widened = [r for c in world.commits for r in c.records.values() if r.kind.name == "ADD_COLUMNS"]
    assert parse_spec(world.canonical(widened[0].spec)).tables[0].schemas == (1,)
    assert parse_spec(world.canonical(widened[0].spec)).tables[1].schemas is None
    assert world.now >= START_MS + 60_000, "it waited"
    assert_specs_are_recorded(world)


def test_where_an_attempt_may_have_inserted_a_probe_tells_what_is_there() -> None:
    """The registry knew the schema, the block is stored, nobody heard of it, and it is deleted."""
    world = RegistryWorld({3: 2, 5: 2}, {1})
    world.ends[P0] = 10
    world.script = first(lost_after_it_was_stored)
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "PROBE", "SETTLE"]
    assert world.rows_of(P0, "a") == world.rows_of(P0, "z") == [1] * 10
    assert world.dead_letters == []
    assert_specs_are_recorded(world)


def test_what_such_a_probe_does_not_find_becomes_dead_letters() -> None:
    world = RegistryWorld({3: 2, 5: 2}, {1})
    world.ends[P0] = 10
    world.script = first(lambda world, assignment: JobLostError("the worker is gone"))
    run(world)
    assert world.rows_of(P0, "a") == [1, 1, 1, 0, 1, 0, 1, 1, 1, 1]
    assert [letter.offset for letter in world.dead_letters] == [3, 5]
    assert_specs_are_recorded(world)


@pytest.mark.parametrize("doubled", [False, True])
def test_where_it_cannot_be_probed_it_waits_for_the_registry(doubled: bool) -> None:
    world = RegistryWorld({3: 2}, {1})
    world.ends[P0] = 10
    world.script = first(lost_after_it_was_stored)
    error = DoubledRowsError("twice") if doubled else TerminalError("it feeds views", "resolve")
    world._probed = lambda block_range, spec, known: ProbeFound(  # type: ignore[method-assign]
        block_range.source, {}, error
    )
    hour_ms = 3_600_000
    world.at(hour_ms, lambda: world.known.add(2))
    world.rounds_left = 200_000
    loop = run(world)
    if doubled:
        assert loop.states[P0].stopped is error and world.now < START_MS + hour_ms
        return
    assert world.now > START_MS + hour_ms and loop.states[P0].stopped is None
    assert "PROBE" not in [kind for kind, _, _ in kinds(world, P0)]
    assert world.rows_of(P0, "a") == [1] * 10 and world.dead_letters == []


@pytest.mark.parametrize("is_recorded", [False, True])
def test_where_some_rows_of_messages_are_stored_it_waits_for_the_registry(
    is_recorded: bool,
) -> None:
    """As dead letters, messages of several rows would not make the rows that are there."""
    world = RegistryWorld({3: 2}, {1})
    world.ends[P0] = 10
    world.script = first(lost_after_it_was_stored)
    real = world._probed

    def probed(block_range: Range, spec: LoadSpec, known: Rest) -> ProbeFound:
        found = real(block_range, spec, known)
        return replace(found, stored={"a": ((3, 0, 1),)})

    world._probed = probed  # type: ignore[method-assign]
    if is_recorded:
        world.tables[
            TargetShard("a", "s1")
        ].insert_counter += 5_000  # so that it is probed before it is sent again
    hour_ms = 3_600_000
    world.at(hour_ms, lambda: world.known.add(2))
    world.rounds_left = 200_000
    loop = run(world)
    assert world.now > START_MS + hour_ms and loop.states[P0].stopped is None
    assert world.dead_letters == []


def test_garbage_holds_nobody_back_for_long_and_makes_no_specs() -> None:
    """Each message names another number."""
    world = RegistryWorld({offset: 1000 + offset for offset in range(0, 400, 7)}, {1})
    world.ends[P0] = 400
    run(world)
    assert world.now < START_MS + 60_000 + 60_000, "one patience, and not one for each range"
    specs = {e.body["digest"] for e in world.ledger if e.body["type"] == "load_spec"}
    assert len(specs - {world.spec.digest()}) == 1
    assert sorted(letter.offset for letter in world.dead_letters) == sorted(world.names)


def test_another_topic_is_not_hurried_by_the_garbage_of_one() -> None:
    b0 = TopicPartition("b", 0)
    world = RegistryWorld({offset: 1000 + offset for offset in range(40)}, {1})
    tables = (table_spec("a", ("a", "b")), table_spec("z", ("a", "b")))
    World.__init__(world, (P0, b0), tables)
    world.script = RegistryWorld.task  # type: ignore[assignment]
    world.ends[P0] = 40
    world.at(65_000, lambda: world.ends.update({b0: 10}))
    world.at(90_000, lambda: world.known.update(range(6000, 6040)))
    loop = world.loop([world.settled(P0), world.settled(b0)])
    world.at(200_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.rows_of(b0, "a") == [1] * 10
    assert {letter.partition for letter in world.dead_letters} == {0} and len(
        world.dead_letters
    ) == 40


def test_more_than_may_be_dead_letters_wait() -> None:
    world = RegistryWorld(dict.fromkeys(range(8), 2), {1})
    world.ends[P0] = 10
    world.dead_letter_limit = DeadLetterLimit(max_ratio=0.5, min_dead_letters=5)
    world.at(3_600_000, lambda: world.known.add(2))
    world.rounds_left = 200_000
    run(world)
    assert world.rows_of(P0, "a") == [1] * 10 and world.dead_letters == []
    assert kinds(world, P0)[-1] == ("SETTLE", 10, 10)


def test_patience_can_be_none() -> None:
    world = RegistryWorld({3: 2}, {1})
    world.ends[P0] = 10
    world.schema_patience_ms = 0
    run(world)
    assert world.now < START_MS + 20 * TASK_MS
    assert [letter.offset for letter in world.dead_letters] == [3]


def test_a_schema_that_is_deleted_while_its_spec_is_loaded_is_taken_out_of_it() -> None:
    world = RegistryWorld({3: 2, 5: 3}, {1, 3})
    world.ends[P0] = 10
    world.schema_patience_ms = 1_000

    def task(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, RegistryWorld)
        spec = parse_spec(world.environments[-1].specs[assignment.record.spec])
        if spec.tables[0].schemas == (1, 3):
            world.known.discard(3)
        return world.task(assignment)

    world.script = task
    try:
        run(world)
    except EndlessLoopError:
        pytest.fail(str(kinds(world, P0)[:20]))
    assert [letter.offset for letter in world.dead_letters] == [3, 5]
    assert world.rows_of(P0, "z") == [1] * 10
    assert_specs_are_recorded(world)
