"""Python's garbage collector, for processes that make many objects and few cycles."""

from __future__ import annotations

import gc


def relax_collector() -> None:
    """For a process that has its libraries, and what it needs all the time.

    With the default of 700 new objects the collector runs all the time, and whatever makes
    thousands of lasting ones has it look through all that the libraries made: 15 ms for each batch
    of a driver with 1,000 partitions [measured]. What is frozen is not looked at again.
    """
    gc.set_threshold(100_000)
    gc.collect()
    gc.freeze()
