"""Which partitions bring much more than others: no member is to have most of those (`placement`).

Who owns a partition measures what comes to it, and says in its reports how much more that is than
what a partition of the fleet brings on average. So all members count the same, whatever each of
them sees, and where all partitions bring about as much nothing is said, and nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import fmean

from sluice.core.fleet.records import Report
from sluice.core.ranges import TopicPartition

#: It is measured over so long what comes to a partition. Its level goes by the average of so many
#: times or more, the later ones counting for more, and stays for as many at least. By the last time
#: alone 200 partitions to which a fifth more or less comes each minute moved 400 times an hour
#: between four members [measured, in a model].
MEASURED_MS, MEASURED_TIMES = 60_000, 10
#: What waits counts as if it came within so long.
WAITING_SECONDS = 600.0
#: Who brings fewer messages a second is not busy, however little the others bring.
RATE_MIN = 100.0
#: A level changes where the measured one is so far from it: what varies by less moves nothing.
OFF_BY = 0.9
#: A member names so many partitions at most.
NAMED_MAX = 64
#: A partition counts as busy until nobody has said so for so many reports of who looks: when it
#: moves, its new owner says so some seconds after the one before has stopped to.
KEPT_REPORTS = 30


class Busy:
    """Of the partitions of one member.

    The *level* of a partition is n where it brings 2^n times as much as a partition of the fleet
    does on average, rounded; with a level of 1 and more it is busy.
    """

    def __init__(self) -> None:
        #: When each partition was looked at first, or measured last, and where it ended then.
        self._since: dict[TopicPartition, tuple[int, int]] = {}
        #: Messages a second, on average; and how often that was measured since the level changed.
        self._rates: dict[TopicPartition, float] = {}
        self._times: dict[TopicPartition, int] = {}
        self._levels: dict[TopicPartition, int] = {}

    def see(
        self,
        stand: Iterable[tuple[TopicPartition, int, int]],
        said: Mapping[TopicPartition, int],
        average: float,
        now_ms: int,
    ) -> None:
        """A report is about to be made.

        :param stand: each partition that it has, its last stable offset, and how many offsets wait
            before that one.
        :param said: the levels that members say: what came from another one has the same here.
        :param average: messages a second of a partition of the fleet; 0: nobody knows yet.
        """
        due: list[TopicPartition] = []
        held = set[TopicPartition]()
        for source, end, waiting in stand:
            held.add(source)
            since_ms, since_end = self._since.setdefault(source, (now_ms, end))
            if source not in self._levels:
                self._levels[source] = said.get(source, 0)
            if not 0 <= now_ms - since_ms < MEASURED_MS:
                self._since[source] = now_ms, end
                # A clock that was set back measures nothing.
                if now_ms > since_ms:
                    came = max(0, end - since_end) * 1000 / (now_ms - since_ms)
                    self._measured(source, came + waiting / WAITING_SECONDS)
                    due.append(source)
        for kept in (self._since, self._rates, self._times, self._levels):
            for source in kept.keys() - held:
                del kept[source]
        average = average or self.average
        for source in due:
            level = _level(self._rates[source], average, self._levels[source])
            if self._times[source] >= MEASURED_TIMES and level != self._levels[source]:
                self._levels[source], self._times[source] = level, 0

    def _measured(self, source: TopicPartition, rate: float) -> None:
        times = self._times[source] = self._times.get(source, 0) + 1
        before = self._rates.get(source, rate)
        self._rates[source] = before + (rate - before) / min(times, MEASURED_TIMES)

    @property
    def average(self) -> float:
        """Messages a second of one of its partitions; 0: none was measured yet."""
        return fmean(self._rates.values()) if self._rates else 0.0

    @property
    def named(self) -> dict[str, int]:
        """What a report says: the level of each busy partition, the busiest ones first."""
        busy = sorted((-level, source) for source, level in self._levels.items() if level)
        return {_name_of(source): -level for level, source in busy[:NAMED_MAX]}


def _level(rate: float, average: float, before: int) -> int:
    if rate < (RATE_MIN / 2 if before else RATE_MIN):
        return 0
    exact = math.log2(rate / average)
    return before if abs(exact - before) < OFF_BY else max(0, round(exact))


def _name_of(source: TopicPartition) -> str:
    return f"{source.topic}/{source.partition}"


class Said:
    """What reports say of partitions, as one member has read them."""

    def __init__(self) -> None:
        #: The level of each partition, and the number of the observer's report at which it was
        #: said last.
        self._levels: dict[TopicPartition, tuple[int, int]] = {}

    def take(self, report: Report, number: int) -> None:
        """The next report.

        :param number: of the observer's reports that had come back.
        """
        for name, level in report.busy.items():
            topic, _, partition = name.rpartition("/")
            if partition.isdecimal():
                self._levels[TopicPartition(topic, int(partition))] = level, number

    def levels(self, number: int) -> dict[TopicPartition, int]:
        """By busy partition, its level."""
        last = number - KEPT_REPORTS
        self._levels = {source: at for source, at in self._levels.items() if at[1] > last}
        return {source: level for source, (level, _) in self._levels.items()}


def average_of(reports: Collection[Report]) -> float:
    """Messages a second that come to a partition, on average; 0: nobody knows yet."""
    known = [each for each in reports if each.messages_per_partition > 0 and each.partitions > 0]
    count = sum(each.partitions for each in known)
    brought = sum(each.messages_per_partition * each.partitions for each in known)
    return brought / count if count else 0.0
