"""Inserts in flight: how many ranges may be on their way to one replica of a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.core.bundles import replica_number
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.replicas import turn

#: Unless the configuration says otherwise.
INFLIGHT_INSERTS_MAX = 32
#: Nobody may ask for more.
INFLIGHT_INSERTS_LIMIT = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block goes first; what a failing replica hands on is not counted there.

    :param target: database.table.
    :param replica: its URL.
    """

    target: str
    shard: str
    replica: str


class InFlight:
    """Counts the ranges of a round that are out, or go out, by where their blocks go.

    A range counts at all of its places from the moment it is sent until it comes back, although
    it inserts only at the end, into one place after the other: there are never more inserts. Where
    no more tasks can run at once than `most`, nothing is counted: a task inserts one block after
    the other, and dozens of small ranges share one.

    :param most: at each place; at least 1.
    :param tasks: that can run at once.
    :param replicas: URLs by name of the shard, in order of preference.
    """

    def __init__(self, most: int, replicas: Mapping[str, Sequence[str]], tasks: int) -> None:
        self._tasks, self._configured = tasks, most
        self.limit(None)
        self._replicas = replicas
        self._preferred: Collection[str] = ()
        self._behind: Collection[str] = ()
        self._counts: Counter[Place] = Counter()
        self._known: dict[tuple[str, str, int], frozenset[Place]] = {}

    def limit(self, most: int | None) -> None:
        """So many from now on, None: as at first; what is out already stays out."""
        self._most = self._configured if most is None else most

    def use(
        self,
        replicas: Mapping[str, Sequence[str]],
        preferred: Collection[str] = (),
        behind: Collection[str] = (),
    ) -> None:
        """These are the replicas from now on; what is out already is counted where it would go.

        :param preferred: those that blocks go to first.
        :param behind: those that they go to last.
        """
        self._replicas, self._preferred, self._behind = replicas, preferred, behind
        self._known.clear()

    def begin(self, tasks: int) -> None:
        """A new round: nothing is counted yet.

        :param tasks: that can run at once now.
        """
        self._tasks = tasks
        self._counts.clear()

    def places(
        self, spec: LoadSpec, digest: str, source: TopicPartition, bundle: str = ""
    ) -> frozenset[Place]:
        """Where the blocks of a range, or of a bundle, go, under the load spec that makes them.

        :param digest: of the load spec. Kept by it, since every round asks for each range.
        :param source: of the first range.
        :param bundle: its name, "" of a range alone.
        """
        key = digest, source.topic, replica_number(source, bundle)
        if key not in self._known:
            self._known[key] = frozenset(self._find(spec, *key[1:]))
        return self._known[key]

    def has_room(self, places: frozenset[Place]) -> bool:
        """Whether a range may go to these places now."""
        if self._tasks <= self._most:
            return True
        return all(self._counts[place] < self._most for place in places)

    def add(self, places: frozenset[Place]) -> None:
        """Count a range that is out, or goes out."""
        self._counts.update(places)

    def _find(self, spec: LoadSpec, topic: str, number: int) -> Iterator[Place]:
        for table in spec.tables_of(topic):
            replicated = dict(table.zookeeper_paths)
            for shard in () if table.parked else table.shards:
                urls = self._replicas.get(shard)
                if urls:
                    order = turn(urls, number, self._preferred)
                    first = min(order, key=lambda url: url in self._behind)
                    url = first if shard in replicated else urls[0]
                    yield Place(table.target, shard, url)
