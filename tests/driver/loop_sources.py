"""What Kafka says of the topics of a world in memory; see `loop_world`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.core.errors import TransientError
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.kafka.log import Cuts, TopicMissingError

Points = dict[TopicPartition, EpochOffset]


class Sources:
    """What the logs of a world say."""

    ends: dict[TopicPartition, int]
    unreadable: set[TopicPartition]
    log_begins: dict[TopicPartition, int]
    epoch: int
    leaders: dict[TopicPartition, int]
    cut_at: dict[TopicPartition, int]
    #: Whose new leader says nothing of cuts.
    unasked: set[TopicPartition]
    ids: dict[str, str]
    asked_epochs: list[Points]
    topic_requests: int

    def stable_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        asked = list(sources)
        answers = {source: self.ends[source] for source in asked if source not in self.unreadable}
        if (asked and not answers) or (len(answers) < len(asked) and not partial):
            raise TransientError("a partition does not answer")
        return answers

    log_ends = stable_ends

    def epoch_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, EpochOffset]:
        told = self.stable_ends(sources, partial=partial).items()
        return {source: EpochOffset(end, self.epoch) for source, end in told}

    def begins(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        told = self.stable_ends(sources, partial=partial)
        return {source: self.log_begins.get(source, 0) for source in told}

    def leader_of(self, source: TopicPartition) -> int:
        return self.leaders.get(source, -1)

    def find_cuts(self, points: Mapping[TopicPartition, EpochOffset]) -> Cuts:
        self.asked_epochs.append(dict(points))
        told = {source: at for source, at in points.items() if source not in self.unasked}
        found = {s: "cut" for s, at in told.items() if at.offset > self.cut_at.get(s, 1 << 60)}
        return Cuts(found, dict.fromkeys(points.keys() - told.keys(), "no answer for 3 s"))

    def topics(self, names: Iterable[str], *, partial: bool = False) -> dict[str, tuple[str, int]]:
        self.topic_requests += 1
        found = {}
        for name in names:
            if name not in self.ids and partial:
                continue
            if name not in self.ids:
                raise TopicMissingError(f"topic {name} does not exist")
            found[name] = (self.ids[name], sum(source.topic == name for source in self.ends))
        return found
