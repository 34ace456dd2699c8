"""Bugs of members of a fleet that share deduplication windows (R24), planted in worlds with a
fleet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sluice.core.fleet.floors import Floors, Share
from sluice.driver import shared_windows
from sluice.driver.fleet import FleetMember
from sluice.driver.state import Holds
from sluice.testbed.simulate.planting import Bugs

WINDOW_BUGS = Bugs()


@WINDOW_BUGS.instead_of(Floors, "share")
def half_a_window_beside_others(real: Any, self: Any, window: str) -> Share | None:
    """A member uses of a window what one alone may."""
    return None


@WINDOW_BUGS.instead_of(Floors, "share")
def a_floor_that_is_not_counted(real: Any, self: Any, window: str) -> Share | None:
    """A member counts what came since its own floor, whatever others hold."""
    found: Share | None = real(self, window)
    return None if found is None else replace(found, floor=found.floor and found.own)


@WINDOW_BUGS.instead_of(shared_windows, "floors_of")
def a_floor_that_is_forgotten(real: Any, windows: Any, states: Any, *rest: Any) -> Any:
    """A floor is that of the last reading, whatever is in doubt since before it."""
    return real(windows, (), Holds(), *rest[1:])[0], real(windows, states, *rest)[1]


@WINDOW_BUGS.instead_of(shared_windows, "floors_of")
def late_inserts_have_no_floor(real: Any, windows: Any, states: Any, holds: Any, *rest: Any) -> Any:
    """What is settled and may still be inserted keeps no floor."""
    lowest, _ = real(windows, states, Holds(), *rest)
    return lowest, real(windows, states, holds, *rest)[1]


@WINDOW_BUGS.instead_of(FleetMember, "_bury")
def written_off_before_its_floors_are_said(real: Any, self: Any, topic: Any) -> None:
    """An id is written off before the report with the floors that take its place has come back."""
    said = self._inherited
    self._inherited = {owner: (0, known) for owner, (_, known) in said.items()}
    try:
        real(self, topic)
    finally:
        self._inherited = said
