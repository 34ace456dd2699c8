"""How many slots and members the work of a fleet takes."""

from __future__ import annotations

import pytest

from sluice.core.fleet.records import Report
from sluice.core.fleet.sizing import FALL_REPORTS, RISE_REPORTS, Sizing


def reports(*work: int, slots: int = 4, members_max: int = 8) -> list[Report]:
    return [
        Report(f"run-{n}", f"m{n}", 1, slots=slots, work=each, members_max=members_max)
        for n, each in enumerate(work)
    ]


def seen(sizing: Sizing, found: list[Report], times: int) -> tuple[int, int]:
    for _ in range(times):
        sizing.see(found)
    return sizing.slots, sizing.members


def test_more_is_wanted_only_after_a_minute_of_work() -> None:
    sizing = Sizing()
    assert seen(sizing, reports(4, 4), RISE_REPORTS - 1) == (8, 2)
    assert seen(sizing, reports(4, 4), 1) == (11, 3)
    # One look at which less was busy ends it.
    assert seen(sizing, reports(4, 0), 1) == (8, 2)


def test_less_is_wanted_only_after_ten_minutes_without_a_peak() -> None:
    sizing = Sizing()
    assert seen(sizing, reports(1, 0, 0), FALL_REPORTS - 1) == (12, 3)
    assert seen(sizing, reports(1, 0, 0), 1) == (2, 1)
    assert seen(sizing, reports(4, 2, 0), 1) == (8, 2)
    assert seen(sizing, reports(1, 0, 0), FALL_REPORTS - 1) == (8, 2)
    assert seen(sizing, reports(1, 0, 0), 1) == (2, 1)


@pytest.mark.parametrize(("members_max", "wanted"), [(3, 3), (2, 2)])
def test_no_more_members_are_wanted_than_may_be(members_max: int, wanted: int) -> None:
    found = reports(4, 4, members_max=members_max)
    assert seen(Sizing(), found, RISE_REPORTS) == (11, wanted)


def test_ranges_beyond_the_slots_wait_and_are_no_work() -> None:
    assert seen(Sizing(), reports(9, 0), RISE_REPORTS) == (8, 2)
