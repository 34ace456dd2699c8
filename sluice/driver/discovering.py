"""The topics that a connector loads today, where an expression takes some of them."""

from __future__ import annotations

import logging
from collections.abc import Collection

from sluice.config import Configuration
from sluice.config.topics import why_refused
from sluice.kafka.log import SourceLog

_logger = logging.getLogger("sluice.loop")


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
    """Finds topics that an expression takes while a loop runs.

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
        self._told: set[str] = set()

    def is_named(self, topic: str) -> bool:
        """Whether the configuration names this topic, so that it must exist."""
        return topic in self._connector.topics

    def find(self, known: Collection[str]) -> list[str]:
        """Topics that are not known yet. One that must not be loaded is told of once, and left
        alone: the others go on.

        :raises TransientError: Kafka does not answer.
        """
        found = []
        for topic in topics_today(self._configuration, self._connector.name, self._log):
            if topic in known or self.is_named(topic):
                continue
            refusal = why_refused(
                self._configuration, self._connector.name, topic, self._told_apart
            )
            if refusal is None:
                found.append(topic)
            elif topic not in self._told:
                self._told.add(topic)
                _logger.error("%s; it is not loaded. Try: %s", refusal, refusal.hint)
        return found
