"""How ranges share tasks: many small ones one, a large one has its own. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

#: Ranges of a task, about. A task costs Spark's JVM 20 to 30 ms and the driver 10, a range a few ms
#: of a worker: with so many in a task the first hardly counts, and it ends within a second or two.
RANGES_OF_TASK = 32

#: A range that is a larger part of a task than this has a task of its own.
SMALL_SHARE_MAX = 0.5


def share_of_task(messages: int, full: int) -> float:
    """How much of a task a range is; above 0, at most 1.

    :param messages: that it spans.
    :param full: that the largest range of its partition would span.
    """
    return min(1.0, max(1 / RANGES_OF_TASK, messages / max(1, full)))


def packed(shares: Sequence[float], slots: int) -> list[list[list[int]]]:
    """Jobs of tasks of ranges, each range by its place in `shares`.

    Large ranges and small ones are in jobs of their own, since all of a job come back together.
    Small ones are spread over as many tasks as can run at once before they share one.

    :param slots: tasks that can run at once; no job has more.
    """
    large = [[place] for place, share in enumerate(shares) if share > SMALL_SHARE_MAX]
    small = [place for place, share in enumerate(shares) if share <= SMALL_SHARE_MAX]
    jobs = [
        tasks[i : i + slots]
        for tasks in (large, _spread(small, shares, slots))
        for i in range(0, len(tasks), slots)
    ]
    return jobs


def _spread(places: list[int], shares: Sequence[float], slots: int) -> list[list[int]]:
    """Tasks of about equal weight, none much above one; those that come first, go first."""
    if not places:
        return []
    # Sums of thirty-seconds are exact; a sum of others may miss a whole number by a little.
    total = math.ceil(sum(shares[place] for place in places) - 1e-9)
    count = max(total, min(slots, len(places)))
    tasks: list[list[int]] = [[] for _ in range(count)]
    lightest = [(0.0, number) for number in range(count)]
    for place in sorted(places, key=lambda place: -shares[place]):
        weight, number = lightest[0]
        tasks[number].append(place)
        heapq.heapreplace(lightest, (weight + shares[place], number))
    for task in tasks:
        task.sort()
    return tasks
