"""Who owns what: a recorder over a group that a test writes, for what no broker does at the right
moment. The same with a real broker: test_recorder.py and test_take_over.py."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from sluice.core.errors import (
    ForeignHandsError,
    OwnerChangedError,
    SluiceError,
    TransientError,
)
from sluice.core.ledger import Commit, CommittedOffset, LedgerEntry
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, Record
from sluice.kafka import recorder as recorder_module
from sluice.kafka.errors import FencedError, KafkaUnavailableError, UnknownCommitError
from sluice.kafka.recorder import Recorder, StopRequestedError, TakeOver, _OwnProducer
from sluice.kafka.transactions import RecorderNames
from tests.kafka.groups import SETTLED, intend

P0, P1, P2 = (TopicPartition("t", number) for number in range(3))
Held = dict[TopicPartition, CommittedOffset | None]


def at(record: Record) -> CommittedOffset:
    return CommittedOffset.of(record)


class Named(str):
    """A producer."""

    def poll(self, seconds: float) -> None:
        """It has nothing to tell."""


class Scripted(Recorder):
    """A recorder of owner `me` whose group and producers are the test's."""

    def __init__(self, held: Held) -> None:
        self.held = dict(held)
        self.names = RecorderNames("g", "ledger", "letters", "me")
        self._stop = threading.Event()
        self._own = _OwnProducer(lambda lost: self._initialised("me", lost))
        self._recorded = set(held)
        self.ids_initialised: list[str] = []
        #: Tells that the last producer has lost a broker.
        self.lost: Callable[[], None] = lambda: None
        self.commits: list[tuple[object, Commit]] = []
        self.failures: list[SluiceError | None] = []
        #: Called before each stable reading.
        self.before_reading: Callable[[int], None] = lambda number: None
        self.readings = 0
        self.paused = 0.0

    def committed(self, sources: Iterable[TopicPartition]) -> Held:
        self.readings += 1
        self.before_reading(self.readings)
        return {source: self.held.get(source) for source in sources}

    def look(self, sources: Iterable[TopicPartition]) -> Held:
        return {source: self.held.get(source) for source in sources}

    def _initialised(self, owner: str, lost: Callable[[], None] = lambda: None) -> Any:
        self.ids_initialised.append(owner)
        self.lost = lost
        return Named(f"producer of {owner}")

    def _transact(self, producer: Any, commit: Commit) -> None:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        self._own.sends(producer)
        self.commits.append((producer, commit))
        self.held.update({source: at(record) for source, record in commit.records.items()})

    def _pause(self, seconds: float) -> None:
        self.paused += seconds


OLD = replace(SETTLED, owner="old")
OTHER = replace(SETTLED, owner="other")
MINE = replace(SETTLED, owner="me")
NEXT = intend("me", 0, 10)


def test_what_differs_is_told_of_each_partition() -> None:
    foreign = CommittedOffset(7, None)
    one = Scripted({P0: at(MINE), P1: foreign, P2: None})
    different = one.differences(dict.fromkeys((P0, P1, P2), MINE))
    assert set(different) == {P1, P2}
    assert "holds offset 7" in different[P1] and "holds nothing" in different[P2]
    assert one.differences({}) == {}


def test_a_record_of_another_owner_ends_the_driver_and_of_nobody_does_not() -> None:
    genesis = replace(MINE, owner=GENESIS)
    assert set(Scripted({P0: at(genesis)}).differences({P0: MINE})) == {P0}
    assert set(Scripted({P0: at(NEXT)}).differences({P0: MINE})) == {P0}
    with pytest.raises(OwnerChangedError, match=r"t\[1\] of group g belongs to other"):
        Scripted({P0: at(MINE), P1: at(OTHER)}).differences(dict.fromkeys((P0, P1), MINE))


def test_who_has_lost_a_broker_initialises_once_kafka_answers_and_before_it_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recorder_module, "RENEWED_AFTER_SECONDS", 0.0)
    one = Scripted({P0: at(MINE)})
    looks: list[tuple[int, int]] = []
    one.before_reading = lambda number: looks.append((number, one.initialised))
    assert one.differences({P0: MINE}) == {} and one.initialised == 1
    one.lost()
    assert one.differences({P0: MINE}) == {} and one.initialised == 1, "it has sent no offsets"
    one.record(Commit({P0: MINE}), {P0: MINE})
    assert one.differences({P0: MINE}) == {} and one.initialised == 2
    assert looks == [(1, 1), (2, 1), (3, 1), (4, 2)]
    monkeypatch.setattr(recorder_module, "RENEWED_AFTER_SECONDS", 3600.0)
    one.record(Commit({P0: MINE}), {P0: MINE})
    one.lost()
    assert one.differences({P0: MINE}) == {} and one.initialised == 2, "not again and again"


def test_every_old_owner_is_fenced_once_and_then_read() -> None:
    one = Scripted({P0: at(OLD), P1: at(OTHER), P2: at(replace(OLD, batch=9))})
    taken = one.take_over([P0, P1, P2])
    assert one.ids_initialised == ["me", "old", "other"]
    assert taken.owners == {P0: "old", P1: "other", P2: "old"}
    assert taken.found == one.held
    assert set(taken.producers) == {"old", "other"}


def test_an_owner_that_appears_before_the_stable_reading_is_fenced_too() -> None:
    one = Scripted({P0: at(OLD), P1: None})

    def appear(number: int) -> None:
        if number == 1:
            one.held[P1] = at(OTHER)

    one.before_reading = appear
    taken = one.take_over([P0, P1])
    assert one.ids_initialised == ["me", GENESIS, "old", "other"]
    assert taken.owners == {P0: "old", P1: "other"} and one.readings == 2


def test_who_takes_over_what_is_its_own_is_not_fenced_by_itself() -> None:
    one = Scripted({P0: at(MINE), P1: at(OLD)})
    taken = one.take_over([P0, P1])
    assert one.ids_initialised == ["me", "old"]
    one.finish_take_over(taken, Commit({P0: MINE, P1: MINE}, ()))
    one.record(Commit({P0: NEXT}), {P0: MINE})
    assert [producer for producer, _ in one.commits] == [
        "producer of me",
        "producer of old",
        "producer of me",
    ]


def test_an_owner_may_be_said() -> None:
    """By a person's decision, where the record that named it is gone."""
    one = Scripted({P0: None})
    taken = one.take_over([P0], lambda source, found: "said")
    assert (taken.owners, one.ids_initialised) == ({P0: "said"}, ["me", "said"])


def taken_over(one: Scripted, **owners: str) -> TakeOver:
    named = {TopicPartition("t", int(key[1:])): owner for key, owner in owners.items()}
    producers = {owner: f"producer of {owner}" for owner in named.values()}
    return TakeOver(dict(one.held), named, cast(Any, producers))


def test_first_records_are_written_by_the_old_owners_ids() -> None:
    """Each with the entries of its partitions; those of none stand in the first transaction."""
    one = Scripted({P0: at(OLD), P1: at(OTHER), P2: at(OLD)})
    taken = taken_over(one, p0="old", p1="other", p2="old")
    entries = (
        LedgerEntry(None, {"type": "load_spec"}),
        *(LedgerEntry(source, {"of": source.partition}) for source in (P0, P1, P2)),
    )
    one.finish_take_over(taken, Commit({P2: MINE, P0: MINE, P1: MINE}, entries))
    assert [producer for producer, _ in one.commits] == ["producer of old", "producer of other"]
    first, second = (commit for _, commit in one.commits)
    assert (set(first.records), set(second.records)) == ({P0, P2}, {P1})
    assert first.entries == (entries[0], entries[1], entries[3])
    assert second.entries == (entries[2],)
    assert taken.producers == {}


def test_a_take_over_without_records_writes_nothing() -> None:
    one = Scripted({P0: at(OLD)})
    one.finish_take_over(taken_over(one, p0="old"), Commit({}))
    assert one.commits == []


def test_another_successor_that_was_let_through_ends_this_one() -> None:
    one = Scripted({P0: at(OLD)})
    one.failures = [FencedError("fenced")]
    with pytest.raises(OwnerChangedError, match="at the same moment"):
        one.finish_take_over(taken_over(one, p0="old"), Commit({P0: MINE}))


def test_a_first_record_of_unknown_outcome_is_looked_for() -> None:
    def finish(now: CommittedOffset | None) -> None:
        one = Scripted({P0: at(OLD)})
        taken = taken_over(one, p0="old")
        one.failures = [UnknownCommitError("no answer")]
        one.held[P0] = now
        one.finish_take_over(taken, Commit({P0: MINE}))

    finish(at(MINE))
    with pytest.raises(TransientError, match="was not committed"):
        finish(at(OLD))
    with pytest.raises(OwnerChangedError, match="taken over by other"):
        finish(at(OTHER))
    with pytest.raises(TransientError, match="which is no record"):
        finish(CommittedOffset(3, None))


def test_a_record_is_written_by_the_own_producer_which_is_kept() -> None:
    one = Scripted({P0: at(MINE)})
    assert one.differences({P0: MINE}) == {}
    one.record(Commit({P0: NEXT}), {P0: MINE})
    one.record(Commit({P0: intend("me", 10, 20)}), {P0: NEXT})
    assert one.ids_initialised == ["me"]
    assert [producer for producer, _ in one.commits] == ["producer of me"] * 2


@pytest.mark.parametrize("failure", [UnknownCommitError("lost"), FencedError("fenced")])
def test_what_became_of_a_record_is_read(
    monkeypatch: pytest.MonkeyPatch, failure: SluiceError
) -> None:
    """By a new producer with the same id, which fences what the old one still sends."""
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.01)

    def record(now: CommittedOffset | None) -> Scripted:
        one = Scripted({P0: at(MINE)})
        one.own_producer()
        one.failures = [failure]
        one.held[P0] = now
        one.record(Commit({P0: NEXT}), {P0: MINE})
        return one

    assert record(at(NEXT)).ids_initialised == ["me", "me"]
    with pytest.raises(KafkaUnavailableError, match="was not committed"):
        record(at(MINE))
    with pytest.raises(ForeignHandsError, match="holds offset 3"):
        record(CommittedOffset(3, None))
    with pytest.raises(OwnerChangedError):
        record(at(OTHER))


def test_who_is_fenced_waits_for_a_successor_before_it_fences_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Scripted({P0: at(MINE), P1: at(MINE)})
    one.own_producer()
    one.failures = [FencedError("fenced")]

    def succeed(number: int) -> None:
        if number == 3:
            one.held[P1] = at(OTHER)

    one.before_reading = succeed
    with pytest.raises(OwnerChangedError, match=r"t\[1\] of group g was taken over by other"):
        one.record(Commit(dict.fromkeys((P0, P1), NEXT)), dict.fromkeys((P0, P1), MINE))
    assert one.ids_initialised == ["me"], "it fenced its successor"
    assert one.paused > 0, "it asks without a pause"


def test_an_unknown_outcome_needs_no_wait_for_a_successor() -> None:
    one = Scripted({P0: at(NEXT)})
    assert one.differences({P0: NEXT}) == {}
    one.failures = [UnknownCommitError("lost")]
    one.record(Commit({P0: NEXT}), {P0: MINE})
    assert one.readings == 2


def test_waiting_ends_when_the_driver_is_to_stop() -> None:
    one = Scripted({})
    Recorder._pause(one, 0.0)
    one._stop.set()
    with pytest.raises(KafkaUnavailableError, match="asked to stop"):
        Recorder._pause(one, 60.0)


class Stopping(Scripted):
    """It is to stop, and each first answer of Kafka to an initialisation is a refusal."""

    def __init__(self, held: Held) -> None:
        super().__init__(held)
        self._access = cast(Any, None)
        self._stop.set()

    _initialised, _pause = Recorder._initialised, Recorder._pause  # type: ignore[assignment]


def test_who_is_to_stop_is_in_doubt_only_by_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One refusal while brokers are restarted, and what is loaded would not be settled."""
    answers: list[Any] = []
    monkeypatch.setattr(recorder_module, "_initialise", lambda of: answers.pop(0))
    refused = (None, KafkaUnavailableError("the coordinator loads"))
    one, made = Stopping({P0: at(MINE)}), (Named("producer"), None)
    answers[:] = [refused, made]
    with pytest.raises(TransientError, match="asked to stop"):
        one.differences({P0: MINE})
    assert one.differences({P0: MINE}) == {}
    one.failures, answers[:] = [UnknownCommitError("lost")], [refused]
    with pytest.raises(StopRequestedError):
        one.record(Commit({P0: NEXT}), {P0: MINE})
    one, answers[:] = Stopping({P0: at(MINE)}), [made, refused]
    taken = one.take_over([P0])
    one.failures = [UnknownCommitError("lost")]
    with pytest.raises(StopRequestedError):
        one.finish_take_over(taken, Commit({P0: NEXT}))


def test_a_stable_reading_is_asked_for_again_while_a_transaction_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Any] = [KafkaUnavailableError("open"), KafkaUnavailableError("open"), {P0: None}]

    def ask(reader: object, wanted: list[TopicPartition], seconds: float) -> Held:
        assert wanted == [P0]
        answer = answers.pop(0)
        if isinstance(answer, SluiceError):
            raise answer
        return cast(Held, answer)

    monkeypatch.setattr(recorder_module, "ask", ask)
    one = Scripted({})
    one._reader = cast(Any, None)
    assert Recorder.committed(one, iter([P0])) == {P0: None}
    assert one.paused > 0
    assert Recorder.committed(one, []) == {}
    monkeypatch.setattr(recorder_module, "COMMIT_PATIENCE_SECONDS", -1.0)
    answers[:] = [KafkaUnavailableError("open")]
    with pytest.raises(KafkaUnavailableError):
        Recorder.committed(one, [P0])


ITS = replace(SETTLED, owner="b", batch=2)


def handed_over(one: Scripted, records: dict[TopicPartition, Record]) -> None:
    """A transaction of unknown outcome, in which P0 was handed over to b."""
    one.own_producer()
    one.failures = [UnknownCommitError("no answer")]
    one.record(Commit({P0: ITS, **records}), dict.fromkeys((P0, *records), MINE))


def test_what_was_handed_over_proves_nothing_of_its_transaction() -> None:
    """It was aborted, P0 was taken over by another one, and given to the same owner; P1 stopped
    there, and goes on naming who wrote it (R25)."""
    with pytest.raises(OwnerChangedError, match="belongs to b"):
        handed_over(Scripted({P0: at(ITS), P1: at(MINE)}), {P1: NEXT})
    handed_over(Scripted({P0: at(ITS), P1: at(NEXT)}), {P1: NEXT})
    # Its new owner has gone on, or handed it on.
    handed_over(Scripted({P0: at(OTHER), P1: at(NEXT)}), {P1: NEXT})
    with pytest.raises(KafkaUnavailableError, match="was not committed"):
        handed_over(Scripted({P0: at(MINE), P1: at(MINE)}), {P1: NEXT})


def test_what_came_back_while_this_one_slept_was_another_ones_meanwhile() -> None:
    shared = Scripted({P0: at(replace(MINE, batch=9))})
    shared.names = replace(shared.names, is_shared=True)
    with pytest.raises(OwnerChangedError, match="given back"):
        shared.differences({P0: MINE})
    alone = Scripted({P0: at(replace(MINE, batch=9))}).differences({P0: MINE})
    assert set(alone) == {P0}  # nobody gives back to who shares with nobody
    rolled_back = Scripted({P0: at(MINE)}).differences({P0: replace(MINE, batch=9)})
    assert set(rolled_back) == {P0}


def test_of_a_transaction_that_only_hands_over_nothing_has_to_be_known() -> None:
    for now in (ITS, OTHER):
        one = Scripted({P0: at(now)})
        handed_over(one, {})
        assert one._recorded.isdisjoint({P0})
    with pytest.raises(KafkaUnavailableError, match="was not committed"):
        handed_over(Scripted({P0: at(MINE)}), {})


def test_what_was_handed_over_is_nobodys_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.01)
    one = Scripted({P0: at(ITS), P1: at(NEXT)})
    one.adopt([P0, P1])
    one.own_producer()
    one.failures = [FencedError("fenced")]
    one.record(Commit({P0: ITS, P1: NEXT}), dict.fromkeys((P0, P1), MINE))
    one.failures = [FencedError("fenced")]
    one.record(Commit({P1: NEXT}), {P1: MINE})


def test_of_the_dead_all_is_taken_over_and_nothing_else() -> None:
    one = Scripted({P0: at(OLD), P1: at(OTHER), P2: at(MINE)})
    taken = one.inherit({"old"}, [P0, P1, P2])
    assert one.ids_initialised == ["old"], "its own id would fence its own loop"
    assert taken.found == {P0: at(OLD)} and taken.owners == {P0: "old"}
    one.finish_take_over(taken, Commit({P0: MINE}))
    assert [producer for producer, _ in one.commits] == ["producer of old"]


def test_what_the_dead_were_given_last_is_seen_after_they_are_fenced() -> None:
    one = Scripted({P0: at(OLD), P1: at(OTHER)})
    real = one._initialised

    def initialised(owner: str, lost: Callable[[], None] = lambda: None) -> Any:
        one.held[P1] = at(replace(OLD, batch=7))
        return real(owner)

    one._initialised = initialised  # type: ignore[method-assign]
    assert set(one.inherit({"old"}, [P0, P1]).found) == {P0, P1}


def test_nobody_inherits_from_itself() -> None:
    with pytest.raises(AssertionError):
        Scripted({P0: at(MINE)}).inherit({"me"}, [P0])
