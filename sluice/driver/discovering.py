"""The topics that a connector loads today, where an expression takes some of them, and those that
were taken out of the configuration while their last range was in doubt."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from sluice.config import Configuration
from sluice.config.topics import why_refused
from sluice.core.errors import SluiceError
from sluice.core.ranges import TopicPartition
from sluice.kafka.log import SourceLog, TopicMissingError
from sluice.kafka.offsets import record_in
from sluice.kafka.recorder import Recorder

_logger = logging.getLogger("sluice.loop")

#: A topic is gone that is missing in so many looks in a row: one broker may not know it yet.
GONE_LOOKS = 5


def topics_today(configuration: Configuration, connector: str, log: SourceLog) -> tuple[str, ...]:
    """Every topic that the connector loads. Kafka is asked only where there is an expression.

    :raises TransientError: Kafka does not answer.
    """
    named = configuration.connector(connector)
    return configuration.topics_of(connector, log.names() if named.topic_pattern else ())


def topics_to_load(
    configuration: Configuration,
    connector: str,
    log: SourceLog,
    told_apart: Collection[str] = frozenset(),
) -> tuple[str, ...]:
    """The same, for who loads them.

    :param told_apart: see `config.topics.why_refused`.
    :raises ConfigurationError: one of them must not be loaded as it is configured.
    """
    topics = topics_today(configuration, connector, log)
    for topic in topics:
        refusal = why_refused(configuration, connector, topic, told_apart)
        if refusal is not None:
            raise refusal
    if not topics:
        _logger.warning(
            'connector %s: no topic matches topic_pattern = "%s" yet; it waits for one',
            connector,
            configuration.connector(connector).topic_pattern,
        )
    return topics


class TopicFinder:
    """Finds topics that an expression takes while a loop runs, and those that were named meanwhile.
    What must not be loaded, or is gone, holds none of the others up.

    :param told_apart: see `config.topics.why_refused`.
    """

    def __init__(
        self,
        configuration: Configuration,
        connector: str,
        log: SourceLog,
        told_apart: Collection[str] = frozenset(),
    ) -> None:
        self._told_apart = told_apart
        self._configuration = configuration
        self._connector = configuration.connector(connector)
        self._log = log
        #: Topics that `partitions` left out, and why. Replaced, and never changed: another thread
        #: reads it.
        self.left_out: Mapping[str, SluiceError] = {}
        #: In how many looks in a row each topic was missing.
        self._missing: dict[str, int] = {}

    def use(self, configuration: Configuration, told_apart: Collection[str]) -> None:
        """Look for what this configuration takes from now on."""
        self._configuration, self._told_apart = configuration, told_apart
        self._connector = configuration.connector(self._connector.name)

    def is_named(self, topic: str) -> bool:
        """Whether the configuration names this topic, so that it must exist."""
        return topic in self._connector.topics

    def find(self, known: Collection[str]) -> tuple[list[str], dict[str, SluiceError]]:
        """Topics that are not known yet, and others that must not be loaded, with why not.

        :raises TransientError: Kafka does not answer.
        """
        found, refused = list[str](), dict[str, SluiceError]()
        for topic in topics_today(self._configuration, self._connector.name, self._log):
            if topic in known:
                continue
            refusal = why_refused(
                self._configuration, self._connector.name, topic, self._told_apart
            )
            if refusal is None:
                found.append(topic)
            else:
                refused[topic] = refusal
        return found, refused

    def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics that are loaded today. A topic that is gone, or must not be
        loaded, is left out; see `left_out`.

        :raises TopicMissingError: a topic is missing, perhaps for a moment.
        :raises TransientError: Kafka does not answer.
        """
        names, refused = self.find(())
        topics = self._log.topics(names, partial=True)
        missing = [name for name in names if name not in topics]
        self._missing = {name: self._missing.get(name, 0) + 1 for name in missing}
        for name, looks in self._missing.items():
            refused[name] = TopicMissingError(f"topic {name} does not exist")
            if looks < GONE_LOOKS:
                raise refused[name]
        self.left_out = refused
        return partitions_of(topics)


def partitions_of(topics: Mapping[str, tuple[str, int]]) -> list[TopicPartition]:
    """All partitions of topics, as `SourceLog.topics` tells of them."""
    return [TopicPartition(t, n) for t, (_, count) in topics.items() for n in range(count)]


#: Committed offsets that are asked for at once.
_ASKED_MAX = 5_000


def retired(
    recorder: Recorder,
    log: SourceLog,
    topics: Iterable[str],
    elsewhere: Iterable[TopicPartition],
) -> list[TopicPartition]:
    """Partitions of other topics whose record in this group is in doubt. Their ranges may be loaded
    or not, and nobody else would ever find out: they are settled, under the load specs that their
    records name, before their topics are let go.

    Ask after the configured topics were taken over: their former owner is fenced then, and
    cannot leave another range in doubt.

    :param topics: those that are configured.
    :param elsewhere: partitions that the ledger says are in doubt; those that are neither
        configured nor seen are told of.
    """
    own = set(topics)
    others = log.others(own)
    found: list[TopicPartition] = []
    for begin in range(0, len(others), _ASKED_MAX):
        asked = others[begin : begin + _ASKED_MAX]
        for source, at in recorder.committed(asked).items():
            record = record_in(at)  # of other topics there may be none of ours
            if record is not None and record.in_doubt:
                found.append(source)
    seen = set(others)
    for source in sorted(set(elsewhere) - seen):
        if source.topic not in own:
            _logger.warning(
                "%s is not configured any more, and its topic is gone or hidden from this user: "
                "its last range stays in doubt; `sluice ledger` shows it",
                source,
            )
    for source in found:
        _logger.warning(
            "%s is not configured any more, and its last range is in doubt: it is settled first",
            source,
        )
    return found
