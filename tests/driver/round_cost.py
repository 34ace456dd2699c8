"""What a round of the loop costs the driver's Python while nothing is due.

`python -m tests.driver.round_cost --partitions 10000` makes rounds of the real loop in the world of
its tests. Looks at the ends are not in it: `tests.driver.batch_cost` measures them.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace

from sluice.core.planning import Limits
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, TopicPartition
from tests.driver.loop_world import World

_ROUNDS = 20


def measure(partitions: int, *, waiting: bool) -> float:
    """Seconds of CPU for each round, with a message that waits in each partition or in none."""
    world = World([TopicPartition("a", number) for number in range(partitions)])
    limits = Limits(250_000, 1 << 26, 3_600_000)
    # One more than there are: else they would be enough for a block.
    world.planner = replace(world.planner, limits=limits, members_max=partitions + 1)
    states = [world.settled(source) for source in world.ends]
    for state in states:
        state.see_end(EpochOffset(int(waiting), EPOCH_UNKNOWN), world.now)
    loop = world.loop(states)
    began = time.process_time()
    for _ in range(_ROUNDS):
        loop._round(world.now, flush=False)
    used = time.process_time() - began
    assert not world.jobs
    return used / _ROUNDS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.driver.round_cost")
    parser.add_argument("--partitions", type=int, default=10_000)
    parsed = parser.parse_args()
    for waiting in (False, True):
        least = min(measure(parsed.partitions, waiting=waiting) for _ in range(3))
        print(
            f"{parsed.partitions:,} partitions {'that wait' if waiting else 'without messages'}: "
            f"{least * 1e3:.1f} ms of CPU for each round, "
            f"{least / parsed.partitions * 1e6:.2f} µs for each partition"
        )


if __name__ == "__main__":
    main()
