"""What producers write: messages of all kinds, in transactions or without them, and holes."""

from __future__ import annotations

import json

from sluice.core.ranges import TopicPartition
from sluice.testbed.simulate.claims import Events
from sluice.testbed.simulate.kafka import Stored, Transaction
from sluice.testbed.simulate.messages import make_message, schema_of, with_route
from sluice.testbed.simulate.registry import Registry
from sluice.testbed.simulate.world import World


class Producers:
    """Of one world.

    :param events: None where nobody deduplicates.
    """

    def __init__(self, world: World, registry: Registry, events: Events | None) -> None:
        self.messages = 0
        self._world = world
        self._registry = registry
        self._events = events
        self._open: list[tuple[TopicPartition, Transaction]] = []
        self._held_back: set[TopicPartition] = set()

    def add(
        self, source: TopicPartition, count: int, transaction: Transaction | None = None
    ) -> None:
        """Messages of all kinds."""
        world = self._world
        log = world.broker.log(source)
        for _ in range(count):
            self.messages += 1
            if self._events is not None:
                self._events.add(self.messages, world.now)
            oversize = world.plan.letter_bytes_max + 2_000
            stored, fault = make_message(world.rng, self.messages, world.now, oversize)
            if world.plan.routes:
                stored = with_route(stored, self.messages)
            if fault is not None:
                world.faults.note(fault)
            schema = schema_of(self.messages)
            if schema is not None and world.plan.registered:
                self._registry.named(schema)
            log.append(stored, transaction)

    def start(self) -> None:
        """Produce until the world is healed."""
        if not self._world.faults.is_on:
            return
        world = self._world
        every_ms = world.plan.produce_every_ms
        if world.lag() < world.plan.lag_max:
            for source in world.plan.draw_sources(world.rng, world.sources()):
                self._produce_some(source)
        else:
            every_ms *= 10
        world.scheduler.at(world.rng.randrange(50, every_ms), self.start)

    def _produce_some(self, source: TopicPartition) -> None:
        """A batch; where producers use transactions, each has its own, and some are aborted."""
        world, rng = self._world, self._world.rng
        if not world.plan.in_transactions:
            self.add(source, rng.randrange(1, 10))
            return
        transaction = Transaction("producer", 0)
        self.add(source, rng.randrange(1, 6), transaction)
        self._open.append((source, transaction))
        outcome = "aborted" if rng.random() < 0.1 else "committed"
        delay_ms = rng.randrange(rng.choice((20, 3_000, 30_000)))
        world.scheduler.at(delay_ms, lambda: self._close(source, transaction, outcome))

    def write_in_transaction(self, outcome: str) -> None:
        """Somebody has a transaction open for a while."""
        world, rng = self._world, self._world.rng
        source = rng.choice(world.sources())
        log = world.broker.log(source)
        transaction = Transaction("foreign", 0)
        for _ in range(rng.randrange(1, 5)):
            number = -world.named()
            stored, _ = make_message(rng, number, world.now, 100)
            log.append(with_route(stored, number) if world.plan.routes else stored, transaction)
            self.add(source, rng.randrange(2))
        self._open.append((source, transaction))
        delay_ms = rng.randrange(rng.choice((3_000, 60_000, 400_000)))
        world.scheduler.at(delay_ms, lambda: self._close(source, transaction, outcome))

    def hold_ledger(self) -> None:
        """Another connector writes to the same ledger, and leaves its transaction open."""
        world = self._world
        transaction = Transaction("other", 0)
        entry = {"connector": "other", "at_ms": world.now, "type": "note"}
        stored = Stored(json.dumps(entry).encode(), b"other", (), 0, world.now)
        log = world.broker.topics[world.plan.ledger][0]
        log.append(stored, transaction)

        def end() -> None:
            transaction.state = world.rng.choice(("committed", "aborted"))
            log.mark(transaction)

        world.scheduler.at(world.rng.randrange(world.rng.choice((2_000, 60_000))), end)

    def _close(self, source: TopicPartition, transaction: Transaction, outcome: str) -> None:
        if transaction.state == "open" and source not in self._held_back:
            transaction.state = outcome
            self._world.broker.log(source).mark(transaction)

    def make_holes(self) -> None:
        """Compacted away before anybody read them, or control records."""
        world = self._world
        log = world.broker.log(world.rng.choice(world.sources()))
        for _ in range(world.rng.randrange(1, 8)):
            log.append(None)

    def heal(self) -> None:
        """What is open is closed, but for some of it."""
        world = self._world
        for source, transaction in self._open:
            if transaction.state == "open":
                if world.rng.random() < 0.3:
                    world.faults.note("stable offset that never moves")
                    self._held_back.add(source)
                else:
                    self._close(source, transaction, "committed")
