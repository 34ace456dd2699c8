"""Whether a log still holds what it held in an earlier leader epoch (KIP-320).

After an unclean election, or a power failure of the last replica in sync, a log may be cut below
what was read from it, and filled again with other messages under the same offsets.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import confluent_kafka as ck

from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, TopicPartition
from sluice.kafka.clients import KafkaAccess, make_consumer
from sluice.kafka.errors import KafkaUnavailableError, kafka_error

_READER_GROUP = "sluice.epoch-reader"
_ANSWER_SECONDS = 15.0

#: What a consumer that begins at a place which is not there any more is told; one that was cut off
#: is named so in the text.
_RESET_CODES = (ck.KafkaError._AUTO_OFFSET_RESET, ck.KafkaError._LOG_TRUNCATION)
_CUT = "truncation"


def find_cuts(
    access: KafkaAccess, points: Mapping[TopicPartition, EpochOffset]
) -> dict[TopicPartition, str]:
    """Which logs were cut below these points, and where, in words.

    A consumer that begins with a leader epoch asks the broker where that epoch ended
    (OffsetForLeaderEpoch), before it reads: the first message, or the log's end, says that nothing
    was cut. So it works with every login that the client knows.

    :param points: where a log's end was, and in which epoch; those of unknown epochs are not asked.
    :raises KafkaUnavailableError: not all partitions answer.
    """
    waiting = {source for source, point in points.items() if point.epoch != EPOCH_UNKNOWN}
    cuts: dict[TopicPartition, str] = {}
    if not waiting:
        return cuts
    small: dict[str, str | int | bool] = {"fetch_message_max_bytes": 1024, "fetch_wait_max_ms": 10}
    consumer = make_consumer(access, _READER_GROUP, enable_partition_eof=True, **small)
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
        while waiting:
            for message in consumer.consume(500, 0.05):
                source = TopicPartition(message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is not None and error.code() not in (
                    *_RESET_CODES,
                    ck.KafkaError._PARTITION_EOF,
                ):
                    raise kafka_error(f"asking for the leader epochs of {source}", error)
                if error is not None and error.code() in _RESET_CODES and _CUT in error.str():
                    cuts[source] = error.str()
                # What is gone from the log's begin is judged by its begin.
                waiting.discard(source)
            if waiting and time.monotonic() > until:
                raise KafkaUnavailableError(
                    f"asking for the leader epochs of {min(waiting)}: no answer for "
                    f"{_ANSWER_SECONDS:.0f} s"
                )
    finally:
        consumer.close()
    return cuts
