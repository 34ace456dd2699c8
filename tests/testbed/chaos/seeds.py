"""Seeds for runs too short to meet every fault."""

from __future__ import annotations

from itertools import count, islice

from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.schedule import schedule


def seed_that_begins_with(faults: list[str], layout: Layout | None = None, store: str = "") -> int:
    """The first one: whatever faults there are by now, a short run meets these."""

    def begins(seed: int) -> bool:
        strikes = islice(schedule(seed, layout=layout, store=store), len(faults))
        return [each.name for each in strikes] == faults

    return next(filter(begins, count()))
