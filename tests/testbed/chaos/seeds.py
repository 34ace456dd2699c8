"""Seeds for runs too short to meet every fault."""

from __future__ import annotations

from itertools import count, islice

from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.schedule import schedule


def seed_that_begins_with(faults: list[str], layout: Layout | None = None) -> int:
    """The first one: whatever faults there are by now, a short run meets these."""
    return next(
        seed
        for seed in count()
        if [each.name for each in islice(schedule(seed, layout=layout), len(faults))] == faults
    )
