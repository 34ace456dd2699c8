"""Taking over, on a real broker, what today's configuration does not have any more: the range
in doubt is settled under its recorded load spec, or its partition stops in words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.core.anomalies import _judge_hand
from sluice.core.errors import TerminalError, TransientError
from sluice.core.fleet.view import Member, View
from sluice.core.ledger import (
    Background,
    Commit,
    LedgerEntry,
    LedgerView,
    checkpoint_entries,
    late_insert_entry,
    record_entry,
    spec_entry,
)
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import EpochOffset, Range, TopicPartition
from sluice.core.records import Kind, encode
from sluice.core.topics import NO_TOPIC_ID
from sluice.driver import start as starting
from sluice.driver.discovering import retired
from sluice.driver.dispatching import assigned
from sluice.driver.inheriting import Heir
from sluice.driver.start import (
    Started,
    read_ahead,
    read_rest,
    spec_needed,
    take_over,
)
from sluice.driver.state import PossibleLateInsert
from sluice.kafka import ledger
from sluice.kafka.ledger import read_view
from sluice.kafka.log import Cuts
from tests.driver.loop_world import World, table_spec
from tests.driver.starting import spec_of, start, start_parts
from tests.kafka.groups import NOW, SETTLED, Group, intend
from tests.support.kafka import Kafka, numbered

#: As a driver's windows stood before it inserted.
BACKGROUND = Background(insert_counters={"a/s1": 0, "b/s1": 0}, since_ms=NOW, bytes_max=1 << 20)


@pytest.fixture
def group(kafka: Kafka) -> Iterator[Group]:
    made = Group(kafka)
    yield made
    made.close()


def leave_in_doubt(
    group: Group,
    recorded: LoadSpec,
    *more: LedgerEntry,
    partition: int = 0,
    owner: str = "old",
    background: Background = BACKGROUND,
) -> None:
    """A driver recorded a range of two entries, and is gone.

    :param more: what else it wrote to the ledger.
    """
    group.kafka.produce(group.topic, numbered(20), partition)
    topic_id = group.kafka.log.topics([group.topic])[group.topic][0]
    record = intend(owner, 0, 10, topic_id=topic_id, spec=recorded.digest())
    source = group.sources[partition]
    old = group.recorder(owner)
    entries = (
        spec_entry(recorded.digest(), recorded.canonical()),
        record_entry(source, record, background),
        *more,
    )
    old.finish_take_over(old.take_over([source]), Commit({source: record}, entries))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        (("a",), "table entry b is not configured any more"),
        ((), "no table entry takes this topic any more"),
    ],
)
def test_what_cannot_be_repeated_is_not_probed_under_a_spec_without_its_tables(
    group: Group, entries: tuple[str, ...], words: str
) -> None:
    """Such a probe would look into no table of theirs, and settle rows that are missing."""
    leave_in_doubt(group, spec_of("a", "b", topic=group.topic))
    today = spec_of(*entries, topic=group.topic)
    started, _ = start(group, today, why="a column was retyped", retiring=not entries)
    (state,) = started.states
    assert words in str(state.stopped)
    assert state.stopped is not None and "sluice resolve" in state.stopped.hint
    assert state.stopped.hint.startswith(f"Put {group.topic} back") == (not entries)
    assert group.committed() is not None and state.record.owner == "old"


def test_a_staged_entry_that_is_gone_is_missed_though_no_window_knows_of_its_blocks(
    group: Group,
) -> None:
    a, b = spec_of("a", "b", topic=group.topic).tables
    recorded = replace(spec_of(topic=group.topic), tables=(a, replace(b, delivery="staged")))
    leave_in_doubt(group, recorded, background=replace(BACKGROUND, insert_counters={"a/s1": 0}))
    started, _ = start(group, spec_of("a", topic=group.topic), why="a column was retyped")
    assert "table entry b is not configured any more" in str(started.states[0].stopped)


def test_what_can_be_repeated_is_although_its_entry_is_gone(group: Group) -> None:
    recorded = spec_of("a", "b", topic=group.topic)
    leave_in_doubt(group, recorded)
    started, _ = start(group, spec_of("a", topic=group.topic), why=None)
    (state,) = started.states
    assert state.stopped is None and not state.has_to_be_probed
    assert (state.record.kind, state.record.spec) == (Kind.RENEW, recorded.digest())


def test_a_probe_under_a_spec_with_all_its_tables_is_possible(group: Group) -> None:
    leave_in_doubt(group, spec_of("a", "b", topic=group.topic))
    today = replace(spec_of("a", "b", topic=group.topic), range_bytes_max=2 << 20)
    started, _ = start(group, today, why="a column was retyped")
    assert started.states[0].stopped is None and started.states[0].has_to_be_probed


def test_what_another_version_left_behind_views_is_settled_by_that_version_or_in_one_command(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the rows of a fresh decode are the same nobody can prove. The version before makes
    the same ones, and ClickHouse still knows the blocks."""
    group = Group(kafka, 3)
    try:
        recorded = spec_of("a", "b", topic=group.topic)
        for number in range(3):
            leave_in_doubt(group, recorded, partition=number)
        today = replace(recorded, decoder="chdb 2")
        why = "it was decoded by chdb 1, and today's decoder is chdb 2"
        asked: list[str] = []
        no_probe = "d.a feeds 1 materialized views"
        started, _ = start(group, today, why=why, no_probe=no_probe, asked=asked)
        assert asked == [group.topic], "once for all of its partitions"
        for state in started.states:
            assert why in str(state.stopped) and "feeds 1 materialized views" in str(state.stopped)
            assert state.stopped is not None
            assert state.stopped.hint.startswith("Run the Sluice that decodes with chdb 1 once")
        assert (
            f"sluice resolve CONFIG --connector dc1 --topic {group.topic} --partition 0 1 2 "
            "--as loaded|not-loaded" in caplog.text
        )
        started, _ = start(group, recorded, why=None)
        assert [state.stopped for state in started.states] == [None] * 3
    finally:
        group.close()


def test_an_heir_waits_for_no_transaction_that_the_dead_left_open(group: Group) -> None:
    """Killed before its commit: Kafka ends it after a minute, or at once for who fences the id."""
    recorded = spec_of("a", "b", topic=group.topic)
    leave_in_doubt(group, recorded)
    producer = group.recorder("old").own_producer()
    producer.begin_transaction()
    producer.produce(group.ledger, b"{}", partition=0)
    assert producer.flush(30) == 0
    parts = start_parts(group, recorded, why=None)
    heir = Heir(parts, lambda _: LedgerView(), lambda: group.sources, list, lambda _: None)
    began = time.monotonic()
    found = parts.recorder.look(group.sources)
    living = View("new", 9, (Member("new", "b", "s"),))
    late, taken = heir._inherit({"old"}, found, {}, living, 1)
    assert time.monotonic() - began < 30
    (state,) = taken.states
    assert not late.states and state.record.kind is Kind.RENEW and state.stopped is None
    assert group.holds(state.record)
    heir.close()


def test_what_was_given_beyond_an_open_transaction_is_adopted_later(
    group: Group,
) -> None:
    """It may be one that a dead member left open, which nobody ends but who takes that one over, by
    the same look perhaps. What was given before it is adopted at once."""
    today, (source,), access = spec_of("a", topic=group.topic), group.sources, group.kafka.access()
    parts = start_parts(group, today, why=None)

    def read_last(sources: list[TopicPartition]) -> LedgerView:
        return read_view(access, group.ledger, sources, spec_needed, None, is_stable=True)

    heir = Heir(parts, read_last, lambda: group.sources, list, lambda _: None)
    old = group.owning("old")
    blocking = group.kafka.open_transaction(group.ledger, [(b"dc1", b"{}")])
    given = replace(SETTLED, owner="new", batch=2)
    old.record(group.commit(given), {source: replace(SETTLED, owner="old")})
    began = time.monotonic()
    assert not heir._adopt([source], 1, is_unsure=False).states
    assert time.monotonic() - began < 30
    blocking.abort_transaction(30)
    group.kafka.until(lambda: bool(heir._adopt([source], 1, is_unsure=False).states))
    blocking = group.kafka.open_transaction(group.ledger, [(b"dc1", b"{}")])
    (state,) = heir._adopt([source], 1, is_unsure=False).states
    assert state.record == given
    blocking.abort_transaction(30)
    heir.close()


def test_a_load_spec_that_is_needed_only_since_it_was_read_ahead_is_read(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was settled needs none, and what the dead one recorded meanwhile needs an old one."""
    monkeypatch.setattr(ledger, "FIRST_CHUNK_MESSAGES", 1)
    recorded = spec_of("a", "b", topic=group.topic)
    leave_in_doubt(group, recorded)
    (source,), old, access = group.sources, group.recorder("old"), group.kafka.access()
    taken = old.take_over([source])
    settled = replace(SETTLED, owner="old", begin=10, end=10)
    old.finish_take_over(taken, group.commit(settled))

    def read(sources: list[TopicPartition], uncommitted: list[TopicPartition]) -> LedgerView:
        return read_view(access, group.ledger, sources, spec_needed, None, uncommitted)

    parts = replace(start_parts(group, recorded, why=None), read_ledger=read, read_stable=read)
    view = parts.read_stable([source], [])
    assert not view.specs and not view.complete
    record = intend("old", 10, 20, spec=recorded.digest())
    taken = old.take_over([source])
    old.finish_take_over(taken, group.commit(record))
    view = read_rest(parts, view, old.committed([source]))
    assert view.metadata(source) == encode(record)
    assert view.specs.keys() == {recorded.digest()}


def test_retired_partitions_are_found_by_their_records(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """Only those in doubt, and of this group; what nobody can see any more is told."""
    recorder, log = group.recorder("new"), group.kafka.log
    assert retired(recorder, log, ["x"], []) == []
    recorded = spec_of("a", "b", topic=group.topic)
    leave_in_doubt(group, recorded)
    gone = TopicPartition("deleted-topic", 3)
    assert retired(recorder, log, ["x"], [*group.sources, gone]) == group.sources
    assert "deleted-topic[3] is not configured any more, and its topic is gone" in caplog.text
    assert retired(recorder, log, [group.topic], []) == []
    started, recorder = start(group, spec_of(topic=group.topic), why=None, retiring=True)
    (state,) = started.states
    assert state.retiring and state.record.in_doubt
    assert retired(recorder, log, ["x"], []) == group.sources


def test_inserts_that_may_still_come_are_known_to_the_next_driver(group: Group) -> None:
    """The range is settled; they may land all the same, so its windows need room for them."""
    recorded = spec_of("a", "b", topic=group.topic)
    settled = Range(group.sources[0], 0, 5)
    insert_counters = {"a/s1": 3, "b/s1": 4}
    leave_in_doubt(group, recorded, late_insert_entry(settled, NOW + 60_000, insert_counters))
    started, _ = start(group, recorded, why=None)
    assert started.late_inserts == [PossibleLateInsert(insert_counters, NOW + 60_000)]
    more = Started(late_inserts=[PossibleLateInsert({"a/s1": 9}, NOW), *started.late_inserts])
    started.add(more)
    assert started.late_inserts == [
        PossibleLateInsert(insert_counters, NOW + 60_000),
        PossibleLateInsert({"a/s1": 9}, NOW),
    ]


@pytest.fixture
def two(kafka: Kafka) -> Iterator[Group]:
    made = Group(kafka, 2)
    yield made
    made.close()


def test_what_was_read_ahead_is_only_read_on(two: Group) -> None:
    """A start of another partition has told of a late insert since."""
    recorded, first = spec_of("a", "b", topic=two.topic), two.sources[:1]
    leave_in_doubt(two, recorded)
    read: list[list[TopicPartition]] = []
    parts = start_parts(two, recorded, why=None, read=read)
    ahead = read_ahead(parts, first)
    settled, insert_counters = Range(two.sources[1], 0, 5), {"a/s1": 3}
    late = late_insert_entry(settled, NOW + 60_000, insert_counters, "a@0")
    leave_in_doubt(two, recorded, late, partition=1)
    started = take_over(parts, first, ahead=ahead)
    assert read == [first]
    (state,) = started.states
    assert (state.record.kind, state.record.spec) == (Kind.RENEW, recorded.digest())
    assert started.late_inserts == [PossibleLateInsert(insert_counters, NOW + 60_000, "a@0")]


def test_a_new_partition_of_a_topic_that_stopped_long_ago_begins_at_its_beginning(
    two: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints name its other partitions, and have no record of them. It is taken over alone,
    and what it held before that is not passed over."""
    monkeypatch.setattr(ledger, "FIRST_CHUNK_MESSAGES", 1)
    today, access = spec_of("a", "b", topic=two.topic), two.kafka.access()
    leave_in_doubt(two, today)
    busy = TopicPartition(two.kafka.topic(), 0)
    entry = record_entry(busy, replace(SETTLED, owner="busy"), BACKGROUND)
    recorder = two.recorder("busy")
    checkpoint = checkpoint_entries([entry], [two.sources[0]])
    for more in ((), checkpoint, ()):
        commit = Commit({busy: replace(SETTLED, owner="busy")}, (*more, entry))
        recorder.finish_take_over(recorder.take_over([busy]), commit)
    two.kafka.produce(two.topic, numbered(20), 1)

    def read(sources: list[TopicPartition], uncommitted: list[TopicPartition]) -> LedgerView:
        return read_view(access, two.ledger, sources, lambda _: None, None, uncommitted)

    parts = replace(start_parts(two, today, why=None), read_ledger=read, start="latest")
    (state,) = take_over(parts, [two.sources[1]]).states
    assert (state.stopped, state.settled) == (None, 0)


def test_what_was_in_doubt_when_it_was_adopted_is_not_sent_as_the_first_one(group: Group) -> None:
    """An heir that was to probe it recorded it as it was, and did not hear of its commit."""
    recorded = spec_of("a", "b", topic=group.topic)
    leave_in_doubt(group, recorded, owner="new")
    parts = start_parts(group, recorded, why=None)
    heir = Heir(parts, lambda _: LedgerView(), lambda: group.sources, list, lambda _: None)
    (state,) = heir._adopt(group.sources, 1, is_unsure=True).states
    assert (state.record.owner, state.record.attempt) == ("new", 1)
    assert state.stopped is None and not state.has_to_be_probed
    assert not assigned(state, NOW, looks_for_fields=False).is_first
    heir.close()


def test_a_leader_that_tells_nothing_of_a_cut_holds_back_its_own_partition_alone(
    two: Group,
) -> None:
    """Both have changed their leader since they were recorded."""
    today = spec_of("a", topic=two.topic)
    topic_id = two.kafka.log.topics([two.topic])[two.topic][0]
    settled = replace(
        SETTLED, owner="old", topic_id=topic_id, spec=today.digest(), begin=5, end=5, epoch=1000
    )
    records = dict.fromkeys(two.sources, settled)
    for number in (0, 1):
        two.kafka.produce(two.topic, numbered(20), number)
    old = two.recorder("old")
    entries = (spec_entry(today.digest(), today.canonical()),)
    entries += tuple(record_entry(source, settled, Background()) for source in records)
    old.finish_take_over(old.take_over(records), Commit(records, entries))

    def find_cuts(points: Mapping[TopicPartition, EpochOffset]) -> Cuts:
        assert points == dict.fromkeys(two.sources, EpochOffset(5, 1000))
        return Cuts({}, {two.sources[0]: "no answer for 3 s"})

    parts = replace(start_parts(two, today, why=None), find_cuts=find_cuts)
    states = take_over(parts, two.sources).states
    assert [state.is_unseen for state in states] == [True, False]
    assert [(s.stopped, s.stable_end) for s in states] == [(None, 5), (None, 20)]
    assert states[0].record.epoch == 1000


def test_what_somebody_else_recorded_since_it_was_read_ahead_is_read_anew(two: Group) -> None:
    recorded, read = spec_of("a", "b", topic=two.topic), list[list[TopicPartition]]()
    parts = start_parts(two, spec_of("a", topic=two.topic), why=None, read=read)
    ahead = read_ahead(parts, two.sources)
    leave_in_doubt(two, recorded)
    started = take_over(parts, two.sources[:1], ahead=ahead)
    assert read == [two.sources, two.sources[:1]]
    (state,) = started.states
    assert (state.record.kind, state.record.spec) == (Kind.RENEW, recorded.digest())


def away(*_: object) -> str | None:
    raise TransientError("simulated: shard s2 is away")


def unreadable(text: str) -> LoadSpec:
    raise TerminalError("another version of Sluice wrote it")


def as_they_were(started: Started, *specs: LoadSpec) -> bool:
    """Whether all go on under their load specs: neither decided about nor given more time."""
    states = sorted(started.states, key=lambda state: state.source)
    assert [state.record.spec for state in states] == [spec.digest() for spec in specs]
    assert {state.record.deadline_ms for state in states} == {intend("old", 0, 10).deadline_ms}
    assert {(state.record.kind, state.record.owner) for state in states} == {(Kind.RENEW, "new")}
    return not any(state.stopped or state.has_to_be_probed for state in states)


def test_an_heir_takes_over_as_it_is_what_a_shard_that_is_away_would_have_to_say(
    two: Group,
) -> None:
    """The other partitions of the dead one go on: they may need other shards. A start needs all."""
    recorded = spec_of("a", "b", topic=two.topic)
    today = replace(recorded, range_bytes_max=2 << 20)
    leave_in_doubt(two, recorded)
    leave_in_doubt(two, today, partition=1)
    parts = replace(start_parts(two, today, why=None), why_not_executable=away)
    with pytest.raises(TransientError, match="s2 is away"):
        take_over(parts, two.sources)
    started = take_over(replace(parts, bears_outages=True), two.sources)
    assert as_they_were(started, recorded, today)
    assert started.unasked == {(recorded.digest(), two.topic)}
    assert started.specs.keys() == {recorded.digest(), today.digest()}


@pytest.mark.parametrize("why", ["it was refused", "nobody can read it", "its window forgot"])
def test_an_heir_keeps_what_is_known_though_nobody_says_whether_it_can_be_probed(
    two: Group, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """Its loop would not know of a load spec that was refused: the next reading has no such one."""
    recorded, asked = spec_of("a", "b", topic=two.topic), list[str]()

    def why_no_probe(_: LoadSpec, topic: str, is_recorded: bool) -> str | None:
        asked.append(topic)
        return away()

    for number in range(2):
        leave_in_doubt(two, recorded, partition=number)
    today = replace(recorded, range_bytes_max=2 << 20)
    world = World(two.sources, today.tables)
    if why == "nobody can read it":
        monkeypatch.setattr(starting, "parse_spec", unreadable)
    elif why == "its window forgot":
        world.own["a"].fill(2 * world.own["a"].blocks)
    parts = start_parts(two, today, why="x" if why == "it was refused" else None, world=world)
    started = take_over(replace(parts, why_no_probe=why_no_probe, bears_outages=True), two.sources)
    states = started.states
    assert [(s.stopped, s.has_to_be_probed) for s in states] == [(None, True)] * 2
    assert {(s.record.kind, s.record.spec) for s in states} == {(Kind.RENEW, recorded.digest())}
    assert asked == [two.topic], "once for all of its partitions"


@pytest.mark.parametrize("bears_outages", [True, False])
def test_an_heir_does_not_take_a_window_that_was_never_read_for_one_that_forgot(
    group: Group, bears_outages: bool
) -> None:
    recorded = spec_of("a", "b", topic=group.topic)
    leave_in_doubt(group, recorded)
    world = World(group.sources, recorded.tables)
    world.outages["s1"] = "simulated: nobody answers"
    parts = start_parts(group, recorded, why=None, world=world)
    started = take_over(replace(parts, bears_outages=bears_outages), group.sources)
    assert as_they_were(started, recorded) is bears_outages


def test_an_heir_waits_for_no_window_that_nobody_reads_any_more(group: Group) -> None:
    """It would wait for ever, without a word."""
    recorded = spec_of("a", topic=group.topic)
    leave_in_doubt(group, recorded)
    world = World(group.sources, recorded.tables)
    parts = replace(start_parts(group, recorded, why=None, world=world), bears_outages=True)
    (state,) = take_over(parts, group.sources).states
    assert "table entry b is not configured any more" in str(state.stopped)


def test_of_topics_that_go_to_the_same_tables_servers_are_asked_once() -> None:
    """Of many topics, each would wait for a shard that is away."""
    tables = (table_spec("t", ("a", "b")), table_spec("u", ("c",)))
    recorded, asked = LoadSpec("p", "dc1", "chdb 1", 1 << 20, tables), list[str]()

    def why_not(_: LoadSpec, topic: str) -> str | None:
        asked.append(topic)
        return None if topic == "c" else away()

    parts: Any = SimpleNamespace(why_not_executable=why_not, bears_outages=True)
    found = starting._why_refused(parts, recorded, [*"abc"])
    assert found == (None, ["a", "b"])
    assert asked == ["a", "c"]


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_topic_that_has_come_to_an_id_goes_on(group: Group, *, in_doubt: bool) -> None:
    """It was recorded when its brokers gave none: it is the same topic. What is in doubt keeps the
    tokens that its blocks have."""
    today = spec_of("a", topic=group.topic)
    group.kafka.produce(group.topic, numbered(20))
    made = intend("old", 0, 10) if in_doubt else replace(SETTLED, owner="old", begin=10, end=10)
    record = replace(made, topic_id=NO_TOPIC_ID, spec=today.digest())
    background = replace(BACKGROUND, insert_counters={"a/s1": 0}) if in_doubt else Background()
    entries = (
        spec_entry(today.digest(), today.canonical()),
        record_entry(group.sources[0], record, background),
    )
    old = group.recorder("old")
    old.finish_take_over(old.take_over(group.sources), Commit({group.sources[0]: record}, entries))
    started, _ = start(group, today, why=None)
    (state,) = started.states
    told = group.kafka.log.topics([group.topic])[group.topic][0]
    assert state.stopped is None and told != NO_TOPIC_ID
    assert state.record.topic_id == (NO_TOPIC_ID if in_doubt else told)
    assert not _judge_hand(record, state.record)
