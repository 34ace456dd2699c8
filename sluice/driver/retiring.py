"""Topics that were taken out of the configuration while their last range was in doubt.

Such a range may be loaded or not, and nobody else would ever find out: it is settled, under the
load spec that its record names, before its topic is let go.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sluice.core.ranges import TopicPartition
from sluice.core.records import InvalidRecordError, decode
from sluice.kafka.log import SourceLog
from sluice.kafka.recorder import Recorder

_logger = logging.getLogger("sluice.loop")

#: Committed offsets that are asked for at once.
_ASKED_MAX = 5_000


def retired(
    recorder: Recorder,
    log: SourceLog,
    topics: Iterable[str],
    elsewhere: Iterable[TopicPartition],
) -> list[TopicPartition]:
    """Partitions of other topics whose record in this group is in doubt.

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
            try:
                in_doubt = at is not None and decode(at.offset, at.metadata).in_doubt
            except InvalidRecordError:
                continue  # not a record of ours, and not a topic of ours
            if in_doubt:
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
