"""The schedule follows from its seed, and deals every fault."""

from __future__ import annotations

from itertools import islice

import pytest

from sluice.testbed.chaos.proxy import Kind
from sluice.testbed.chaos.schedule import Deed, all_faults, schedule


def test_a_seed_gives_the_same_faults_again() -> None:
    assert list(islice(schedule(7), 100)) == list(islice(schedule(7), 100))
    assert list(islice(schedule(7), 100)) != list(islice(schedule(8), 100))


@pytest.mark.parametrize("standalone", [False, True])
def test_every_fault_is_dealt_before_any_comes_again(standalone: bool) -> None:
    faults = all_faults(standalone)
    dealt = list(islice(schedule(3, standalone), 3 * len(faults)))
    for round_begin in range(0, len(dealt), len(faults)):
        cards = dealt[round_begin : round_begin + len(faults)]
        assert {(card.target, card.what) for card in cards} == set(faults)


def test_every_kind_of_fault_is_among_them() -> None:
    whats = {what for _, what in all_faults(standalone=True)}
    assert whats == set(Kind) | set(Deed)
    assert Deed.KILL_SPARK_WORKER not in {what for _, what in all_faults(standalone=False)}


def test_what_comes_alone_lets_nothing_beside_it() -> None:
    strikes = list(islice(schedule(5), 500))
    assert any(strike.overlaps for strike in strikes)
    for strike in strikes:
        assert not (strike.is_alone and strike.overlaps)
        is_event = strike.what in (Deed.RESTART, Deed.OTHER_ZONE, Deed.ADD_COLUMN)
        assert strike.seconds > 0 or is_event
        assert strike.pause_seconds > 0
