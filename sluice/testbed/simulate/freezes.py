"""A person who freezes parts of a pipeline and resumes them, in some worlds."""

from __future__ import annotations

import random
from urllib.parse import urlsplit

from sluice.core.decided import Decided, Frozen, Standing, Subject
from sluice.driver.ports import DecisionsRead
from sluice.testbed.simulate.world import World

#: Of how many seeds one has such a person, and another one a person who is at the servers. Those
#: below a hundred have none: planted bugs are known by their seeds.
_ONE_OF = 7
_AT_SERVERS = 2
_FIRST_SEED = 100
#: How long until the next decision: before a lease is over, after it, and when windows forgot.
_PAUSES_MS = (2_000, 30_000, 300_000)


class Person:
    """Decides at times of a chance of its own, so that other worlds stay what they are."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = random.Random(f"{world.seed}/freezes")
        self._is_at_servers = world.seed % _ONE_OF == _AT_SERVERS
        is_there = world.seed % _ONE_OF == 0 or self._is_at_servers
        self._is_there = world.seed >= _FIRST_SEED and is_there
        self.standing: Standing = ()

    def start(self) -> None:
        """Begin to decide."""
        if self._is_there:
            self._later()

    def heal(self) -> None:
        """Everything goes on."""
        self._is_there = False
        self._tell(())

    def _later(self) -> None:
        self._world.scheduler.at(self._rng.randrange(self._rng.choice(_PAUSES_MS)), self._decide)

    def _decide(self) -> None:
        if not self._is_there:
            return
        self._later()
        world, rng = self._world, self._rng
        if self.standing and rng.random() < 0.6:
            world.faults.note("resumed by a person")
            gone = rng.choice(self.standing)
            self._tell(tuple(each for each in self.standing if each is not gone))
            return
        subject, hosts = rng.choice(self._places() if self._is_at_servers else self._subjects())
        if all(each.subject != subject for each in self.standing):
            world.faults.note("frozen by a person")
            self._tell((*self.standing, Frozen(subject, "alice", "drawn", world.now, hosts)))

    def _subjects(self) -> list[tuple[Subject, tuple[str, ...]]]:
        tables = [Subject("table", entry) for entry in sorted(self._world.plan.entries)]
        return [(each, ()) for each in (Subject("connector"), *tables)]

    def _places(self) -> list[tuple[Subject, tuple[str, ...]]]:
        """Each server by itself, and all that are the first ones of their shards."""
        plan = self._world.plan
        hosts = [urlsplit(url).netloc for s in plan.shards for url in plan.replicas(s)]
        return [
            (Subject("data center", "a"), ("*a",)),
            *((Subject("replica", host), (host,)) for host in hosts),
        ]

    def _tell(self, standing: Standing) -> None:
        """Who runs hears of it a little later; who starts reads it."""
        self.standing = standing
        for driver in list(self._world.drivers):
            assembly = driver.connector_run._assembly
            if assembly is not None and assembly.decisions is not None:
                assembly.inbox.put(DecisionsRead(Decided(standing)))
