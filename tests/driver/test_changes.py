"""Tables that are altered under a loop: which load spec each range is loaded under (R8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from sluice.clickhouse.comparing import Today
from sluice.clickhouse.reactions import build_error, reaction_to
from sluice.core.budget import TargetShard, own_target_shards
from sluice.core.errors import SluiceError, TerminalError
from sluice.core.load_spec import Column, LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.receipts import Failed, Outdated
from sluice.core.records import Kind
from sluice.driver.changes import LOOK_FOR_FIELDS_MS, Unrepeatable
from sluice.driver.load_specs import NamedSpec
from sluice.driver.ports import SchemaRead
from sluice.driver.refreshing import SchemaChangedError
from sluice.driver.start import Started
from sluice.driver.state import AsRecorded
from sluice.spark.jobs import JobLostError
from sluice.worker.assignment import Assignment
from tests.driver.loop_world import START_MS, Answer, World, kinds, run, table_spec
from tests.driver.test_specs import facts_of

P0, OTHER = TopicPartition("a", 0), TopicPartition("b", 0)
READING_MS = 20


def altered(spec: LoadSpec, *names: str) -> LoadSpec:
    """The load spec with these columns added to every table."""
    columns = tuple(Column(name, "String") for name in names)
    tables = tuple(replace(t, columns=t.columns + columns) for t in spec.tables)
    return replace(spec, tables=tables)


class AlteredWorld(World):
    """A world in which somebody reads the tables when asked to.

    :param tokens: what the server knows.
    """

    #: Shards that readings are not of.
    unread = frozenset[str]()

    def __init__(self, *sources: TopicPartition, tokens: bool = True) -> None:
        tables = tuple(table_spec(s.topic, (s.topic,)) for s in sources)
        super().__init__(sources, tables)
        self.tokens = tokens
        self.now_spec = self.spec
        self.barred: dict[str, SluiceError] = {}
        self.readings = 0
        self.read_schema = self._read
        self._is_reading = False

    def _read(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.at(READING_MS, lambda started=self.now: self.tell(started))  # type: ignore[misc]

    def tell(self, started_ms: int) -> None:
        """A reading is there."""
        self._is_reading = False
        self.readings += 1
        facts = {
            table.target: replace(
                facts_of(table.columns, table.table),
                database="d",
                partition_key=table.partition_key,
                sorting_key=table.sorting_key,
            )
            for table in self.now_spec.tables
        }
        today = Today("chdb 1", "UTC", frozenset({"s1"}), facts, self.tokens)
        read = SchemaRead(started_ms, today, self.now_spec, self.barred, unread=self.unread)
        self.put(read)

    def alter(self, *names: str) -> None:
        """ALTER TABLE … ADD COLUMN, and a reading."""
        self.now_spec = altered(self.now_spec, *names)
        self.tell(self.now)

    def rows_of(self, source: TopicPartition, entry: str = "") -> list[int]:
        return super().rows_of(source, entry or source.topic)

    def specs(self, source: TopicPartition) -> list[tuple[str, int, str]]:
        """Kind, begin and load spec of each record of a partition."""
        return [
            (record.kind.name, record.begin, record.spec)
            for commit in self.commits
            for at, record in commit.records.items()
            if at == source
        ]


def once(answer: Callable[[World, Assignment], Answer]) -> Callable[[World, Assignment], Answer]:
    """The first task answers so, the others load."""
    left = [answer]
    return lambda world, assignment: (left.pop() if left else type(world).load)(world, assignment)


def test_new_ranges_are_loaded_under_the_new_spec_which_is_recorded_with_the_first() -> None:
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    loop = world.loop()
    world.at(5_000, lambda: world.alter("x"))
    world.at(10_000, lambda: world.ends.update({P0: 20}))
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    old, new = world.spec.digest(), world.now_spec.digest()
    assert old != new
    assert world.specs(P0)[0] == ("INTEND", 0, old)
    assert ("INTEND", 10, new) in world.specs(P0)
    (commit,) = [c for c in world.commits if any(e.body.get("digest") == new for e in c.entries)]
    assert commit.records[P0].spec == new and commit.records[P0].kind is Kind.INTEND
    assert commit.entries[0].body["text"] == world.now_spec.canonical()
    assert world.environments[-1].specs[new] == world.now_spec.canonical()
    assert world.rows_of(P0) == [1] * 20


def test_a_range_in_doubt_is_repeated_under_its_own_spec() -> None:
    world = AlteredWorld(P0, OTHER)
    world.ends.update({P0: 10, OTHER: 10})

    def lose(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, AlteredWorld)
        world.load(assignment)
        world.alter("x")
        return JobLostError("lost after the insert")

    world.script = once(lose)
    run(world)
    old = world.spec.digest()
    assert len(world.jobs) >= 2
    assert {a.record.spec for job in world.jobs for a in job.assignments} == {old}
    assert world.rows_of(P0) == world.rows_of(OTHER) == [1] * 10
    assert [[*each.specs] for each in world.environments] == [[old]] * len(world.jobs)


@pytest.mark.parametrize(("before", "in_parts"), [("intDiv(id, 2)", {"a"}), ("", set())])
def test_a_probe_knows_that_its_table_was_partitioned(before: str, in_parts: set[str]) -> None:
    """Some rows of a message may be stored, although today's table stores blocks whole."""
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    world.spec = world.now_spec = replace(
        world.spec, tables=tuple(replace(t, partition_key=before) for t in world.spec.tables)
    )
    world.planner.change(world.spec)

    def lose(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, AlteredWorld)
        tables = tuple(replace(t, partition_key="") for t in world.spec.tables)
        world.now_spec = replace(world.spec, tables=tables)
        world.tables[TargetShard("a", "s1")].insert_counter += 5_000  # so that it has to be probed
        return JobLostError("lost in the insert")

    world.script = once(lose)
    run(world)
    assert [set(each) for each in world.probed_in_parts] == [in_parts]


def test_where_nobody_has_the_recorded_spec_any_table_may_have_been_partitioned() -> None:
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    state = world.overrun(P0, 10, 1)
    state.record = world.group[P0] = replace(state.record, spec="0123456789abcdef")
    run(world, world.loop([state]))
    assert [set(each) for each in world.probed_in_parts] == [{"a"}]


def test_where_rows_are_hashed_a_range_in_doubt_is_probed_after_a_column_was_added() -> None:
    """It landed before, and the server would not know its block again."""
    world = AlteredWorld(P0, tokens=False)
    world.ends[P0] = 10

    def lose(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, AlteredWorld)
        world.load(assignment)
        world.now_spec = altered(world.now_spec, "x")  # nobody tells: the loop has to look
        world.tables[TargetShard("a", "s1")].window.clear()  # what hashing comes to
        return JobLostError("lost after the insert")

    world.script = once(lose)
    run(world)
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "PROBE", "SETTLE"]
    assert world.specs(P0)[1] == ("PROBE", 0, world.now_spec.digest())
    assert world.readings >= 1
    assert world.rows_of(P0) == [1] * 10


@pytest.mark.parametrize("is_refused", [True, False])
def test_where_rows_are_hashed_what_joins_in_doubt_is_probed_under_todays_spec(
    is_refused: bool,
) -> None:
    """A loop has the load spec under which another owner recorded it, from before the ALTER, and
    no structure changes any more that would have it judged again. The take-over may have looked at
    the tables before the ALTER, too."""
    joins = TopicPartition("a", 1)
    world = AlteredWorld(P0, tokens=False)

    def take_over(sources: list[TopicPartition]) -> Started:
        digest, states = world.spec.digest(), [world.overrun(joins, 10, 1)]
        if is_refused:
            return Started(states, refused={digest: (world.spec, "x")})
        return Started(states, specs={digest: NamedSpec.of(world.spec)})

    loop = world.loop(take_over_new=take_over)
    world.at(5_000, lambda: world.alter("x"))
    world.at(60_000, lambda: world.ends.update({joins: 10}))
    world.at(200_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.specs(joins)[0] == ("PROBE", 0, world.now_spec.digest())
    assert world.rows_of(joins) == [1] * 10


def test_what_joins_under_columns_that_the_loop_has_not_read_yet_keeps_its_spec() -> None:
    """Who recorded it had read the tables after the ALTER, and the take-over looked at them then,
    too. By the loop's last reading its load spec cannot be executed: that one would drop `x`."""
    joins = TopicPartition("a", 1)
    world = AlteredWorld(P0)
    new = altered(world.spec, "x")

    def take_over(sources: list[TopicPartition]) -> Started:
        world.now_spec = new
        state = world.overrun(joins, 10, 1)
        state.record = world.group[joins] = replace(state.record, spec=new.digest())
        return Started([state], specs={new.digest(): NamedSpec.of(new)})

    loop = world.loop(take_over_new=take_over)
    world.at(5_000, lambda: world.tell(world.now))
    world.at(60_000, lambda: world.ends.update({joins: 10}))
    world.at(200_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.specs(joins)[0] == ("PROBE", 0, new.digest())
    assert world.rows_of(joins) == [1] * 10


@pytest.mark.parametrize("says", ["all is as it was", "it fits", "it does not fit"])
@pytest.mark.parametrize("another_is_away", [False, True])
def test_what_a_take_over_could_ask_nobody_about_waits_for_a_reading_of_its_shards(
    says: str, another_is_away: bool
) -> None:
    """A shard was away. The last reading says nothing against it, and may be from before."""
    joins, asked, seen = TopicPartition("a", 1), list[int](), list[object]()
    away = frozenset({"s2"}) if another_is_away else frozenset[str]()
    world = AlteredWorld(P0)
    recorded = replace(world.spec, range_bytes_max=world.spec.range_bytes_max + 1)

    def take_over(sources: list[TopicPartition]) -> Started:
        digest, state = recorded.digest(), world.overrun(joins, 10, 1)
        state.stage = AsRecorded()
        state.record = world.group[joins] = replace(state.record, spec=digest)
        specs = {digest: NamedSpec.of(recorded)}
        return Started([state], specs=specs, unasked={(digest, "a")})

    def partly() -> None:
        world.unread = frozenset({"s1", *away})
        world.tell(world.now)

    def whole() -> None:
        seen.append(world.specs(joins))
        world.unread = away
        if says == "it does not fit":
            world.now_spec = replace(
                world.spec, tables=(replace(world.spec.tables[0], partition_key="intDiv(id, 2)"),)
            )
        if says == "all is as it was":
            world.put(SchemaRead(world.now, None, world.spec, {}, unread=away))
        else:
            world.tell(world.now)

    world.read_schema = lambda: asked.append(world.now)
    loop = world.loop(take_over_new=take_over)
    world.at(5_000, lambda: world.tell(world.now))
    world.at(60_000, lambda: world.ends.update({joins: 10}))
    world.at(130_000, partly)
    world.at(150_000, whole)
    world.at(300_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert seen == [[]] and asked
    fits = says != "it does not fit"
    expected = ("RENEW", 0, recorded) if fits else ("PROBE", 0, world.now_spec)
    assert world.specs(joins)[0] == (*expected[:2], expected[2].digest())
    assert world.rows_of(joins) == [1] * 10


def test_what_was_judged_for_a_while_waits_for_its_own_shards_all_the_same() -> None:
    """Nobody was asked about it; a reading of other shards finds an alteration, and the next one
    that it was undone. Neither says anything of the shard that is away."""
    at, unread = ("digest", "a"), [("digest", "a")]
    unrepeatable = Unrepeatable()
    assert unrepeatable.join((), (), {at}, 10)
    for judged in ({at}, set[tuple[str, str]](), None):
        unrepeatable.read(judged, 20, unread)
        assert {*unrepeatable.disputed} == {at}
    state = World([TopicPartition("a", 0)]).overrun(TopicPartition("a", 0), 10, 1)
    state.record = replace(state.record, spec="digest")
    unrepeatable.read(None, 30)
    assert not unrepeatable.disputed and state not in unrepeatable


def test_what_nobody_was_asked_about_is_not_looked_for_before_a_reading() -> None:
    """It has to be probed, as its bundle is gone. Under its own load spec all of it would be sent
    again, since its table keeps one of equal rows; under another one it makes others."""
    joins = TopicPartition("a", 1)
    world = AlteredWorld(P0)
    table = replace(world.spec.tables[0], delivery="replacing")
    recorded = replace(world.spec, tables=(table,))
    world.now_spec = replace(world.spec, tables=(replace(table, partition_key="intDiv(id, 2)"),))
    world.tables[own_target_shards(table)[0]] = world.own["a"]
    world.own["a"].rows |= {(joins, offset): 1 for offset in range(10)}

    def take_over(sources: list[TopicPartition]) -> Started:
        digest, state = recorded.digest(), world.overrun(joins, 10, 1)
        state.record = world.group[joins] = replace(state.record, spec=digest)
        specs = {digest: NamedSpec.of(recorded)}
        return Started([state], specs=specs, unasked={(digest, "a")})

    world.read_schema = lambda: None
    loop = world.loop(take_over_new=take_over)
    world.at(60_000, lambda: world.ends.update({joins: 10}))
    world.at(150_000, lambda: world.tell(world.now))
    world.at(300_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert world.specs(joins)[0] == ("PROBE", 0, world.now_spec.digest())
    assert world.rows_of(joins) == [1] * 10


def test_where_rows_are_hashed_nothing_is_repeated_before_a_look_at_the_columns() -> None:
    world = AlteredWorld(P0, tokens=False)
    world.ends[P0] = 10
    world.script = once(lambda world, assignment: JobLostError("lost"))
    run(world)
    assert world.readings >= 1
    assert [kind for kind, _, _ in kinds(world, P0)] == ["INTEND", "SETTLE"]


def test_a_barred_topic_is_settled_and_stops_and_the_other_goes_on() -> None:
    world = AlteredWorld(P0, OTHER)
    world.ends.update({P0: 10, OTHER: 10})
    error = SchemaChangedError("column x was String, and is UInt8 now")

    def bar(world: World, assignment: Assignment) -> Answer:
        assert isinstance(world, AlteredWorld)
        world.barred = {"a": error}
        world.tell(world.now)
        return world.load(assignment)

    world.script = once(bar)
    loop = world.loop()
    world.at(5_000, lambda: world.ends.update({P0: 30, OTHER: 30}))
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert loop.states[P0].stopped is error
    assert not loop.states[P0].record.in_doubt and loop.states[P0].settled == 10
    assert loop.states[OTHER].stopped is None and world.rows_of(OTHER) == [1] * 30
    assert world.rows_of(P0) == [1] * 10 + [0] * 20


def refuse(world: World, assignment: Assignment) -> Answer:
    return Outdated("a", "no column x", ()) if assignment.is_first else world.load(assignment)


def test_a_first_task_that_refuses_its_spec_is_sent_again_under_todays() -> None:
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    world.now_spec = altered(world.spec, "x")
    world.script = refuse
    run(world)
    new = world.now_spec.digest()
    assert world.specs(P0)[:2] == [("INTEND", 0, world.spec.digest()), ("CHANGE_SPEC", 0, new)]
    assert world.readings == 1
    assert [job.assignments[0].is_first for job in world.jobs] == [True, False]
    assert world.rows_of(P0) == [1] * 10


def test_a_spec_that_is_todays_is_not_asked_about_again_for_a_minute() -> None:
    world = AlteredWorld(P0)
    world.ends[P0] = 30
    asked: list[tuple[int, bool]] = []

    def script(world: World, assignment: Assignment) -> Answer:
        asked.append((world.now, assignment.looks_for_fields))
        if assignment.looks_for_fields:
            return refuse(world, assignment)
        return world.load(assignment)

    world.script = script
    loop = world.loop()
    world.at(LOOK_FOR_FIELDS_MS + 10_000, lambda: world.ends.update({P0: 40}))
    world.at(LOOK_FOR_FIELDS_MS + 20_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert [kind for kind, _, _ in world.specs(P0)] == [
        *("INTEND", "RENEW", "INTEND", "INTEND", "SETTLE"),
        *("INTEND", "RENEW", "SETTLE"),
    ]
    assert {spec for _, _, spec in world.specs(P0)} == {world.spec.digest()}
    looked = [at for at, looks in asked if looks]
    assert looked[0] < START_MS + 5_000 and looked[1] > START_MS + LOOK_FOR_FIELDS_MS
    assert world.rows_of(P0) == [1] * 40


def test_what_was_inserted_before_the_refusal_has_to_be_the_same_under_both_specs() -> None:
    """Of two altered tables the first one's block is stored already: the load spec stays."""
    world = AlteredWorld(P0)
    world.spec = world.now_spec = replace(
        world.spec, tables=(table_spec("a", ("a",)), table_spec("z", ("a",)))
    )
    world.planner.change(world.spec)
    world.own["z"] = world.tables[TargetShard("z", "s1")] = type(world.own["a"])(1000)
    world.ends[P0] = 10
    world.now_spec = altered(world.spec, "x")

    def script(world: World, assignment: Assignment) -> Answer:
        loaded = world.load(assignment)
        return Outdated("z", "no column x", ("a",)) if assignment.is_first else loaded

    world.script = script
    run(world)
    assert [kind for kind, _, _ in world.specs(P0)][:2] == ["INTEND", "RENEW"]
    assert world.specs(P0)[1][2] == world.spec.digest()


def refused_by_the_server(code: int) -> Failed:
    return Failed(build_error(reaction_to(code), code, "http://h", f"refused with {code}"))


def test_a_block_that_is_refused_for_its_columns_waits_for_a_look() -> None:
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    error = SchemaChangedError("column x was String, and is gone")
    world.barred = {"a": error}
    world.script = lambda world, assignment: refused_by_the_server(16)
    loop = run(world)
    assert loop.states[P0].stopped is error
    assert world.readings == 1


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_shard_that_is_not_read_keeps_only_who_needs_a_look(is_refused: bool) -> None:
    """As where one of its replicas has another structure, and another one takes blocks."""
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    world.read_schema = lambda: None
    loop = world.loop()
    world.tell(world.now)
    world.put(SchemaRead(world.now, None, world.spec, {}, unread=frozenset({"s1"})))

    def lose(world: World, assignment: Assignment) -> Answer:
        return refused_by_the_server(16) if is_refused else JobLostError("lost")

    world.script = once(lose)
    world.at(30_000, loop.stopping.set)
    loop.run(None, 5.0)
    assert (loop.states[P0].settled == 10) is not is_refused
    assert len(world.jobs) == (1 if is_refused else 2)


def test_a_block_that_stays_refused_stops_with_the_servers_words() -> None:
    """Although the look found nothing wrong."""
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    world.script = lambda world, assignment: refused_by_the_server(53)
    loop = run(world)
    stopped = loop.states[P0].stopped
    assert isinstance(stopped, TerminalError) and "refused with 53" in str(stopped)
    assert 1 < len(world.jobs) < 6
    world = AlteredWorld(P0)
    world.ends[P0] = 10
    world.script = lambda world, assignment: refused_by_the_server(497)
    run(world)
    assert len(world.jobs) == 1, "nobody's columns are to blame for rights"
