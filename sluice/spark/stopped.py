"""Why a partition cannot be taken over, in words, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.core.errors import TerminalError
from sluice.core.ledger import CommittedOffset
from sluice.core.ranges import Range, TopicPartition
from sluice.core.records import Record
from sluice.core.replay import Decision, Topic


class PartitionStoppedError(TerminalError):
    """A partition cannot be taken over without a person's decision."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was read about one partition."""

    source: TopicPartition
    found: CommittedOffset | None
    record: Record | None
    topic: Topic
    topic_id: str
    log_begin: int
    stable_end: int


def unprobable(block_range: Range, gone: str) -> PartitionStoppedError:
    """A range in doubt whose tables were altered, and that one of them, or one of their shards, is
    not configured for any more.

    :param gone: which, in words.
    """
    source = block_range.source
    which = f"--topic {source.topic} --partition {source.partition}"
    return PartitionStoppedError(
        f"{block_range} is in doubt: its tables were altered, so it cannot be repeated, and it "
        f"cannot be probed: {gone} is not configured any more",
        f"Put it back, or look into its table, then `sluice resolve CONFIG {which} "
        "--as loaded|not-loaded`.",
    )


def stop_error(decision: Decision, item: Observed, why: str) -> PartitionStoppedError:
    """The error of a decision that stops a partition.

    :param why: why its range cannot be replayed, where that is what stops it.
    """
    source, record = item.source, item.record
    where = f"{source}"
    held = f"[{item.log_begin}, {item.stable_end})"
    which = f"--topic {source.topic} --partition {source.partition}"
    position = record.begin if record else 0
    texts: Mapping[Decision, tuple[str, str]] = {
        Decision.STOP_FOREIGN: (
            f"{where}: someone else committed offset "
            f"{item.found.offset if item.found else '-'} in this consumer group",
            f"Find and stop that client, then `sluice adopt CONFIG {which} --offset N`.",
        ),
        Decision.STOP_OFFSETS_LOST: (
            f"{where}: the group has no offset any more, but the ledger has a record of it",
            f"`sluice status` and `sluice ledger` show the last one; then "
            f"`sluice adopt CONFIG {which} --offset N`.",
        ),
        Decision.STOP_LEDGER: (
            f"{where}: the group and the ledger disagree about the last record",
            f"Compare both, then `sluice adopt CONFIG {which} --offset N`.",
        ),
        Decision.STOP_RECREATED: (
            f"{where}: the topic was deleted and created again (its id is {item.topic_id} now)",
            f"`sluice adopt CONFIG {which} --offset 0` loads the new one from its beginning.",
        ),
        Decision.STOP_LOG_BEGIN: (
            f"{where}: the log holds {held}, but {position} is the next offset to load; "
            "messages expired before they were loaded",
            f"`sluice adopt CONFIG {which} --offset {item.log_begin}` accepts the loss.",
        ),
        Decision.STOP_LOG_END: (
            f"{where}: the log holds {held}, but offsets up to "
            f"{record.end if record else position} are recorded; the log was truncated",
            f"Restore the log, or `sluice adopt CONFIG {which} --offset N`.",
        ),
        Decision.STOP_RESOLVE: (
            f"{where}: [{position}, {record.end if record else position}) is in doubt: {why}",
            f"Look into the table, then `sluice resolve CONFIG {which} --as loaded|not-loaded`.",
        ),
    }
    message, hint = texts[decision]
    return PartitionStoppedError(message, hint)
