"""Why a partition cannot be taken over, in words, and what a person can do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.core.errors import TerminalError
from sluice.core.ledger import CommittedOffset
from sluice.core.ranges import EpochOffset, Range, TopicPartition
from sluice.core.records import Record
from sluice.core.replay import Decision, Topic


class PartitionStoppedError(TerminalError):
    """A partition cannot be taken over without a person's decision."""


class UnresolvedError(PartitionStoppedError):
    """Only a person can say what became of the range in doubt."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was read about one partition.

    :param cut: where its log was cut below what is recorded, in words; "": nowhere.
    :param is_told: False: its leader has told nothing; what its record says is taken to be there.
    """

    source: TopicPartition
    found: CommittedOffset | None
    record: Record | None
    topic: Topic
    topic_id: str
    log_begin: int
    end: EpochOffset
    cut: str = ""
    is_told: bool = True

    @property
    def stable_end(self) -> int:
        """Everything below is there for good, as far as its leader knows."""
        return self.end.offset


def _which(connector: str, source: TopicPartition) -> str:
    """A partition, as commands are told of it."""
    return f"--connector {connector} --topic {source.topic} --partition {source.partition}"


def not_to_be_cut(block_range: Range, end: int, connector: str) -> PartitionStoppedError:
    """A range in doubt of which some rows are loaded, and that is too heavy under today's load
    spec.

    :param end: up to where it would not be.
    """
    which = _which(connector, block_range.source)
    return PartitionStoppedError(
        f"{block_range} is too heavy for one block from offset {end} on, and some of its rows are "
        "loaded already under another load spec or ClickHouse engine, so it cannot be "
        "shortened",
        "Run it with the version of chdb and the configuration of before; or load what is missing, "
        f"then `sluice resolve CONFIG {which} --as loaded`.",
    )


def unprobable(block_range: Range, gone: str, connector: str) -> PartitionStoppedError:
    """A range in doubt whose tables were altered, and that one of them, or one of their shards, is
    not configured for any more.

    :param gone: which, in words.
    """
    which = _which(connector, block_range.source)
    return PartitionStoppedError(
        f"{block_range} is in doubt: its tables were altered, so it cannot be repeated, and it "
        f"cannot be probed: {gone} is not configured any more",
        f"Put it back, or look into its table, then `sluice resolve CONFIG {which} "
        "--as loaded|not-loaded`.",
    )


def cut_below(
    source: TopicPartition, recorded: EpochOffset, where: str, connector: str
) -> PartitionStoppedError:
    """A log does not hold any more what was recorded of it.

    :param where: it was cut, in the broker's words.
    """
    which = _which(connector, source)
    return PartitionStoppedError(
        f"{source}: the log was cut below what is recorded, up to offset {recorded.offset} of "
        f"leader epoch {recorded.epoch}, and may be filled again with other messages ({where}). "
        "Messages that were acknowledged to their producers are gone, as by an unclean leader "
        "election, or a power failure of the last replica",
        "What was loaded stays in the tables. Compare the table with the topic from where it was "
        f"cut; then `sluice adopt CONFIG {which} --offset N` goes on: N where it was cut loads all "
        "that is new, once the rows of the lost messages are removed from there on.",
    )


def begin_lost(
    source: TopicPartition, log_begin: int, stable_end: int, position: int, connector: str
) -> PartitionStoppedError:
    """A log begins after the next offset that is to be loaded."""
    return PartitionStoppedError(
        f"{source}: the log holds [{log_begin}, {stable_end}), but {position} is the next offset "
        "to load; messages expired before they were loaded",
        f"`sluice adopt CONFIG {_which(connector, source)} --offset {log_begin}` accepts the loss.",
    )


def resolved_together(connector: str, sources: Iterable[TopicPartition]) -> list[str]:
    """What a person is told of partitions that wait for his word: for each topic, the one command
    that decides all of them."""
    numbers: dict[str, list[int]] = {}
    for source in sorted(sources):
        numbers.setdefault(source.topic, []).append(source.partition)
    return [
        f"{len(found)} partitions of topic {topic} wait for a person. Once the tables were looked "
        "into, one command decides all that are alike: sluice resolve CONFIG "
        f"--connector {connector} --topic {topic} "
        f"--partition {' '.join(map(str, found))} --as loaded|not-loaded"
        for topic, found in numbers.items()
        if len(found) > 1
    ]


def stop_error(
    decision: Decision, item: Observed, why: str, connector: str, decoder: str = ""
) -> PartitionStoppedError:
    """The error of a decision that stops a partition.

    :param why: why its range cannot be replayed, where that is what stops it.
    :param decoder: that would still replay it; "" where none does.
    """
    source, record = item.source, item.record
    where = f"{source}"
    held = f"[{item.log_begin}, {item.stable_end})"
    which = _which(connector, source)
    position = record.begin if record else 0
    earlier = (
        f"Run the Sluice that decodes with {decoder} once more: ClickHouse still knows the blocks, "
        "so it repeats the range as it was, and settles it. Or: "
        if decoder
        else ""
    )
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
        Decision.STOP_LOG_END: (
            f"{where}: the log holds {held}, but offsets up to "
            f"{record.end if record else position} are recorded; the log was truncated",
            f"Restore the log, or `sluice adopt CONFIG {which} --offset N`.",
        ),
        Decision.STOP_RESOLVE: (
            f"{where}: [{position}, {record.end if record else position}) is in doubt: {why}",
            f"{earlier}Look into the table, then `sluice resolve CONFIG {which} "
            "--as loaded|not-loaded`.",
        ),
    }
    if decision is Decision.STOP_LOG_END and item.cut and record is not None:
        return cut_below(source, record.log_end, item.cut, connector)
    if decision is Decision.STOP_LOG_BEGIN:
        return begin_lost(source, item.log_begin, item.stable_end, position, connector)
    message, hint = texts[decision]
    if decision is Decision.STOP_RESOLVE:
        return UnresolvedError(message, hint)
    return PartitionStoppedError(message, hint)
