"""Who may write the next record, on a real broker (R4, H1 and H4)."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from sluice.core.errors import OwnerChangedError, SluiceError, TransientError
from sluice.core.ledger import Commit, CommittedOffset
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, encode
from sluice.kafka import transactions as transactions_module
from sluice.kafka.clients import make_producer
from sluice.kafka.errors import UnknownCommitError
from sluice.kafka.recorder import Recorder
from sluice.kafka.transactions import initialise
from tests.kafka.groups import SETTLED, Group, intend
from tests.support.kafka import Kafka


def last_words(group: Group, zombie: Recorder, begin: int) -> None:
    """A woken zombie records on, as it believes."""
    owner = zombie.names.owner
    zombie.record(
        group.commit(intend(owner, begin, begin + 5)),
        dict.fromkeys(group.sources, replace(SETTLED, owner=owner)),
    )


def test_the_first_owner_comes_from_nobody(group: Group) -> None:
    driver = group.recorder("a")
    taken = driver.take_over(group.sources)
    assert taken.found == {group.sources[0]: None}
    assert taken.owners == {group.sources[0]: GENESIS}
    driver.finish_take_over(taken, group.first(driver))
    assert group.holds(replace(SETTLED, owner="a"))


def test_an_id_is_initialised_at_once(kafka: Kafka) -> None:
    """A new producer knew no broker yet, and looked for one half a second later."""
    topic, took = kafka.topic(), list[float]()
    for number in range(5):
        producer = make_producer(kafka.access(), f"{topic}-{number}", 10_000, topic)
        began = time.monotonic()
        assert initialise(producer) is None
        took.append(time.monotonic() - began)
    assert min(took) < 0.45, took


def test_a_woken_zombie_under_its_old_id(group: Group) -> None:
    zombie = group.owning("a")
    zombie.record(group.commit(intend("a", 0, 10)), {})
    successor = group.recorder("b")
    taken = successor.take_over(group.sources)
    assert taken.found[group.sources[0]] == CommittedOffset(0, encode(intend("a", 0, 10)))
    renewed = replace(intend("b", 0, 10), attempt=2)
    successor.finish_take_over(taken, group.commit(renewed))
    with pytest.raises(OwnerChangedError, match=r"(taken over by|belongs to) b"):
        last_words(group, zombie, 10)
    assert group.holds(renewed)
    successor.record(group.commit(intend("b", 10, 20)), {})
    assert group.holds(intend("b", 10, 20))


def test_a_zombie_of_any_generation(group: Group) -> None:
    """A, then B, then C, then D; each of the others wakes and is under another id (H1)."""
    drivers = [group.owning(owner) for owner in "abcd"]
    for zombie in drivers[:-1]:
        with pytest.raises(OwnerChangedError):
            last_words(group, zombie, 20)
        assert group.holds(replace(SETTLED, owner="d"))
    drivers[-1].record(group.commit(intend("d", 0, 5)), {})
    assert group.holds(intend("d", 0, 5))


def test_a_successor_that_paused_between_init_and_commit(group: Group) -> None:
    group.owning("a")
    paused = group.recorder("b")
    taken = paused.take_over(group.sources)
    winner = group.owning("c")
    winner.record(group.commit(intend("c", 0, 7)), {})
    with pytest.raises(OwnerChangedError):
        paused.finish_take_over(taken, group.first(paused))
    assert group.holds(intend("c", 0, 7))
    assert [owner for owner, _ in group.ledger_kinds()] == ["a", "c", "c"]


@pytest.mark.parametrize("before", ["", "a"], ids=["nobody", "an owner"])
def test_of_two_successors_at_once_one_is_let_through(group: Group, before: str) -> None:
    if before:
        group.owning(before)
    rivals = [group.recorder(owner) for owner in ("b", "c")]
    taken = [rival.take_over(group.sources) for rival in rivals]
    outcomes: dict[str, SluiceError | None] = {}

    def finish(number: int) -> None:
        rival = rivals[number]
        try:
            rival.finish_take_over(taken[number], group.first(rival))
            outcomes[rival.names.owner] = None
        except SluiceError as error:
            outcomes[rival.names.owner] = error

    threads = [threading.Thread(target=finish, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    winners = [owner for owner, error in outcomes.items() if error is None]
    assert len(outcomes) == 2 and len(winners) == 1, outcomes
    assert all(
        isinstance(error, OwnerChangedError) for error in outcomes.values() if error is not None
    )
    assert group.holds(replace(SETTLED, owner=winners[0]))


def test_successors_that_run_free(group: Group) -> None:
    """However they interleave, whoever believes to own the group can record, alone."""
    group.owning("a")
    owning: list[Recorder] = []

    def run(owner: str) -> None:
        try:
            owning.append(group.owning(owner))
        except OwnerChangedError:
            pass

    threads = [threading.Thread(target=run, args=(owner,)) for owner in "bcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert owning
    recorded = []
    for driver in owning:
        owner = driver.names.owner
        try:
            last_words(group, driver, 0)
            recorded.append(owner)
        except OwnerChangedError:
            pass
    assert len(recorded) == 1
    assert group.holds(intend(recorded[0], 0, 5))


def test_an_open_transaction_of_the_old_owner_is_not_waited_for(group: Group) -> None:
    """The old owner was killed in the middle of its transaction, whose time-out is a minute."""
    old = group.owning("a")
    producer = old.own_producer()
    producer.begin_transaction()
    commit = group.commit(intend("a", 0, 10))
    transactions_module._write(producer, transactions_module.Content("dc1", old.names, 0, commit))
    parts = transactions_module._split(dict.fromkeys(group.sources, intend("a", 0, 10)))
    producer.send_offsets_to_transaction(parts[0], old._reader.consumer_group_metadata(), 10)
    producer.flush(10)
    started = time.monotonic()
    group.owning("b")
    assert time.monotonic() - started < 30
    assert group.holds(replace(SETTLED, owner="b"))
    assert [owner for owner, _ in group.ledger_kinds()] == ["a", "b"]


def test_partitions_of_several_old_owners(kafka: Kafka) -> None:
    group = Group(kafka, partitions=3)
    left, middle, right = group.sources
    for owner, source in (("a", left), ("b", middle)):
        driver = group.recorder(owner)
        taken = driver.take_over([source])
        first = Commit({source: replace(SETTLED, owner=owner)})
        driver.finish_take_over(taken, first)
    successor = group.recorder("c")
    taken = successor.take_over(group.sources)
    assert taken.owners == {left: "a", middle: "b", right: GENESIS}
    successor.finish_take_over(taken, group.first(successor))
    assert successor.differences(dict.fromkeys(group.sources, replace(SETTLED, owner="c"))) == {}
    assert len(group.ledger_kinds()) == 3
    group.close()


def test_who_owned_a_lost_record_can_be_told(group: Group) -> None:
    """The group's offset is gone; the ledger still knows whom to fence."""
    zombie = group.owning("a")
    group.kafka.admin.delete_consumer_groups([group.name])[group.name].result(20)
    successor = group.recorder("b")

    def owner_of(source: TopicPartition, found: CommittedOffset | None) -> str:
        assert found is None
        return "a"

    taken = successor.take_over(group.sources, owner_of)
    successor.finish_take_over(taken, group.first(successor))
    with pytest.raises(OwnerChangedError):
        last_words(group, zombie, 0)
    assert group.holds(replace(SETTLED, owner="b"))


@pytest.mark.parametrize("committed", [False, True])
def test_a_take_over_of_unknown_outcome(
    group: Group, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the first commit is lost; what the group holds tells."""
    group.owning("a")
    successor = group.recorder("b")
    taken = successor.take_over(group.sources)
    commit = transactions_module._commit

    def lose_the_answer(producer: object, stop: threading.Event) -> None:
        if committed:
            commit(producer, stop)
        else:
            producer.abort_transaction(10)  # type: ignore[attr-defined]
        raise UnknownCommitError("the answer is lost")

    monkeypatch.setattr(transactions_module, "_commit", lose_the_answer)
    if committed:
        successor.finish_take_over(taken, group.first(successor))
        assert group.holds(replace(SETTLED, owner="b"))
    else:
        with pytest.raises(TransientError, match="was not committed"):
            successor.finish_take_over(taken, group.first(successor))
        assert group.holds(replace(SETTLED, owner="a"))
