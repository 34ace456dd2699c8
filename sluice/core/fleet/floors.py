"""Floors: how the members of a fleet share the deduplication windows (R24).

A repeat is recognised only while fewer than W entries came since its block. A driver alone counts
what came since its oldest hold, and its own reservations (`core.budget`). Members do not know each
other's holds, so each says in its reports, for each window, a *floor*: the insert counter of its
oldest hold, or without one that of its last reading. **A floor only rises**, since a new hold
takes the last reading. So what a member knows of the others may be old, and is then only stricter.

**R24**: with C, the entries since the lowest floor of all, a member's own reservations (with those
that ended since its last reading) are at most (W/4 - C) / (2 x `members_max`).

Why no hold sees more than W/2 of the fleet's entries, from its first insert to its last possible
one: whoever reserves while it lives knows a floor that is no higher than the hold, so at the last
of these readings fewer than W/4 entries had come since; and beyond that reading each owner id has
its share at most, of which there are two for each member: one that runs, and one that is dead.

What this rests on:

- Nobody reserves anything in a window before each other member has said that it counts a report
  with this member's floor there, and that its own reservations are within its share: it may have
  been alone, with half of the window. Who was there first need not wait for who comes later.
- A floor that falls after all, as where holds were inherited, is such a beginning.
- An id counts until it is gone: until who inherited its holds has said floors with them.
- A range whose lease is over is no hold. Its insert counter keeps the floor all the same as long as
  W/8 entries at most came since; after that it is not sent again, but probed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.core.fleet.records import Report

#: Nothing is reserved once this share of a window came since the lowest floor.
FLOOR_SHARE = 4
#: Owner ids of a member whose reservations may land: of its last two starts.
STARTS = 2
#: A range whose lease is over is sent again only while no more than this share came since.
AGAIN_SHARE = 8


def most_of(blocks: int, members_max: int) -> int:
    """The most entries of a window that one of so many members may ever have reserved.

    :param blocks: W.
    """
    return blocks // FLOOR_SHARE // (STARTS * members_max)


@dataclass(frozen=True, slots=True)
class Share:
    """What a fleet leaves of a window to one of its members.

    :param floor: no hold of any member is older; None: nothing may be reserved yet.
    :param own: the same of this member's holds, as it has said it.
    """

    floor: int | None
    own: int
    members_max: int

    def most(self, blocks: int) -> int:
        """The most entries that a member may ever have reserved.

        :param blocks: W.
        """
        return most_of(blocks, self.members_max)

    def left(self, blocks: int, insert_counter: int, oldest: int, reserved: int) -> int:
        """How many entries may be reserved now.

        :param insert_counter: the last reading; `oldest`: that of the own oldest hold.
        :param reserved: own reservations, with those that ended since the reading.
        """
        if self.floor is None:
            return min(0, -reserved)
        created = insert_counter - min(self.floor, oldest)
        if created < 0:
            return -1  # an insert counter that fell: nothing may be assumed
        return (blocks // FLOOR_SHARE - created) // (STARTS * self.members_max) - reserved


def keeps_floor(blocks: int, insert_counter: int, of_range: int) -> bool:
    """Whether a range in doubt whose lease is over still keeps its member's floor."""
    return 0 <= insert_counter - of_range <= blocks // AGAIN_SHARE


class Floors:
    """What one member knows of floors. Windows have names that are the same for all members.

    :param owner: its id.
    """

    def __init__(self, owner: str, members_max: int) -> None:
        self._owner, self._members_max = owner, members_max
        self._others: Mapping[str, Report] | None = None
        self._has_strangers = False
        self._lowest: dict[str, int] = {}
        self._said: dict[str, int] = {}
        #: Which report said each floor first, or said one that had fallen.
        self._since: dict[str, int] = {}
        self._admitted = set[str]()

    @property
    def is_alone(self) -> bool:
        """Whether nobody else counts: then a member has what a driver without a fleet has."""
        return self._others is not None and not (self._others or self._has_strangers)

    def see(
        self,
        others: Mapping[str, Report],
        windows: Iterable[str],
        *,
        has_strangers: bool = False,
    ) -> None:
        """These are the last reports of all other ids that are not gone.

        :param windows: that this member may have reserved in, if it was alone.
        :param has_strangers: ids of which there is no report may have reserved, too.
        """
        if self.is_alone or not (others or has_strangers):
            self._admitted.update(windows)
        self._others, self._has_strangers = others, has_strangers
        self._lowest = {}
        for report in others.values():
            for window, floor in report.floors.items():
                self._lowest[window] = min(floor, self._lowest.get(window, floor))
        counted = [report.counted.get(self._owner, 0) for report in others.values()]
        known = min(counted, default=0)
        self._admitted.update(w for w, number in self._since.items() if number <= known)

    def begin_again(self, number: int) -> None:
        """Nobody may count this member any more: nothing is reserved before all others count this
        report of it, or a later one."""
        self._admitted.clear()
        self._since = dict.fromkeys(self._said, number)

    def share(self, window: str) -> Share | None:
        """What this member may reserve of a window; None: as a driver without a fleet."""
        if self.is_alone:
            return None
        own, members_max = self._said.get(window, 0), self._members_max
        too_many = len(self._others or ()) >= STARTS * members_max
        is_unknown = self._others is None or self._has_strangers
        if is_unknown or too_many or window not in self._admitted:
            return Share(None, own, members_max)
        return Share(min(own, self._lowest.get(window, own)), own, members_max)

    def is_ready(self, windows: Iterable[str]) -> bool:
        """Whether there is a share of each of these windows."""
        return self.is_alone or (not self._has_strangers and self._admitted.issuperset(windows))

    def say(
        self, number: int, lowest: Mapping[str, int], *, is_within: bool
    ) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """`floors` and `counted` of a report. Whatever is reserved from now on takes all others
        into account that were seen by now.

        :param number: of the report.
        :param lowest: by window, the insert counter of the oldest hold, or else of the last
            reading; of all windows in which anything may be reserved.
        :param is_within: whether all reservations are within a member's share.
        """
        for window, floor in lowest.items():
            if floor < self._said.get(window, floor + 1):
                self._since[window] = number
                if not self.is_alone:
                    self._admitted.discard(window)
        self._said = dict(lowest)
        counted = {owner: report.number for owner, report in (self._others or {}).items()}
        return self._said, counted if is_within else {}
