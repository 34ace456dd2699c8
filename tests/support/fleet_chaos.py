"""What happens to the members of a fleet, drawn from a seed, and what that costs.

A fleet has three or four drivers. Of a partition two figures are measured: its longest *pause*, in
which nothing of it was settled, and how long it had no owner that ran.
"""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from tests.support.driver import Driver
from tests.support.fleet import GroupWatch, members, shared_by, start_member
from tests.support.world import World, wait_for

NAMES = ("a", "b", "c", "d")
#: What came last settles, before pauses are read.
SETTLE_SECONDS = 3.0
VERSION_SECONDS = 120.0


class Deed(StrEnum):
    """What happens."""

    KILL = "killed"
    STOP = "stopped"
    REMOVE = "removed"
    APPLY = "applied"
    KILL_AT_JOIN = "killed while another one starts"
    APPLY_AT_KILL = "applied while one is killed"


def deeds(seed: int) -> Iterator[tuple[Deed, random.Random]]:
    """Deeds without end, with dice for whatever else is to be chosen. All come before any comes
    again, like cards that are dealt."""
    dice = random.Random(seed)
    while True:
        cards = list(Deed)
        dice.shuffle(cards)
        for deed in cards:
            yield deed, dice


class Figures:
    """Seconds, by what happened: of each partition that it concerned the longest pause; and how
    long those of members that did not run any more had no other owner."""

    def __init__(self) -> None:
        self.pauses = defaultdict[str, list[float]](list)
        self.unowned: list[float] = []
        self.loads: list[float] = []

    def line(self, of: str) -> str:
        """In words."""
        seconds = sorted(self.pauses[of])
        return (
            f"{of}: {len(seconds)} partitions, paused p50 {percentile(seconds, 0.5):.1f} s, "
            f"p99 {percentile(seconds, 0.99):.1f} s, at most {seconds[-1]:.1f} s"
        )


def percentile(seconds: Sequence[float], share: float) -> float:
    """:param seconds: sorted, one or more."""
    return seconds[max(0, math.ceil(share * len(seconds)) - 1)]


class Fleet:
    """Members of one pipeline, and what becomes of them.

    :param partitions: of the topic that is always loaded, which the watch looks at.
    """

    def __init__(self, world: World, base: Path, watch: GroupWatch, partitions: int) -> None:
        self._world, self._base, self._watch = world, base, watch
        self._partitions = partitions
        self.drivers: dict[str, Driver] = {}
        self.figures = Figures()
        self.version = 0

    def start(self, name: str) -> Driver:
        driver = self.drivers[name] = start_member(self._world, self._base, name)
        return driver

    def kill(self, name: str) -> None:
        self.drivers.pop(name).kill()

    def shared(self) -> None:
        """Wait until those that run have all partitions, and each of them some."""
        for name, driver in self.drivers.items():
            assert driver.process.poll() is None, f"{name} ended\n{driver.text()[-4000:]}"
        shared_by(self._world, self._base, *self.drivers, partitions=self._partitions, share=3)

    @contextmanager
    def measured(self, told: str, what: str = "moved", ended: str = "") -> Iterator[None]:
        """Measure what pauses until those that run share all again.

        :param told: what happens, in words.
        :param what: what the partitions of a member that does not run from now on count for.
        :param ended: that member. What others hand over to it before they know of its end waits
            for its successor, too. All others that change their owner count as moved.
        """
        began, before, load = time.monotonic(), self._watch.owner_ids(), os.getloadavg()[0]
        its = self._watch.owned_by(ended) if ended else set()
        yield
        self.shared()
        seconds = time.monotonic() - began
        time.sleep(SETTLE_SECONDS)
        its |= self._watch.owned_since(ended, began) if ended else set()
        after = self._watch.owner_ids()
        moved = {source for source, owner in before.items() if after[source] != owner} - its
        pauses = {w: self._watch.pauses(s, began) for w, s in ((what, its), ("moved", moved)) if s}
        for each, found in pauses.items():
            self.figures.pauses[each] += found
        if what in ("killed", "stopped"):
            self.figures.unowned += self._watch.unowned(ended, its, began)
        self.figures.loads.append(os.getloadavg()[0])
        longest = ", ".join(f"{len(p)} {w} for {max(p):.1f} s" for w, p in pauses.items())
        print(
            f"{told}: all shared after {seconds:.0f} s; pauses at most: {longest or 'none'} "
            f"(load {load:.0f} and {self.figures.loads[-1]:.0f})",
            flush=True,
        )

    # Versions

    @contextmanager
    def applied(self, base: Path) -> Iterator[None]:
        """Apply a file as the next version, beside what the block does."""
        command = [sys.executable, "-m", "sluice", "apply", str(base), "--yes", "--wait", "2m"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield
        finally:
            said, _ = process.communicate(timeout=180)
        assert process.returncode == 0, said
        self.version += 1
        assert f"version {self.version}, " in said, said

    def agreed(self) -> None:
        """Wait until all that run load by the newest version."""
        wanted = f"version {self.version}"

        def is_so() -> bool:
            found = members(self._world, self._base)
            return all(found[name].applied == wanted for name in self.drivers)

        wait_for(is_so, VERSION_SECONDS, f"{wanted} of {', '.join(self.drivers)}")
