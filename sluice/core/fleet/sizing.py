"""How many slots the work of a fleet takes: advice for whoever scales it, a person or a program.

It rises only to what was needed for a minute, and falls only to what was enough for ten: who acts
on it at once moves partitions no more often than that. Nothing here starts or stops anything.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from itertools import islice

from sluice.core.fleet.records import Report

#: So many of the slots are busy in a fleet that is just large enough; the rest is for peaks.
BUSY_SHARE = 0.75
#: For so many reports of who looks, of two seconds each, more was needed, or less was enough.
RISE_REPORTS, FALL_REPORTS = 30, 300


class Sizing:
    """What one member has seen."""

    def __init__(self) -> None:
        self._needed: deque[int] = deque(maxlen=FALL_REPORTS)
        #: Slots of all members, and how many members are wanted; 0: nothing was seen.
        self.slots, self.members = 0, 0

    def see(self, reports: Collection[Report]) -> None:
        """Take in the last reports of all that live; once for each report of who looks."""
        slots = sum(report.slots for report in reports)
        busy = sum(min(report.work, report.slots) for report in reports)
        self._needed.append(max(1, math.ceil(busy / BUSY_SHARE)))
        self.slots = self._wanted(slots)
        members_max = min(report.members_max for report in reports)
        members = math.ceil(self.slots * len(reports) / max(1, slots))
        self.members = min(max(1, members), members_max)

    def _wanted(self, slots: int) -> int:
        needed = self._needed
        lately = min(islice(reversed(needed), RISE_REPORTS))
        if len(needed) >= RISE_REPORTS and lately > slots:
            return lately
        if len(needed) == FALL_REPORTS:
            return min(slots, max(needed))
        return slots
