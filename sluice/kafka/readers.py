"""What reads ranges and the ends of logs, by the reader in the connector's section; and whether
what was read is of the topic that was meant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from sluice.core.errors import SluiceError
from sluice.core.ranges import TopicPartition
from sluice.core.topics import is_other_topic
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.errors import KafkaUnavailableError, UnreadRangeError, recreated
from sluice.kafka.reader import RangeReader

if TYPE_CHECKING:
    from sluice.kafka.wire.ends import StableEnds
    from sluice.kafka.wire.reader import WireReader

Reader: TypeAlias = "RangeReader | WireReader"

#: After a topic's id that is another one than was recorded.
AGAIN_SECONDS = 1.0


def make_reader(access: KafkaAccess) -> Reader:
    """What reads the ranges of this connector.

    :raises ConfigurationError: the reader is not installed, or cannot do what is configured.
    """
    if access.reader == "native":
        # Here: with the other reader nothing of this one is loaded.
        from sluice.kafka.wire.reader import WireReader

        return WireReader(access)
    return RangeReader(access)


def make_ends(access: KafkaAccess) -> StableEnds | None:
    """What asks for the last stable offsets of this connector's partitions; None: the admin client
    does."""
    if access.reader == "native":
        from sluice.kafka.wire.ends import StableEnds

        return StableEnds(access)
    return None


def require_topics(reader: Reader, recorded: Sequence[tuple[TopicPartition, str]]) -> None:
    """What was read of these partitions is of the topics that their records name (H12). No id comes
    back, so a topic that has it now had it when it was read.

    :param recorded: each with the short id of its record's topic.
    :raises UnreadRangeError: of the first that is not, or of which nobody tells.
    """
    found = _topic_ids(reader, recorded)
    for number, (source, topic_id) in enumerate(recorded):
        if source not in found:
            gone = f"reading {source}: its topic is gone, or not known to its broker yet"
            raise UnreadRangeError(number, KafkaUnavailableError(gone))
        if not is_other_topic(topic_id, found[source]):
            continue
        # Any broker may have answered, also one that has not heard yet of a topic that was made.
        time.sleep(AGAIN_SECONDS)
        if _topic_ids(reader, recorded).get(source) == found[source]:
            raise UnreadRangeError(number, recreated(source, found[source]))
        # Which of the two answers is the older one nobody knows; one may know of none.
        differ = f"reading {source}: brokers do not agree on its topic's id yet"
        raise UnreadRangeError(number, KafkaUnavailableError(differ))


def _topic_ids(
    reader: Reader, recorded: Sequence[tuple[TopicPartition, str]]
) -> dict[TopicPartition, str]:
    try:
        return reader.topic_ids([source for source, _ in recorded])
    except SluiceError as error:
        raise UnreadRangeError(0, error) from None
