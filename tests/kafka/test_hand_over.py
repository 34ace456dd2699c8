"""An owner hands a partition over by its own record, on a real broker: nobody is fenced for it, and
whoever sleeps at any step writes nothing when it wakes (R4)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import confluent_kafka as ck
import pytest

from sluice.core.errors import OwnerChangedError, TransientError
from sluice.core.ledger import Commit
from sluice.core.records import Record, decode
from sluice.kafka import recorder as recorder_module
from sluice.kafka.errors import UnknownCommitError
from sluice.kafka.recorder import Recorder
from sluice.kafka.transactions import _split
from tests.kafka.groups import SETTLED, Group, intend
from tests.support.kafka import Kafka


@pytest.fixture
def two(kafka: Kafka) -> Iterator[Group]:
    made = Group(kafka, partitions=2)
    yield made
    made.close()


def mine(owner: str) -> Record:
    return replace(SETTLED, owner=owner)


def owner_of(group: Group, partition: int) -> str:
    found = group.committed(partition)
    assert found is not None
    return decode(found.offset, found.metadata).owner


def hand_over(group: Group, giver: Recorder, partition: int, to: str) -> None:
    """The giver repeats what is settled, in another one's name."""
    source = group.sources[partition]
    before = {source: mine(giver.names.owner)}
    assert giver.differences(before) == {}
    giver.record(Commit({source: mine(to)}), before)


def load(group: Group, driver: Recorder, partition: int, begin: int) -> None:
    """One more range, if the group still holds what the driver wrote last."""
    source, owner = group.sources[partition], driver.names.owner
    before = intend(owner, begin - 5, begin) if begin else mine(owner)
    assert driver.differences({source: before}) == {}
    driver.record(Commit({source: intend(owner, begin, begin + 5)}), {source: before})


def test_both_go_on_at_once(two: Group) -> None:
    giver, taker = two.owning("a"), two.recorder("b")
    giver_id = giver.own_producer()
    hand_over(two, giver, 1, "b")
    for begin in range(0, 30, 5):
        load(two, giver, 0, begin)
        load(two, taker, 1, begin)
    assert [owner_of(two, partition) for partition in (0, 1)] == ["a", "b"]
    assert giver._own.now is giver_id  # it was never fenced


def test_it_comes_back_the_same_way(two: Group) -> None:
    giver, taker = two.owning("a"), two.recorder("b")
    for _ in range(3):
        hand_over(two, giver, 1, "b")
        hand_over(two, taker, 1, "a")
    load(two, giver, 1, 0)
    assert owner_of(two, 1) == "a"


def test_a_giver_that_sleeps_before_its_commit_gives_nothing(two: Group) -> None:
    giver = two.owning("a")
    producer = giver.own_producer()
    producer.begin_transaction()
    (part,) = _split({two.sources[1]: mine("b")})
    producer.send_offsets_to_transaction(part, giver._reader.consumer_group_metadata(), 10)
    heir = two.owning("h")
    with pytest.raises(ck.KafkaException) as raised:
        producer.commit_transaction(10)
    assert raised.value.args[0].fatal()
    assert [owner_of(two, partition) for partition in (0, 1)] == ["h", "h"]
    with pytest.raises(OwnerChangedError):
        load(two, giver, 0, 0)
    load(two, heir, 1, 0)


@pytest.mark.slow
def test_who_was_given_a_partition_and_sleeps_is_taken_over_alone(two: Group) -> None:
    """It has read that the partition is its own, and not written yet."""
    giver, sleeper = two.owning("a"), two.recorder("b")
    hand_over(two, giver, 1, "b")
    assert sleeper.differences({two.sources[1]: mine("b")}) == {}
    heir, beside = two.recorder("h"), two.recorder("h")
    taken = beside.inherit({"b"}, two.sources)
    assert taken.owners == {two.sources[1]: "b"}
    beside.finish_take_over(taken, Commit({two.sources[1]: mine("h")}))
    with pytest.raises(OwnerChangedError):
        sleeper.record(Commit({two.sources[1]: intend("b", 0, 5)}), {two.sources[1]: mine("b")})
    load(two, heir, 1, 0)
    load(two, giver, 0, 0)


def test_an_heir_that_sleeps_is_fenced_under_the_other_id_only(two: Group) -> None:
    """The giver lived, and went on under its own id; what the heir had before stays its own."""
    other = two.owning("a")
    heir = two.recorder("h")
    hand_over(two, other, 1, "h")
    load(two, heir, 1, 0)
    beside = two.recorder("h")
    taken = beside.inherit({"a"}, two.sources)
    other._own.drop()
    load(two, other, 0, 0)
    with pytest.raises(OwnerChangedError):
        beside.finish_take_over(taken, Commit({two.sources[0]: mine("h")}))
    load(two, heir, 1, 5)
    assert [owner_of(two, partition) for partition in (0, 1)] == ["a", "h"]


def test_what_was_given_to_an_id_that_nobody_has_any_more(two: Group) -> None:
    """Its driver was started again meanwhile, and takes it over from its former id."""
    giver = two.owning("a")
    back = two.recorder("b2")
    hand_over(two, giver, 1, "b1")
    beside = two.recorder("b2")
    taken = beside.inherit({"b1"}, two.sources)
    beside.finish_take_over(taken, Commit({two.sources[1]: mine("b2")}))
    load(two, back, 1, 0)
    load(two, giver, 0, 0)


def test_who_takes_its_own_over_goes_on_with_the_rest(
    two: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    giver = two.owning("a")
    monkeypatch.setattr(giver, "_wait_for_successor", lambda _: pytest.fail("it fenced itself"))
    taken = giver.take_over([two.sources[1]])
    giver.finish_take_over(taken, Commit({two.sources[1]: mine("a")}))
    load(two, giver, 0, 0)
    load(two, giver, 1, 0)


def test_a_member_that_was_fenced_while_it_had_nothing_ends(
    two: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its heir found nothing, and counts it no more: under that id it loads nothing that it is
    given afterwards, although no record says that it was fenced."""
    monkeypatch.setattr(recorder_module, "SUCCESSOR_PATIENCE_SECONDS", 0.5)
    giver, idle = two.owning("a"), two.recorder("b", is_shared=True)
    idle.own_producer()
    assert two.recorder("h").inherit({"b"}, two.sources).found == {}
    hand_over(two, giver, 1, "b")
    with pytest.raises(OwnerChangedError, match="b was fenced"):
        load(two, idle, 1, 0)
    assert owner_of(two, 1) == "b" and idle.initialised == 1


def test_who_initialises_its_id_again_says_so(two: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of unknown outcome: who had fenced it before has fenced nobody."""
    driver = two.recorder("b", is_shared=True)
    driver.own_producer()
    driver.finish_take_over(driver.take_over(two.sources), two.first(driver))
    load(two, driver, 1, 0)
    assert driver.initialised == 1

    def hangs(*_: object) -> None:
        raise UnknownCommitError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(recorder_module, "transact", hangs)
        with pytest.raises(TransientError, match="was not committed"):
            load(two, driver, 1, 5)
    assert driver.initialised == 2
    load(two, driver, 1, 5)
