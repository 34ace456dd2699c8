"""Where a pipeline stands, seen from outside: its committed offsets, read again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import confluent_kafka as ck

from sluice.core.errors import SluiceError
from sluice.core.records import decode
from sluice.kafka.clients import KafkaAccess, make_consumer

_LOOK_SECONDS = 0.5
_TIMEOUT_SECONDS = 3.0


class Positions:
    """A thread that follows the settled positions and their owners.

    :param access: to the broker directly, past every fault of the network.
    """

    def __init__(self, access: KafkaAccess, group: str, topic: str, partitions: int) -> None:
        self._sources = [ck.TopicPartition(topic, number) for number in range(partitions)]
        self._consumer = make_consumer(access, group)
        self._settled = 0
        self._owners: frozenset[str] = frozenset()
        self._moved_at = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="positions", daemon=True)
        self._thread.start()

    @property
    def settled(self) -> int:
        """Sum of all settled positions."""
        return self._settled

    @property
    def owners(self) -> frozenset[str]:
        """Who owns the partitions."""
        return self._owners

    def moved_within(self, seconds: float) -> bool:
        """Whether anything was settled lately."""
        return time.monotonic() - self._moved_at < seconds

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        self._thread.join()
        self._consumer.close()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_SECONDS):
            try:
                found = self._consumer.committed(self._sources, timeout=_TIMEOUT_SECONDS)
                records = [decode(f.offset, f.metadata) for f in found if f.offset >= 0]
            except (ck.KafkaException, SluiceError):
                continue  # the broker is away; that is what this run is about
            settled = sum(record.begin for record in records)
            if settled != self._settled:
                self._settled, self._moved_at = settled, time.monotonic()
            self._owners = frozenset(record.owner for record in records)


class AllPositions:
    """Several connectors as one."""

    def __init__(self, connectors: Sequence[Positions]) -> None:
        self.connectors = connectors

    @property
    def settled(self) -> int:
        """Sum of all settled positions."""
        return sum(each.settled for each in self.connectors)

    @property
    def owners(self) -> frozenset[str]:
        """Who owns the partitions."""
        return frozenset().union(*(each.owners for each in self.connectors))

    def moved_within(self, seconds: float) -> bool:
        """Whether anything was settled lately, by any of them."""
        return any(each.moved_within(seconds) for each in self.connectors)

    def close(self) -> None:
        """Stop following."""
        for each in self.connectors:
            each.close()
