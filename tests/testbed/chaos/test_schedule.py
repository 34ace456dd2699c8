"""The schedule follows from its seed, and deals every fault."""

from __future__ import annotations

from itertools import islice

import pytest

from sluice.testbed.chaos.proxy import Kind
from sluice.testbed.chaos.schedule import Deed, Target, all_faults, schedule

FIRST_OF_SEED_7 = [
    "table: column added",
    "clickhouse link: drop-reply",
    "clickhouse: killed in a request",
    "clickhouse: restarted in another time zone",
    "table: half of the window filled by a foreign writer",
    "kafka link: throttle",
]
STORE = (Target.STORE, Target.STORE_LINK)


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
    whats = {what for _, what in all_faults(standalone=True, store="redis")}
    assert whats == set(Kind) | set(Deed)
    assert Deed.KILL_SPARK_WORKER not in {what for _, what in all_faults(standalone=False)}


def test_without_a_store_nothing_is_another_one() -> None:
    """The schedule of a seed that was told somewhere is the same for ever."""
    names = [strike.name for strike in islice(schedule(7), 6)]
    assert names == FIRST_OF_SEED_7
    assert all(strike.target not in STORE for strike in islice(schedule(7), 200))


@pytest.mark.parametrize(("store", "targets"), [("redis", 2), ("local", 1)])
def test_a_store_of_claims_is_broken_beside_all_else(store: str, targets: int) -> None:
    faults = all_faults(standalone=False, store=store)
    assert len({target for target, _ in faults if target in STORE}) == targets
    assert set(all_faults(standalone=False)) < set(faults)
    dealt = list(islice(schedule(3, store=store), len(faults)))
    assert {(strike.target, strike.what) for strike in dealt} == set(faults)


def test_what_a_local_store_loses_it_loses_with_all_who_use_it() -> None:
    (lost,) = [
        strike
        for strike in islice(schedule(3, store="local"), len(all_faults(False, store="local")))
        if strike.target is Target.STORE
    ]
    assert {Target.DRIVER, Target.WORKER} < lost.touches


def test_what_comes_alone_lets_nothing_beside_it() -> None:
    strikes = list(islice(schedule(5), 500))
    assert any(strike.overlaps for strike in strikes)
    for strike in strikes:
        assert not (strike.is_alone and strike.overlaps)
        is_event = strike.what in (Deed.RESTART, Deed.OTHER_ZONE, Deed.ADD_COLUMN, Deed.EMPTY)
        assert strike.seconds > 0 or is_event
        assert strike.pause_seconds > 0
