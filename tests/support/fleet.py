"""Several drivers of one pipeline, and what `sluice fleet` and the group say of them."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.core.fleet.placement import is_incarnation
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess, make_unstable_reader
from sluice.kafka.errors import KafkaUnavailableError
from sluice.kafka.offsets import ask, owner_in
from tests.support.driver import Driver
from tests.support.world import Truth, World, order, wait_for

MEMBERS_MAX = 4
LOOK_SECONDS = 0.2
SHARED_SECONDS = 180.0


def start_member(world: World, base: Path, name: str) -> Driver:
    """Start a driver of this configuration as a member of its fleet, with a file of its own."""
    path = world.folder / f"{name}.{len(world.drivers)}.toml"
    path.write_text(base.read_text() + f'[fleet]\nmember = "{name}"\nmembers_max = {MEMBERS_MAX}\n')
    return world.run(path)


@dataclass(slots=True)
class Member:
    """What `sluice fleet` says of one.

    :param applied: by which version of tables and topics it loads, if it reports.
    """

    partitions: int = 0
    applied: str = ""


def members(world: World, base: Path) -> Mapping[str, Member]:
    """By name; "" has what nobody has that has reported."""
    answer = world.sluice("fleet", str(base), "--json")
    assert answer.returncode == 0, answer.stderr
    found = defaultdict[str, Member](Member)
    for each in json.loads(answer.stdout):
        member = found[each["member"] or ""]
        member.partitions += each["partitions"]
        member.applied = each["applied"] if each["state"] == "reports" else member.applied
    return found


def owners(world: World, base: Path) -> Mapping[TopicPartition, str]:
    """The name of who has each partition."""
    answer = world.sluice("fleet", str(base), "--plan", "--json")
    assert answer.returncode == 0, answer.stderr
    return {
        TopicPartition(each["topic"], each["partition"]): each["member"] or ""
        for each in json.loads(answer.stdout)
    }


def shared_by(world: World, base: Path, *names: str, partitions: int, share: int = 1) -> None:
    """Wait until these members, and nobody else, have all partitions: so many, or more.

    :param share: each of them has so many at least.
    """

    def is_so() -> bool:
        shares = {n: m.partitions for n, m in members(world, base).items() if m.partitions}
        is_enough = min(shares.values(), default=0) >= share
        return shares.keys() == set(names) and is_enough and sum(shares.values()) >= partitions

    wait_for(is_so, SHARED_SECONDS, f"shares of {names}")


@dataclass(slots=True)
class Produced:
    """:param number: of the last message, which is its id."""

    number: int = 0


@contextmanager
def produced(
    world: World,
    topic: str,
    truth: Truth,
    partitions: int,
    every: float = 0.2,
    busy: Mapping[int, int] | None = None,
) -> Iterator[Produced]:
    """A message for each partition, every so many seconds; for a busy one so many."""
    ended, producer, done = threading.Event(), world.producer(), Produced()

    each_time = [n for n in range(partitions) for _ in range((busy or {}).get(n, 1))]

    def produce() -> None:
        while not ended.wait(every):
            for partition in each_time:
                done.number += 1
                producer.produce(
                    topic,
                    order(done.number),
                    partition=partition,
                    on_delivery=lambda error, message, number=done.number: truth.good.setdefault(
                        message.partition(), []
                    ).append((message.offset(), number)),
                )
            producer.poll(0)
        assert producer.flush(60) == 0

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


class GroupWatch:
    """Looks at a group until it is closed, in a thread of its own.

    :param sources: of which something new is there all the time.
    """

    def __init__(self, brokers: str, group: str, sources: Collection[TopicPartition]) -> None:
        self._reader = make_unstable_reader(KafkaAccess("dc1", brokers), group)
        self._sources = list(sources)
        #: By partition, when something of it was settled, and when its owner changed, by the
        #: monotonic clock: with up to where, and who records next.
        self._settled = {source: [(0.0, -1)] for source in self._sources}
        self._owners = {source: [(0.0, "")] for source in self._sources}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="group watch")
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        self._reader.close()

    def owned_by(self, name: str) -> set[TopicPartition]:
        """What a member has now, under whatever id."""
        owners = self.owner_ids()
        return {source for source, owner in owners.items() if is_incarnation(owner, name)}

    def owned_since(self, name: str, since: float) -> set[TopicPartition]:
        """What a member, under whatever id, was seen to have got since then."""
        return {
            source
            for source, seen in self._owners.items()
            if any(at > since and is_incarnation(owner, name) for at, owner in seen)
        }

    def owner_ids(self) -> dict[TopicPartition, str]:
        """By partition, who records next."""
        return {source: seen[-1][1] for source, seen in self._owners.items()}

    def pauses(self, sources: Collection[TopicPartition], since: float) -> list[float]:
        """For each of these, for how many seconds at most, since then, nothing was settled."""
        now = time.monotonic()
        found = []
        for source in sources:
            moments = [at for at, _ in self._settled[source] if at > since]
            gaps = zip([since, *moments], [*moments, now], strict=True)
            found.append(max(end - begin for begin, end in gaps))
        return found

    def unowned(self, ended: str, sources: Collection[TopicPartition], since: float) -> list[float]:
        """For each of these, which a member had that ended then: how many seconds later another
        one had it."""
        return [
            next(
                (at for at, owner in seen if at > since and not is_incarnation(owner, ended)),
                time.monotonic(),
            )
            - since
            for source in sources
            for seen in [self._owners[source]]
        ]

    def _run(self) -> None:
        while not self._ended.wait(LOOK_SECONDS):
            try:
                found = ask(self._reader, self._sources, 10.0)
            except KafkaUnavailableError:
                continue
            now = time.monotonic()
            for source, at in found.items():
                settled, owner = 0 if at is None else at.offset, owner_in(at)
                if settled != self._settled[source][-1][1]:
                    self._settled[source].append((now, settled))
                if owner != self._owners[source][-1][1]:
                    self._owners[source].append((now, owner))
