"""Ranges that are refused for their new fields, as a loop sees them (R14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice.core.budget import TargetShard
from sluice.core.decided import Decided, Frozen, Subject
from sluice.core.dynamic import DynamicColumns, NewField, answer_to, type_of
from sluice.core.errors import TerminalError, TransientError
from sluice.core.load_spec import Column, LoadSpec, TableSpec, parse_spec
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed, Outdated, TaskReport, TooHeavy
from sluice.driver.growing import Wanted
from sluice.driver.parking import Parking
from sluice.driver.ports import DecisionsRead, SchemaRead
from sluice.spark.jobs import JobLostError, JobResult
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, World, kinds, run, table_spec
from tests.driver.test_changes import AlteredWorld
from tests.driver.test_freezing import run_until

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
RULES = DynamicColumns(allow=("x.*",), deny=("d.*",), columns_max=3)


def with_columns(table: TableSpec, fields: tuple[NewField, ...]) -> TableSpec:
    """What the schema's thread makes of an entry, as far as there is room."""
    for field in fields:
        dynamic = table.dynamic
        assert dynamic is not None
        names = {column.name for column in table.columns}
        answer = answer_to(dynamic, names, field.name)
        if answer == "add":
            column = Column(field.name, type_of(field.kind))
            table = replace(table, columns=(*table.columns, column))
        elif answer == "pass-over":
            passed_over = (*dynamic.passed_over, field.name)
            table = replace(table, dynamic=replace(dynamic, passed_over=passed_over))
    return table


class GrowingWorld(AlteredWorld):
    """Two entries of one topic, of which `a` gives fields columns.

    :param fields: of each offset that has a new one.
    """

    def __init__(self, fields: dict[int, str], *, tokens: bool = True, add_ms: int = 20) -> None:
        World.__init__(
            self,
            (P0, P1),
            (replace(table_spec("a", ("a",)), dynamic=RULES), table_spec("z", ("a",))),
        )
        self.tokens, self.add_ms = tokens, add_ms
        self.now_spec = self.spec
        self.barred = {}
        self.readings = 0
        self.read_schema = self._read
        self._is_reading = False
        self.fields = fields
        self.wanted: list[Wanted] = []
        self.want_columns = self._want
        self.script = type(self).task  # type: ignore[assignment]
        self.dead_letters_of: set[int] = set()

    def _want(self, wanted: Wanted) -> None:
        self.wanted.append(wanted)
        self.at(self.add_ms, lambda: self.grow(wanted))

    def grow(self, wanted: Wanted) -> None:
        tables = tuple(with_columns(t, wanted.get(t.entry, ())) for t in self.now_spec.tables)
        self.now_spec = replace(self.now_spec, tables=tables)
        self.tell(self.now)

    def task(self, assignment: Assignment) -> Answer:
        """What a task does under the load spec that its record names."""
        spec = parse_spec(self.environments[-1].specs[assignment.record.spec])
        refused = self.asked(spec, assignment)
        return refused or self.load(assignment)

    def asked(self, spec: LoadSpec, assignment: Assignment) -> Outdated | None:
        begin, end = assignment.block_range.begin, assignment.block_range.end
        new = []
        for table in spec.tables:
            for offset in range(begin, end):
                name = self.fields.get(offset)
                if name is None or table.dynamic is None or table.parked:
                    continue
                names = {column.name for column in table.columns}
                answer = answer_to(table.dynamic, names, name)
                if answer:
                    new.append(NewField(name, "Int" if answer == "add" else ""))
                elif name not in names and name not in table.dynamic.passed_over:
                    self.dead_letters_of.add(offset)
        return Outdated("a", "new fields", (), {"a": tuple(new)}) if new else None


def once(answer: Callable[[World, Assignment], Answer]) -> Callable[[World, Assignment], Answer]:
    left = [answer]
    return lambda world, assignment: (left.pop() if left else type(world).task)(world, assignment)  # type: ignore[attr-defined]


def columns_of(world: GrowingWorld, source: TopicPartition) -> set[str]:
    """Under which columns of `a` the partition's last range was loaded."""
    last = [r for c in world.commits for s, r in c.records.items() if s == source]
    spec = parse_spec(world.canonical(last[-1].spec))
    return {column.name for column in spec.tables[0].columns}


def assert_loaded(world: GrowingWorld) -> None:
    for entry in ("a", "z"):
        assert world.rows_of(P0, entry) == [1] * world.ends[P0]
    known: set[object] = {world.spec.digest()}
    for commit in world.commits:
        known |= {e.body["digest"] for e in commit.entries if e.body["type"] == "load_spec"}
        assert {record.spec for record in commit.records.values()} <= known, "unrecorded load spec"


def test_a_range_waits_for_its_columns_and_is_loaded_with_them() -> None:
    world = GrowingWorld({3: "x1", 13: "x2", 14: "d1"}, add_ms=5_000)
    world.ends[P0] = 20
    run(world)
    assert kinds(world, P0) == [
        ("INTEND", 0, 10),
        ("ADD_COLUMNS", 0, 10),
        ("INTEND", 10, 20),
        ("ADD_COLUMNS", 10, 20),
        ("SETTLE", 20, 20),
    ]
    names = {column.name for column in world.now_spec.tables[0].columns}
    assert {"x1", "x2"} <= names
    assert world.now_spec.tables[0].dynamic == replace(RULES, passed_over=("d1",))
    assert world.dead_letters_of == set()
    assert_loaded(world)
    # While it waited, the columns were asked for again, once a second.
    assert 4 <= sum("a" in wanted and wanted["a"][0].name == "x1" for wanted in world.wanted) <= 6


def test_columns_that_only_some_shards_have_are_asked_for_again_after_a_freeze() -> None:
    """The tables cannot be read as long as their columns differ, and what is resumed waits for a
    look at them."""
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10
    whole = (Frozen(Subject("connector"), "alice", "a disk is changed", START_MS),)
    is_whole = [False]

    def want(wanted: Wanted) -> None:
        """The first time the first shard gets the column, and the second gives no answer."""
        if world.wanted:
            assert world.now >= START_MS + 20_000, "asked for while it was frozen"
            is_whole[0] = True
            world._want(wanted)
            return
        world.wanted.append(wanted)
        world.put(DecisionsRead(Decided(whole)))
        world.at(20_000, lambda: world.put(DecisionsRead(Decided())))

    world.want_columns = want
    world.read_schema = lambda: world._read() if is_whole[0] else None
    run_until(world, 60_000)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "ADD_COLUMNS", "SETTLE"]
    assert_loaded(world)


def test_where_there_is_no_room_the_field_is_a_dead_letter() -> None:
    world = GrowingWorld({1: "x1", 2: "x2", 3: "x3", 4: "x4"})
    world.ends[P0] = 20
    run(world)
    assert world.dead_letters_of == {4}
    assert [kind for kind, _, _ in kinds(world, P0)] == [
        "INTEND",
        "ADD_COLUMNS",
        "INTEND",
        "SETTLE",
    ]
    assert_loaded(world)


def test_a_repeated_attempt_is_refused_as_the_first_one_was() -> None:
    """The first one may have died; whoever executes the load spec refuses the range."""
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10
    world.script = once(lambda world, assignment: JobLostError("lost"))
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "ADD_COLUMNS", "SETTLE"]
    assert len(world.jobs) == 3 and world.dead_letters_of == set()
    assert_loaded(world)


def test_a_shortened_range() -> None:
    world = GrowingWorld({3: "x1", 7: "x2"})
    world.ends[P0] = 10
    world.script = once(lambda world, assignment: TooHeavy(5, 1000))
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == [
        "INTEND",
        "SHORTEN",
        "ADD_COLUMNS",
        "INTEND",
        "ADD_COLUMNS",
        "SETTLE",
    ]
    assert world.dead_letters_of == set()
    assert_loaded(world)


def test_a_probed_range_keeps_what_the_probe_found() -> None:
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10
    state = world.overrun(P0, 10, 1)
    world.tables[TargetShard("z", "s1")].rows = {(P0, offset): 1 for offset in range(10)}
    loop = world.loop([state, world.settled(P1)])
    run(world, loop)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["PROBE", "ADD_COLUMNS", "SETTLE"]
    probe, add_columns = (c.records[P0] for c in world.commits[:2])
    assert probe.rest == add_columns.rest != ""
    assert world.dead_letters_of == set()
    assert_loaded(world)


def test_a_second_partition_is_widened_to_the_spec_that_is_there() -> None:
    world = GrowingWorld({3: "x1"})
    world.ends.update({P0: 10, P1: 10})
    run(world)
    assert columns_of(world, P0) == columns_of(world, P1) >= {"x1"}
    assert world.rows_of(P1, "a") == [1] * 10
    assert_loaded(world)


def with_another_table_altered(world: World, assignment: Assignment) -> Answer:
    """The task, and meanwhile a column comes to the table of the other entry."""
    assert isinstance(world, GrowingWorld)
    tables = tuple(
        replace(t, columns=(*t.columns, Column("more", "String"))) if t.entry == "z" else t
        for t in world.now_spec.tables
    )
    world.now_spec = replace(world.now_spec, tables=tables)
    world.tell(world.now)
    return world.task(assignment)


def test_another_entry_of_the_range_stays_as_it_was_recorded() -> None:
    """It may have been altered meanwhile, and what was inserted of it must not be another block."""
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10

    world.script = once(with_another_table_altered)
    run(world)
    widened = next(
        record
        for c in world.commits
        for record in c.records.values()
        if record.kind.name == "ADD_COLUMNS"
    )
    spec = parse_spec(world.canonical(widened.spec))
    assert "more" not in {c.name for c in spec.tables[1].columns}
    assert "x1" in {c.name for c in spec.tables[0].columns}
    assert widened.spec != world.now_spec.digest()
    assert_loaded(world)


def test_a_server_that_refuses_the_column_stops_its_topic() -> None:
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10
    error = TerminalError("columns cannot be added to d.a: no rights", "GRANT it")
    world.want_columns = lambda wanted: world.at(
        20, lambda: world.put(SchemaRead(world.now, None, world.spec, {"a": error}))
    )
    loop = run(world)
    assert loop.states[P0].stopped is error and loop.states[P0].record.in_doubt
    assert world.rows_of(P0, "a") == world.rows_of(P0, "z") == [0] * 10


def test_or_parks_its_entry() -> None:
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10
    world.parking = Parking(["a"])
    error = TerminalError("columns cannot be added to d.a: no rights", "GRANT it")
    world.want_columns = lambda wanted: world.at(
        20, lambda: world.put(SchemaRead(world.now, None, world.spec, {}, {"a": error}))
    )
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "ADD_COLUMNS", "SETTLE"]
    (widened,) = (
        record
        for c in world.commits
        for record in c.records.values()
        if record.kind.name == "ADD_COLUMNS"
    )
    spec = parse_spec(world.canonical(widened.spec))
    assert [table.parked for table in spec.tables] == [True, False]


def test_an_entry_without_rules_any_more_treats_the_field_as_unknown() -> None:
    """The configuration was changed while the range was in doubt."""
    world = GrowingWorld({3: "x1"})
    world.ends[P0] = 10
    recorded = world.spec
    plain = replace(
        recorded, tables=tuple(replace(table, dynamic=None) for table in recorded.tables)
    )
    world.planner.change(plain)
    world.now_spec = plain
    state = world.settled(P0)
    state.record = world.group[P0] = replace(
        world.overrun(P0, 10, 1).record, spec=recorded.digest(), deadline_ms=world.now + 60_000
    )
    loop = world.loop([state, world.settled(P1)])
    run(world, loop)
    assert "ADD_COLUMNS" in [kind for kind, _, _ in kinds(world, P0)]
    assert world.wanted == []
    assert world.rows_of(P0, "a") == [1] * 10


def test_where_rows_are_hashed_nothing_is_repeated_while_columns_are_on_their_way() -> None:
    """A repeated task looks at the columns and then inserts: in between, Sluice adds none."""
    world = GrowingWorld({3: "x1"}, tokens=False, add_ms=5_000)
    world.ends.update({P0: 10, P1: 10})
    repeated_at: list[int] = []

    def task(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, GrowingWorld)
        if assignment.block_range.source == P0:
            return world.task(assignment)
        if assignment.is_first:
            return Failed(TransientError("nothing was sent", "wait"))
        repeated_at.append(world.now)
        return world.load(assignment)

    world.script = task
    run(world)
    assert repeated_at and min(repeated_at) >= START_MS + world.add_ms
    assert_loaded(world)


def test_where_rows_are_hashed_and_another_table_was_altered_the_range_is_probed() -> None:
    """Its recorded load spec cannot be executed even with the new columns; today's can."""
    world = GrowingWorld({3: "x1"}, tokens=False)
    world.ends[P0] = 10

    world.script = once(with_another_table_altered)
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "PROBE", "SETTLE"]
    probed = next(r for c in world.commits for r in c.records.values() if r.kind.name == "PROBE")
    assert probed.spec == world.now_spec.digest()
    assert world.dead_letters_of == set()
    assert_loaded(world)


def test_where_rows_are_hashed_no_column_is_wanted_while_a_repeat_is_out() -> None:
    world = GrowingWorld({3: "x1"}, tokens=False)
    world.ends[P1] = 10
    wanted_at: list[int] = []
    back_at: list[int] = []

    def task(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, GrowingWorld)
        if assignment.block_range.source == P0:
            return world.task(assignment)
        if assignment.is_first:
            return Failed(TransientError("nothing was sent", "wait"))
        job, loaded = world.jobs[-1], world.load(assignment)
        report = TaskReport(assignment.block_range, assignment.record.batch, loaded)

        def come_back() -> None:
            back_at.append(world.now)
            world.put(JobResult(job, reports=(report,)))

        world.at(5_000, come_back)
        world.ends[P0] = 10
        return None

    def want(wanted: Wanted) -> None:
        wanted_at.append(world.now)
        world._want(wanted)

    world.script, world.want_columns = task, want
    loop = world.loop()
    world.at(60_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert wanted_at and back_at and min(wanted_at) >= back_at[0]
    assert_loaded(world)
