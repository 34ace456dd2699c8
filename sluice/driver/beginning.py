"""Where the partitions of a topic begin that this pipeline never loaded (`start`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.config import GroupStart, Start
from sluice.core.errors import ConfigurationError
from sluice.core.ledger import CommittedOffsets
from sluice.core.ranges import TopicPartition
from sluice.driver.stopped import Observed
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.log import SourceLog
from sluice.kafka.offsets import look, record_in

_logger = logging.getLogger("sluice.loop")

#: A loader's own transaction on its offsets takes milliseconds.
_OPEN_PATIENCE_SECONDS = 10.0
_NAMED_MAX = 5


class StartRefusedError(ConfigurationError):
    """A topic cannot begin where `start` says."""


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Another loader's consumer group, seen from outside.

    :param members: that may still commit offsets.
    :param found: the committed offset of each partition.
    :param unstable: partitions of which a transaction is about to replace `found`.
    """

    members: Sequence[str]
    found: CommittedOffsets
    unstable: frozenset[TopicPartition] = frozenset()


#: Looks at a group by its name, for these partitions.
AskGroup = Callable[[str, list[TopicPartition]], Predecessor]


def ask_group(access: KafkaAccess, group: str, sources: list[TopicPartition]) -> Predecessor:
    """Look at a group; nothing is joined, fenced or written."""
    members = BrokerFacts(access).members(group)
    offsets = look(access, group, sources, _OPEN_PATIENCE_SECONDS)
    return Predecessor(members, offsets.found, offsets.unstable)


def beginnings(
    start: Start, log: SourceLog, ask: AskGroup, new: Mapping[TopicPartition, Observed]
) -> dict[TopicPartition, int]:
    """The first offset to load of each new partition.

    :raises StartRefusedError: the other loader's group cannot be followed; names partitions.
    """
    if not new or start == "earliest":
        return {source: held.log_begin for source, held in new.items()}
    if start == "latest":
        for source, held in new.items():
            _logger.info(
                "%s begins at its end, %d; it held %d to there",
                source,
                held.stable_end,
                held.stable_end - held.log_begin,
            )
        return {source: held.stable_end for source, held in new.items()}
    if isinstance(start, GroupStart):
        return _behind(start, ask(start.group, list(new)), new)
    assert isinstance(start, datetime)
    offsets = log.at_time(new, int(start.timestamp() * 1000))
    return {
        source: held.stable_end if offsets[source] < 0 else offsets[source]
        for source, held in new.items()
    }


def _behind(
    start: GroupStart, group: Predecessor, new: Mapping[TopicPartition, Observed]
) -> dict[TopicPartition, int]:
    """Where the other loader stopped, or an error that says why that is not known."""
    name = start.group
    if group.members:
        raise StartRefusedError(
            f'start = "group:{name}": the group has {len(group.members)} members that may still '
            f"load: {', '.join(group.members[:_NAMED_MAX])}",
            "Stop the other loader. A member that was killed is forgotten when its session has "
            "timed out (45 s by default).",
        )
    if group.unstable:
        raise StartRefusedError(
            f'start = "group:{name}": a transaction on the group\'s offsets is open for '
            f"{_named(group.unstable)}",
            "Stop the other loader, and wait until its transaction is committed or timed out.",
        )
    found = {source: at for source in new if (at := group.found.get(source)) is not None}
    missing = [source for source in new if source not in found]
    if missing and not start.earliest:
        raise StartRefusedError(
            f'start = "group:{name}": the group has committed no offset for {_named(missing)}',
            f'Check the name; or start = "group:{name},earliest" begins these partitions at their '
            "earliest message.",
        )
    records = {source: record_in(at) for source, at in found.items()}
    doubtful = [source for source, record in records.items() if record and record.in_doubt]
    if doubtful:
        raise StartRefusedError(
            f'start = "group:{name}": the group belongs to another pipeline of Sluice, and its '
            f"last range is in doubt for {_named(doubtful)}",
            "Start that pipeline once more and stop it with SIGTERM: it settles its ranges.",
        )
    outside = [
        f"{source} at {at.offset}, where the log holds "
        f"[{new[source].log_begin}, {new[source].stable_end})"
        for source, at in found.items()
        if not new[source].log_begin <= at.offset <= new[source].stable_end
    ]
    if outside:
        raise StartRefusedError(
            f'start = "group:{name}": the group stands outside of the log: {_joined(outside)}',
            "Messages expired before they were loaded, the topic was created again, or an open "
            'transaction of a producer hides its end. Choose another start, as "earliest".',
        )
    begins = {source: at.offset for source, at in found.items()}
    begins |= {source: new[source].log_begin for source in missing}
    for source, offset in begins.items():
        why = "the earliest message" if source in missing else f"where the group {name} stands"
        _logger.info("%s begins at %d, %s", source, offset, why)
    return begins


def _named(sources: Sequence[TopicPartition] | frozenset[TopicPartition]) -> str:
    return _joined([str(source) for source in sorted(sources)])


def _joined(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"{', '.join(names[:_NAMED_MAX])}{more}"
