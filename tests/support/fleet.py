"""What the group says of a fleet, from outside: who owns which partition, and since when nothing of
it was settled."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sluice.core.fleet.placement import is_incarnation
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_unstable_reader
from sluice.kafka.errors import KafkaUnavailableError
from sluice.kafka.offsets import ask, owner_in

LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Look:
    """:param at: seconds of the monotonic clock.
    :param settled: by partition, up to where all is settled; `owners`: who records next.
    """

    at: float
    settled: Mapping[TopicPartition, int]
    owners: Mapping[TopicPartition, str]


class GroupWatch:
    """Looks at a group until it is closed, in a thread of its own.

    :param sources: of which something new is there all the time.
    """

    def __init__(self, brokers: str, group: str, sources: Collection[TopicPartition]) -> None:
        self._reader = make_unstable_reader(KafkaAccess("dc1", brokers), group)
        self._sources = list(sources)
        self._looks: list[Look] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group watch")
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._reader.close()

    def owned_by(self, name: str) -> set[TopicPartition]:
        """What a member has now, under whatever id."""
        owners = self._looks[-1].owners
        return {source for source, owner in owners.items() if is_incarnation(owner, name)}

    def owner_ids(self) -> Mapping[TopicPartition, str]:
        """By partition, who records next."""
        return self._looks[-1].owners

    def longest_pause(self, sources: Collection[TopicPartition], since: float) -> float:
        """For how many seconds at most, since then, nothing of one of these was settled."""
        return max((self._pause(source, since) for source in sources), default=0.0)

    def _pause(self, source: TopicPartition, since: float) -> float:
        longest, moved_at, before = 0.0, since, None
        for look in list(self._looks):
            now = look.settled[source]
            if before is not None and now != before:
                if look.at >= since:
                    longest = max(longest, look.at - moved_at)
                moved_at = max(since, look.at)
            before = now
        return max(longest, self._looks[-1].at - moved_at)

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                found = ask(self._reader, self._sources, 10.0)
            except KafkaUnavailableError:
                continue
            settled = {s: 0 if at is None else at.offset for s, at in found.items()}
            owners = {source: owner_in(at) for source, at in found.items()}
            self._looks.append(Look(time.monotonic(), settled, owners))
