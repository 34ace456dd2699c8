"""Python's garbage collector, for processes that make many objects and few cycles."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
#: What each of those who are within `relaxed_collector` has found, the first of them first.
_inside: list[tuple[int, int, int]] = []


def relax_collector() -> None:
    """For a process that has its libraries, and what it needs all the time.

    With the default of 700 new objects the collector runs all the time, and whatever makes
    thousands of lasting ones has it look through all that the libraries made: 15 ms for each batch
    of a driver with 1,000 partitions [measured]. What is frozen is not looked at again.
    """
    gc.set_threshold(100_000)
    gc.collect()
    gc.freeze()


@contextmanager
def relaxed_collector() -> Iterator[None]:
    """The same until the block ends: a Python process that ends with frozen objects may crash on
    its way out, and its exit status is not its own then [measured, 3.11].

    Several threads may be within it: what was before comes back when the last of them leaves.
    """
    with _lock:
        _inside.append(gc.get_threshold())
        relax_collector()
    try:
        yield
    finally:
        with _lock:
            before = _inside.pop()
            if not _inside:
                gc.unfreeze()
                gc.set_threshold(*before)
