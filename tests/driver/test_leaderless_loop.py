"""A loop that was given partitions of which no leader has told: they wait alone, until they are
looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache

import pytest

from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.driver.loop import ConnectorLoop
from sluice.driver.observing import UNSEEN_MS
from sluice.driver.state import PartitionState
from tests.driver.loop_world import START_MS, World

P0, P1, P2 = (TopicPartition("a", number) for number in range(3))
BACK_MS = 20_000


def unseen(world: World, source: TopicPartition, *, in_doubt: bool) -> PartitionState:
    """As a take-over leaves it that hears of no leader: all that its record says is taken to be
    there, in the record's epoch."""
    state = world.overrun(source, 10, 1) if in_doubt else world.settled(source, 10)
    state.record = world.group[source] = replace(state.record, epoch=3)
    state.is_unseen, state.epoch, state.stable_end = True, 3, 10
    return state


def led_again(world: World, begin: int, epoch: int) -> ConnectorLoop:
    """Two partitions without a leader, one in doubt, until one comes that has them from `begin` on;
    and one that is led."""
    world.epoch = 3
    world.ends.update({P0: 20, P1: 20, P2: 20})
    world.unreadable |= {P1, P2}
    loop = world.loop(
        [
            world.settled(P0),
            unseen(world, P1, in_doubt=True),
            unseen(world, P2, in_doubt=False),
        ]
    )
    sent: list[TopicPartition] = []

    def back() -> None:
        sent.extend(source for source in (P0, P1, P2) if any(world.rows_of(source)))
        world.log_begins |= {P1: begin, P2: 10 + begin}
        world.epoch = epoch
        world.unreadable.clear()

    world.at(BACK_MS, back)
    loop.run(dict.fromkeys((P0, P1, P2), 20), 5.0)
    assert sent == [P0]
    return loop


@pytest.mark.parametrize("epoch", [3, 4])
def test_what_is_led_again_goes_on(epoch: int) -> None:
    world = World([P0, P1, P2])
    loop = led_again(world, 0, epoch)
    assert all(state.stopped is None for state in loop.states.values())
    assert world.rows_of(P0) == world.rows_of(P1) == [1] * 20
    assert world.rows_of(P2) == [0] * 10 + [1] * 10
    asked = {source for points in world.asked_epochs for source in points}
    assert asked == ({P0, P1, P2} if epoch == 4 else set())


def test_what_is_led_again_goes_on_though_its_begin_is_told_later_than_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An end that did not move stays the same object, as the native reader gives it."""
    world, same = World([P0, P1]), lru_cache(EpochOffset)
    world.epoch = 3
    world.ends.update({P0: 20, P1: 20})
    lost, began = unseen(world, P1, in_doubt=False), world.now
    ends, begins = world.epoch_ends, world.begins

    def same_ends(
        sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, EpochOffset]:
        told = ends(sources, partial=partial).items()
        return {source: same(end.offset, end.epoch) for source, end in told}

    def late_begins(
        sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> Mapping[TopicPartition, int]:
        return begins(sources, partial=partial) if world.now >= began + BACK_MS else {}

    monkeypatch.setattr(world, "epoch_ends", same_ends)
    monkeypatch.setattr(world, "begins", late_begins)
    loop = world.loop([world.settled(P0), lost])
    loop.run({P0: 20, P1: 20}, 5.0)
    assert world.rows_of(P1) == [0] * 10 + [1] * 10
    assert world.now < began + 2 * BACK_MS


def test_what_has_expired_is_not_begun() -> None:
    world = World([P0, P1, P2])
    loop = led_again(world, 4, 3)
    for source, words in ((P1, "[4, 20), but 0 is the next"), (P2, "[14, 20), but 10 is the next")):
        stopped = loop.states[source].stopped
        assert stopped is not None and words in str(stopped)
        assert not any(world.rows_of(source))


def test_a_log_that_was_cut_meanwhile_is_not_read() -> None:
    world = World([P0, P1, P2])
    world.cut_at |= {P1: 5, P2: 5}
    loop = led_again(world, 0, 4)
    for source in (P1, P2):
        assert "the log was cut below what is recorded" in str(loop.states[source].stopped)
        assert not any(world.rows_of(source))


def test_the_others_of_a_bundle_do_not_wait_for_its_leader_for_ever() -> None:
    world = World([P0, P1])
    world.unreadable |= {P1}
    world.ends.update({P0: 20, P1: 20})
    lost = unseen(world, P1, in_doubt=True)
    loop = world.loop([world.settled(P0), lost])
    world.at(UNSEEN_MS - 1_000, lambda: told.append(lost.alone))
    world.at(2 * UNSEEN_MS, lambda: told.append(lost.alone))
    world.at(2 * UNSEEN_MS, world.unreadable.clear)
    told: list[bool] = []
    loop.run({P0: 20, P1: 20}, 5.0)
    assert told == [False, True]
    assert world.now > START_MS and world.rows_of(P1) == [1] * 20
