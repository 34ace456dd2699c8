"""Facts about source topics: last stable offsets, beginnings, ids."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, OffsetSpec

from sluice.core.errors import SluiceError, TerminalError
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, TopicPartition
from sluice.core.topics import short_topic_id
from sluice.kafka import topics as topics_module
from sluice.kafka.clients import KafkaAccess, make_consumer
from sluice.kafka.errors import OPEN_TRANSACTION_HINT, StalledError, kafka_error
from sluice.kafka.topics import cluster_metadata, described

if TYPE_CHECKING:
    from sluice.kafka.wire.ends import StableEnds

_logger = logging.getLogger("sluice.kafka")

#: The client asked the wrong broker, or for a leader's former term; or it knows no leader of a
#: topic that was made, or fewer partitions than were added, a moment ago, and goes on to say so
#: until it is told to ask.
_STALE_LEADER = {
    ck.KafkaError._NOENT,
    ck.KafkaError._UNKNOWN_PARTITION,
    ck.KafkaError.FENCED_LEADER_EPOCH,
    ck.KafkaError.UNKNOWN_LEADER_EPOCH,
    ck.KafkaError.NOT_LEADER_FOR_PARTITION,
}


#: A transaction that has ended is told as open for a moment: brokers write its markers after.
_TOLD_AFTER_SECONDS = 1.0
_COMMITTED_EVERY_SECONDS = 0.05


class TopicMissingError(TerminalError):
    """A configured topic does not exist."""

    hint = "Create the topic, or take it out of `topics` in the connector and its tables."


def _plain(ends: Mapping[TopicPartition, EpochOffset]) -> dict[TopicPartition, int]:
    return {source: end.offset for source, end in ends.items()}


class SourceLog:
    """Reads facts about topics through one admin client.

    :param ends: asks for last stable offsets over connections of its own, which costs a twentieth;
        None: the admin client does it, whatever security the brokers want.
    """

    def __init__(self, admin: AdminClient, ends: StableEnds | None = None) -> None:
        self._admin = admin
        self._ends = ends

    def topics(self, names: Iterable[str], *, partial: bool = False) -> dict[str, tuple[str, int]]:
        """Short id and number of partitions of each topic, in one request.

        :param partial: leave out topics that do not exist.
        :raises TopicMissingError: one of them does not exist.
        """
        wanted = sorted(set(names))
        found: dict[str, tuple[str, int]] = {}
        descriptions = described(self._admin, wanted)
        for name in wanted:
            description = descriptions.get(name)
            if description is None:
                if partial:
                    continue
                raise TopicMissingError(f"topic {name} does not exist")
            uuid = description.topic_id
            identity = short_topic_id(
                uuid.get_most_significant_bits(), uuid.get_least_significant_bits()
            )
            found[name] = (identity, len(description.partitions))
        return found

    def names(self) -> list[str]:
        """The names of all topics that this user may see, sorted."""
        return sorted(name for name, topic in self._listed().items() if topic.error is None)

    def others(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Every partition in the cluster that this user may see, except of these topics."""
        left_out = set(topics)
        return [
            TopicPartition(name, number)
            for name, topic in sorted(self._listed().items())
            if name not in left_out and topic.error is None
            for number in sorted(topic.partitions)
        ]

    def _listed(self) -> dict[str, Any]:
        return dict(cluster_metadata(self._admin, "", topics_module.ADMIN_TIMEOUT_SECONDS).topics)

    def stable_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """Last stable offset of each partition, fresh from the broker; ends are exclusive. Always
        by the admin client: who asks again and again asks for others by `epoch_ends`.

        :param partial: leave out partitions that do not answer, unless none does.
        """
        return _plain(self._offsets(sources, OffsetSpec.latest(), partial=partial))

    def epoch_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> Mapping[TopicPartition, EpochOffset]:
        """The same, with the epoch of the leader that told. The same object may come again while
        nothing has changed."""
        if self._ends is None:
            return self._offsets(sources, OffsetSpec.latest(), partial=partial)
        found, failure = self._ends.ask(list(sources))
        if failure is not None and not (partial and found):
            raise failure
        return found

    def leader_of(self, source: TopicPartition) -> int:
        """The id of the broker that leads a partition, as far as its end was asked for; -1: it is
        not known."""
        return -1 if self._ends is None else self._ends.leader_of(source)

    def log_ends(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """Ends of the logs, open transactions included; ends are exclusive."""
        uncommitted = ck.IsolationLevel.READ_UNCOMMITTED
        return _plain(self._offsets(sources, OffsetSpec.latest(), uncommitted, partial=partial))

    def wait_until_committed(
        self, sources: Iterable[TopicPartition], patience_seconds: float
    ) -> None:
        """Wait until nothing that is written by now is held back by an open transaction. The log
        says once of each partition that it is waited for.

        :raises StalledError: one is open for longer.
        :raises SluiceError: a broker does not tell.
        """
        ends = self.log_ends(sources)
        began, told = time.monotonic(), set[TopicPartition]()
        while True:
            stable = self.stable_ends(ends)
            held = {source for source, end in ends.items() if stable[source] < end}
            if not held:
                return
            waited = time.monotonic() - began
            for source in sorted(held - told) if waited > _TOLD_AFTER_SECONDS else ():
                told.add(source)
                _logger.warning(
                    "%s: a transaction of another producer is open from offset %d on; it is waited "
                    "for, for %.0f s at most",
                    source,
                    stable[source],
                    patience_seconds,
                )
            if waited > patience_seconds:
                source = min(held)
                what = f"{source} cannot be read beyond offset {stable[source]}"
                why = f"a transaction of another producer is open there for {waited:.0f} s"
                raise StalledError(f"{what}: {why}", OPEN_TRANSACTION_HINT)
            time.sleep(_COMMITTED_EVERY_SECONDS)

    def begins(
        self, sources: Iterable[TopicPartition], *, partial: bool = False
    ) -> dict[TopicPartition, int]:
        """First offset that each log still holds."""
        return _plain(self._offsets(sources, OffsetSpec.earliest(), partial=partial))

    def at_time(
        self, sources: Iterable[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """First offset whose message is not older; -1 if there is none."""
        return _plain(self._offsets(sources, OffsetSpec.for_timestamp(timestamp_ms)))

    def _offsets(
        self,
        sources: Iterable[TopicPartition],
        spec: OffsetSpec,
        isolation: ck.IsolationLevel = ck.IsolationLevel.READ_COMMITTED,
        *,
        partial: bool = False,
    ) -> dict[TopicPartition, EpochOffset]:
        request = {ck.TopicPartition(s.topic, s.partition): spec for s in sources}
        if not request:
            return {}
        futures = self._admin.list_offsets(
            request,
            isolation_level=isolation,
            request_timeout=topics_module.ADMIN_TIMEOUT_SECONDS,
        )
        found: dict[TopicPartition, EpochOffset] = {}
        failure: SluiceError | None = None
        stale: set[str] = set()
        for source, future in futures.items():
            try:
                told = future.result()
            except ck.KafkaException as error:
                where = f"{source.topic}[{source.partition}]"
                failure = kafka_error(f"listing offsets of {where}", error)
                if error.args[0].code() in _STALE_LEADER:
                    stale.add(source.topic)
                continue
            epoch = EPOCH_UNKNOWN if told.leader_epoch is None else told.leader_epoch
            found[TopicPartition(source.topic, source.partition)] = EpochOffset(told.offset, epoch)
        for topic in sorted(stale):
            self._learn_leaders(topic)
        if failure is not None and not (partial and found):
            raise failure
        return found

    def _learn_leaders(self, topic: str) -> None:
        """Ask who leads now. librdkafka 2.16 keeps a leader that an admin client has learnt
        for 15 minutes, even if that is what the broker complains about [measured]."""
        try:
            self._admin.list_topics(topic, timeout=topics_module.ADMIN_TIMEOUT_SECONDS)
        except ck.KafkaException as error:
            _logger.debug("reading the leaders of %s: %s", topic, error)


#: The loop stands still meanwhile, and who stands still for `silent_after` is taken for dead.
_ANSWER_SECONDS = 3.0

#: What a consumer that begins at a place which is not there any more is told; one that was cut off
#: is named so in the text.
_RESET_CODES = (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError._LOG_TRUNCATION)
_CUT = "truncation"


@dataclass(frozen=True, slots=True)
class Cuts:
    """What is known of logs whose leader has changed.

    :param found: which were cut below what is recorded, and where, in words.
    :param unknown: of which that cannot be told now, and why.
    """

    found: Mapping[TopicPartition, str] = field(default_factory=dict)
    unknown: Mapping[TopicPartition, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """What is unknown, in words."""
        source = min(self.unknown)
        others = f" and {len(self.unknown) - 1} others" if len(self.unknown) > 1 else ""
        return f"{source}{others}: {self.unknown[source]}"


def find_cuts(access: KafkaAccess, points: Mapping[TopicPartition, EpochOffset]) -> Cuts:
    """Which logs were cut below these points (KIP-320). One whose first message cannot be read, or
    whose leader does not answer, keeps no other from being told of.

    After an unclean election, or a power failure of the last replica in sync, a log may be cut
    below what was read from it, and filled again with other messages under the same offsets.

    A consumer that begins with a leader epoch asks the broker where that epoch ended
    (OffsetForLeaderEpoch), before it reads: the first message, or the log's end, says that nothing
    was cut. So it works with every login that the client knows.

    :param points: where a log's end was, and in which epoch; those of unknown epochs are not asked.
    :raises SluiceError: the client reports what concerns no partition.
    """
    waiting = {source for source, point in points.items() if point.epoch != EPOCH_UNKNOWN}
    cuts, unknown = dict[TopicPartition, str](), dict[TopicPartition, str]()
    if not waiting:
        return Cuts()
    small: dict[str, str | int | bool] = {"fetch_message_max_bytes": 1024, "fetch_wait_max_ms": 10}
    consumer = make_consumer(access, enable_partition_eof=True, **small)
    until = time.monotonic() + _ANSWER_SECONDS
    try:
        consumer.assign(
            [
                ck.TopicPartition(
                    source.topic,
                    source.partition,
                    points[source].offset,
                    leader_epoch=points[source].epoch,
                )
                for source in sorted(waiting)
            ]
        )
        while waiting and time.monotonic() < until:
            for message in consumer.consume(500, 0.0) or consumer.consume(1, 0.05):
                source = TopicPartition(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() in _RESET_CODES:
                    # What is gone from the log's begin is judged by its begin.
                    if _CUT in error.str():
                        cuts[source] = error.str()
                elif error is not None and error.code() != ck.KafkaError._PARTITION_EOF:
                    failure = kafka_error("asking for its leader epochs", error)
                    if source not in points:
                        raise failure
                    unknown[source] = str(failure)
                waiting.discard(source)
    finally:
        consumer.close()
    silent = f"asking for its leader epochs: no answer for {_ANSWER_SECONDS:.0f} s"
    return Cuts(cuts, unknown | dict.fromkeys(waiting, silent))
