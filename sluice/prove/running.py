"""The experiments, in their order, and carrying them out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.errors import ConfigurationError, SluiceError, TerminalError
from sluice.prove import forgetting, moves, quorums, reading, repeats
from sluice.prove.findings import Result, Seen, judged
from sluice.prove.scratch import (
    Place,
    Scratch,
    has_plain_windows,
    has_zookeeper,
    scratch_database,
)


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question to the server.

    :param fact: what Sluice believes, in one sentence.
    :param promise: what of Sluice depends on it; "none: " and why, if nothing does.
    """

    name: str
    fact: str
    promise: str
    carry_out: Callable[[Scratch], Seen]

    @property
    def depends(self) -> bool:
        return not self.promise.startswith("none: ")


_ONCE = "a range that is repeated is stored once (R4 and R7)"

EXPERIMENTS = (
    Experiment(
        "settings",
        "Every setting that Sluice sends with an insert is accepted, and in force.",
        "one block for each range, no asynchronous insert, views that deduplicate (R6 and R7)",
        reading.settings,
    ),
    Experiment(
        "same-block-twice",
        "A block that is sent again is not stored again.",
        _ONCE,
        repeats.same_block_twice,
    ),
    Experiment(
        "identity",
        "A block is known by its token alone; without tokens, by its rows with their offsets.",
        "equal messages are rows of their own, and a changed row is not stored twice (R7)",
        repeats.identity,
    ),
    Experiment(
        "other-replica",
        "All replicas of a table share one deduplication window.",
        "a block in doubt is offered to the next replica (I7)",
        repeats.other_replica,
    ),
    Experiment(
        "lost-acknowledgement",
        "A block whose acknowledgement was lost is known again.",
        "rows are exact through failures of the network (R3)",
        repeats.lost_acknowledgement,
    ),
    Experiment(
        "half-a-block",
        "A block of which some ClickHouse partitions are stored is completed by its repeat.",
        "rows are exact when a server dies in the middle of an insert (R7)",
        repeats.half_a_block,
    ),
    Experiment(
        "one-block",
        "All Native blocks of an insert become one block of the server.",
        "one block, with one entry in the window for each ClickHouse partition (R6)",
        repeats.one_block,
    ),
    Experiment(
        "many-partitions",
        f"A block may span {repeats.MANY_PARTITIONS} ClickHouse partitions.",
        "a range is not refused for its dates (R6)",
        repeats.many_partitions,
    ),
    Experiment(
        "views",
        "Targets of views, of chained ones too, deduplicate with windows of their own.",
        "a view with a window counts every row once",
        repeats.views,
    ),
    Experiment(
        "view-that-failed",
        "The repeat of a block whose view failed feeds the view, and doubles nothing.",
        "a view with a window counts every row once",
        repeats.view_that_failed,
    ),
    Experiment(
        "added-column",
        "A block is known again after a column was added.",
        "columns may be added while a range is in doubt (R8)",
        repeats.added_column,
    ),
    Experiment(
        "blocks-in-doubt",
        f"A window remembers {forgetting.IN_DOUBT} blocks, in whatever order they are repeated.",
        "all ranges in flight may be repeated after a failure (R10)",
        forgetting.blocks_in_doubt,
    ),
    Experiment(
        "eviction-by-count",
        "A block is known while at most half as many entries came after it as its window keeps.",
        "the budget (R10, I6)",
        forgetting.count,
    ),
    Experiment(
        "eviction-by-seconds",
        "A block is known for a sixth of its window's seconds, although others came after it.",
        "a lease is a sixth of a window's seconds at most (I10)",
        forgetting.seconds,
    ),
    Experiment(
        "insert-counter",
        "The insert counter of a window grows by at least one for each entry, never shrinks by "
        "itself, and "
        "is the same at every replica.",
        "the budget, and the look before a block is offered to another replica (R10)",
        forgetting.insert_counter,
    ),
    Experiment(
        "server-run",
        "What tells one run of a server from the next is the same while it runs.",
        "a repeat into a table that is not replicated is believed within one run only (R10)",
        forgetting.server_run,
    ),
    Experiment(
        "restart",
        "A token that is remembered after a restart has its part.",
        "none: Sluice does not rely on it for tables that are not replicated",
        repeats.restart,
    ),
    Experiment(
        "quorum",
        "A block with a quorum is known again at every replica.",
        "an acknowledged block is not lost with one replica, and is there once",
        quorums.repeat_under_quorum,
    ),
    Experiment(
        "quorum-too-few",
        "A quorum for which there are too few replicas is refused with 285, and stores nothing.",
        "blocks wait while replicas are away",
        quorums.too_few_replicas,
    ),
    Experiment(
        "quorum-in-doubt",
        "A quorum that does not come is 319; the next block is 286 on servers that take one quorum "
        "insert at a time, and waits by itself on others; both are stored once in the end.",
        "ranges in doubt are repeated until the quorum is there; insert locks (I7)",
        quorums.quorum_in_doubt,
    ),
    Experiment(
        "conversion",
        "A column of another type than the table's is refused, not converted.",
        "no value wraps, is cut or becomes another in silence",
        reading.conversion,
    ),
    Experiment(
        "time-zone",
        "The time zone that the server names reads its texts, and chooses ClickHouse partitions.",
        "dates without a zone load as the server would read them (R8)",
        reading.time_zone,
    ),
    Experiment(
        "running-insert",
        "An insert is to be seen in system.processes by its query id while it runs.",
        "a probe waits for what still runs (R11)",
        reading.running_insert,
    ),
    Experiment(
        "merges",
        "A merge of a MergeTree table hides no row from a probe.",
        "a probe loads only what is missing (R11)",
        reading.merges,
    ),
    Experiment(
        "merging-engines",
        "Engines that merge rows away hide them from a probe.",
        "none: no probe is believed there",
        reading.merging_engines,
    ),
    Experiment(
        "deletes",
        "Rows that were deleted are hidden from a probe, and system.mutations tells of it.",
        "a probe loads only what is missing (R11)",
        reading.deletes,
    ),
    Experiment(
        "move",
        "A moved ClickHouse partition is seen with all of its rows at once; moving it again does "
        "nothing, and its parts keep their uuids.",
        "a staged block is there once, and no reader sees a part of a partition (R21, H25)",
        moves.move,
    ),
    Experiment(
        "claim",
        "Of several who create or rename a table one succeeds, and what names it as it was called "
        "before fails.",
        "a staged block is sealed once, and has one mover at a time (R21, I12)",
        moves.claim,
    ),
)


def prove(
    access: ClickHouseAccess,
    places: Sequence[Place],
    database: str,
    window: int,
    stop: threading.Event,
) -> Iterator[Result]:
    """Carry out all experiments, each with a result of its own; nothing is left behind.

    :param places: the servers; several are replicas of one shard.
    :param database: made here, and dropped.
    :param window: entries that the scratch tables' windows keep.
    :param stop: ends it early.
    :raises ConfigurationError: the database exists, or the servers are no replicas.
    :raises StoppedError: it was ended early.
    """
    kinds = _kinds(places)
    with scratch_database(places, database):
        for replicated in kinds:
            scratch = Scratch(access, places, database, window, stop, replicated=replicated)
            for experiment in EXPERIMENTS:
                yield _carried_out(experiment, scratch)


def _kinds(places: Sequence[Place]) -> list[bool]:
    """Which tables can deduplicate there: Replicated ones (True), plain ones (False)."""
    kinds = []
    without = [place.url for place in places if not has_zookeeper(place)]
    if not without:
        kinds.append(True)
    elif len(places) > 1:
        raise ConfigurationError(
            f"no Replicated tables are possible on {', '.join(without)}, which knows no ZooKeeper "
            "or Keeper: these servers are no replicas of one shard",
            "Name one server, or the replicas of one shard.",
        )
    if len(places) == 1 and has_plain_windows(places[0]):
        kinds.append(False)
    if not kinds:
        raise TerminalError(
            f"no table of {places[0].url} can deduplicate: it knows neither ZooKeeper nor "
            "non_replicated_deduplication_window",
            "Give the server ZooKeeper or Keeper, or use ClickHouse 22.2 or later.",
        )
    return kinds


def _carried_out(experiment: Experiment, scratch: Scratch) -> Result:
    scratch.check_stop()
    begun = time.monotonic()
    try:
        seen = experiment.carry_out(scratch)
    except SluiceError as error:
        seen = judged(False, f"it could not be carried out: {error}")
    return Result(
        experiment.name,
        "Replicated" if scratch.replicated else "plain",
        experiment.fact,
        seen.verdict,
        seen.what,
        experiment.depends,
        experiment.promise.removeprefix("none: "),
        round(time.monotonic() - begun, 3),
    )
