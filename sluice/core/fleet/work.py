"""How much work a partition is."""

from __future__ import annotations

import math

#: What waits is to be loaded within so long, beside what comes.
CATCH_UP_SECONDS = 300.0
#: What a range costs driver and worker, in messages: 310 us to 0.7 us of each (docs/SCALE.md).
MESSAGES_A_RANGE = 400.0
#: What a partition costs to which nothing comes, in messages a second.
IDLE = 2.0


def work_of(messages_a_second: float, lag: int, delay_seconds: float) -> int:
    """The work of a partition, in messages a second; at least one.

    :param lag: messages that wait.
    :param delay_seconds: a range is loaded so often, if anything comes.
    """
    busy = max(0.0, messages_a_second) + max(0, lag) / CATCH_UP_SECONDS
    ranges_a_second = min(busy, 1 / delay_seconds)
    return math.ceil(busy + MESSAGES_A_RANGE * ranges_a_second + IDLE)
