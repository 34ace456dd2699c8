"""What a member of a fleet takes over from the dead, beside its loop (R25)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.clickhouse.comparing import Today
from sluice.core.errors import TransientError
from sluice.core.fleet.view import Member, View
from sluice.core.ledger import Background, CommittedOffset, LedgerView
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, Kind, Record
from sluice.driver import connector, inheriting
from sluice.driver.beginning import StartRefusedError
from sluice.driver.inheriting import Heir
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.start import Started, StartParts
from sluice.driver.state import PartitionState
from sluice.kafka.recorder import TakeOver
from tests.driver.loop_world import table_spec

P0, P1 = TopicPartition("a", 0), TopicPartition("a", 1)
DEAD = "run-dead"
STOPPED = Record(Kind.INTEND, 3, 1, 0, 10, DEAD, 0, "A" * 11, "f" * 16, 1, 1)


class Group:
    """The heir's recorder: one partition, which names a dead id and stopped here."""

    def __init__(self) -> None:
        self.at = CommittedOffset.of(STOPPED)
        self.fenced: list[Collection[str]] = []

    def look(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return dict.fromkeys(sources, self.at)

    def committed(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return self.look(sources)

    def close(self) -> None:
        """Nothing has to be closed."""

    def inherit(self, dead: Collection[str], sources: Iterable[TopicPartition]) -> TakeOver:
        return self.take(dead)

    def take(self, dead: Collection[str]) -> TakeOver:
        self.fenced.append(dead)
        return TakeOver({P0: self.at}, {P0: DEAD}, {})


def heir_of(group: Group) -> Heir:
    spec = SimpleNamespace(connector="c")
    planner = SimpleNamespace(owner="me", spec=spec)
    nothing: Any = lambda *_: None  # noqa: E731
    parts = SimpleNamespace(
        recorder=group,
        planner=planner,
        read_ledger=lambda sources, uncommitted: LedgerView(),
        read_stable=lambda sources, uncommitted: LedgerView(),
        read_on=nothing,
    )
    found = Heir(cast(StartParts, parts), lambda sources: LedgerView(), lambda: [P0], list, nothing)
    found._tried[P0] = group.at
    return found


def view(number: int, *silent: str) -> View:
    return View("me", number, (Member("me", "a", "s"),), silent=silent)


def test_an_id_that_reports_after_it_was_taken_over_is_fenced_again_though_all_of_it_stopped() -> (
    None
):
    """Until it is written off it counts (R24): nobody could reserve anything, for ever."""
    group = Group()
    heir, held = heir_of(group), {P0: STOPPED}
    assert not heir._step(held, view(1, DEAD), 1).inherited
    assert heir._step(held, view(10, DEAD), 1).inherited == {DEAD}
    assert not heir._step(held, view(20, DEAD), 1).inherited  # it is about to be written off
    assert heir._step(held, view(30, DEAD), 1).inherited == {DEAD}
    assert not heir._step(held, view(60), 1).inherited  # it was
    assert group.fenced == [{DEAD}, {DEAD}]


def test_nothing_is_taken_over_once_its_loop_has_ended() -> None:
    """The driver starts anew under another id, which would not know of it."""
    group = Group()
    heir = heir_of(group)
    assert not heir._step({P0: STOPPED}, view(1, DEAD), 1).inherited
    heir.close()
    assert not heir._step({P0: STOPPED}, view(10, DEAD), 1).inherited
    assert group.fenced == [{DEAD}]


def test_a_start_that_is_refused_holds_no_take_over_up() -> None:
    """Nor does it stay announced: an id that somebody is taking over is never written off."""
    group = Group()
    heir = heir_of(group)
    said: list[Collection[str]] = []
    heir._announce = said.append
    dead: Any = SimpleNamespace(
        see=lambda *_: None,
        to_inherit=lambda _: [DEAD, GENESIS],
        alive=lambda _: frozenset(),
        orphans=lambda *_: frozenset(),
    )
    heir._owners = dead

    def inherit(dead: Collection[str], sources: Iterable[TopicPartition]) -> TakeOver:
        if GENESIS in dead:
            raise StartRefusedError("simulated: the other loader still runs")
        return group.take(dead)

    group.inherit = inherit  # type: ignore[method-assign]
    read = heir._step({P0: STOPPED}, view(10, DEAD), 1)
    assert (read.inherited, read.inherits) == ({DEAD}, set())
    assert read.failure == "", "nor do looks fail"
    assert said == [{DEAD}, {DEAD, GENESIS}] and group.fenced == [{DEAD}]


def test_partitions_that_nobody_who_reports_has_are_counted() -> None:
    """Whoever inherits them: who may not, as its clock is off, counts them all the same, and so
    does who has taken them over and stopped them, since nobody loads them. Those of other members
    are counted, too, by which a standby knows that it is one."""
    group = Group()
    heir, held = heir_of(group), {P0: STOPPED}
    read = heir._step(held, view(1, DEAD), 1)
    assert (read.unowned, read.elsewhere) == (1, 0)
    reporting = View("me", 2, (Member("me", "a", "s"), Member(DEAD, "b", "s")))
    read = heir._step(held, reporting, 1)
    assert (read.unowned, read.elsewhere) == (0, 1)
    unwritten: Any = dict.fromkeys([P0, P1])
    group.look = lambda sources: unwritten  # type: ignore[method-assign]
    read = heir._step({}, reporting, 1)
    assert (read.unowned, read.elsewhere) == (2, 0)


def test_a_look_that_fails_says_why_and_whether_it_could_take_in_what_was_handed_over() -> None:
    """What it says of partitions without an owner is what the last one saw."""
    heir, held = heir_of(Group()), {P0: STOPPED}
    read = heir._step(held, view(1, DEAD), 1)
    assert (read.failure, read.could_adopt) == ("", True)

    def fail(*_: object) -> Any:
        raise TransientError("simulated: Kafka is away")

    heir._announce = fail
    read = heir._step(held, view(10, DEAD), 1)
    assert (read.failure, read.could_adopt) == ("simulated: Kafka is away", True)
    heir._sources = fail
    read = heir._step(held, view(11, DEAD), 1)
    assert (read.failure, read.could_adopt) == ("simulated: Kafka is away", False)
    assert (read.view, read.unowned) == (0, 1)


class Unrecorded(Group):
    """No partition has a record, but for those that another member hands over."""

    def __init__(self, led: set[TopicPartition]) -> None:
        super().__init__()
        self.records: dict[TopicPartition, CommittedOffset | None] = dict.fromkeys([P0, P1])
        self.led = led

    def look(self, sources: Iterable[TopicPartition]) -> Any:
        return {source: self.records[source] for source in sources}

    def inherit(self, dead: Collection[str], sources: Iterable[TopicPartition]) -> TakeOver:
        found = {source: at for source, at in self.look(sources).items() if at is None}
        return TakeOver(dict(found), dict.fromkeys(found, GENESIS), {})

    def first_records(self, parts: StartParts, taken: TakeOver, *_: Any, **keeps: bool) -> Started:
        """As one leaves partitions that have neither a record nor a leader."""
        settled = Record(Kind.SETTLE, 1, 1, 0, 0, "me", 0, "A" * 11, "f" * 16, 0, 0)
        begun = [s for s in taken.found if keeps or s in self.led]
        if not keeps:
            self.records |= dict.fromkeys(begun, CommittedOffset.of(settled))
        return Started([PartitionState(s, settled, Background(), 0, 0) for s in begun])


def heir_to(group: Unrecorded, sources: list[TopicPartition], patch: pytest.MonkeyPatch) -> Heir:
    patch.setattr(inheriting, "first_records", group.first_records)
    heir = heir_of(group)
    heir._tried.clear()
    heir._sources = lambda: sources
    return heir


def begun(heir: Heir, number: int, held: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
    read = heir._step(dict.fromkeys(held), view(number), 1)
    return [state.source for started in read.started for state in started.states]


def test_what_no_leader_told_of_is_tried_again_though_others_were_begun_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are inherited from the id of all that has no record, which it has too."""
    group, sources = Unrecorded(led=set()), [P0]
    heir = heir_to(group, sources, monkeypatch)
    assert begun(heir, 10) == []
    sources.append(P1)
    group.led |= {P0, P1}
    assert begun(heir, 12) == [P1]
    assert [begun(heir, number, [P1]) for number in range(13, 28)] == [[]] * 12 + [[P0]] * 3


def test_what_no_leader_told_of_is_taken_in_at_once_when_another_member_hands_it_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = Unrecorded(led=set())
    heir = heir_to(group, [P0], monkeypatch)
    assert begun(heir, 10) == []
    given = Record(Kind.SETTLE, 2, 1, 0, 0, "me", 0, "A" * 11, "f" * 16, 0, 0)
    group.records[P0] = CommittedOffset.of(given)
    assert begun(heir, 12) == [P0]


def test_an_heir_asks_only_the_shards_of_a_topic_whether_its_load_spec_can_be_executed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another topic's may be away."""
    tables = (table_spec("t", ("a",)), replace(table_spec("u", ("b",)), shards=("s2",)))
    recorded, asked = LoadSpec("p", "c", "chdb 1", 1 << 20, tables), list[LoadSpec]()

    def read_today(_: Any, recorded: list[LoadSpec]) -> Today:
        asked.extend(recorded)
        return Today("chdb 2", "UTC", frozenset({"s1", "s2"}), {})

    monkeypatch.setattr(connector, "read_today", read_today)
    assembly: Any = object.__new__(connector._Assembly)
    assembly.configuration, assembly.specs = None, LoadSpecs(recorded)
    assert "chdb 2" in str(assembly._why_not_executable(recorded, "a", bears_outages=True))
    assert [[table.entry for table in spec.tables] for spec in asked] == [["t"]]
