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

    :param carry_out: its docstring is what Sluice believes, in one sentence.
    :param promise: what of Sluice depends on it; "none: " and why, if nothing does.
    """

    carry_out: Callable[[Scratch], Seen]
    promise: str

    @property
    def name(self) -> str:
        return self.carry_out.__name__.replace("_", "-")

    @property
    def fact(self) -> str:
        return " ".join((self.carry_out.__doc__ or "").split())

    @property
    def depends(self) -> bool:
        return not self.promise.startswith("none: ")


_ONCE = "a range that is repeated is stored once (R4 and R7)"

EXPERIMENTS = (
    Experiment(
        reading.settings,
        "one block for each range, no asynchronous insert, views that deduplicate (R6 and R7)",
    ),
    Experiment(repeats.same_block_twice, _ONCE),
    Experiment(
        repeats.identity,
        "equal messages are rows of their own, and a changed row is not stored twice (R7)",
    ),
    Experiment(repeats.other_replica, "a block in doubt is offered to the next replica (I7)"),
    Experiment(repeats.lost_acknowledgement, "rows are exact through failures of the network (R3)"),
    Experiment(
        repeats.half_a_block, "rows are exact when a server dies in the middle of an insert (R7)"
    ),
    Experiment(
        repeats.one_block,
        "one block, with one entry in the window for each ClickHouse partition (R6)",
    ),
    Experiment(repeats.many_partitions, "a range is not refused for its dates (R6)"),
    Experiment(repeats.views, "a view with a window counts every row once"),
    Experiment(repeats.view_that_failed, "a view with a window counts every row once"),
    Experiment(repeats.added_column, "columns may be added while a range is in doubt (R8)"),
    Experiment(
        forgetting.blocks_in_doubt, "all ranges in flight may be repeated after a failure (R10)"
    ),
    Experiment(forgetting.eviction_by_count, "the budget (R10, I6)"),
    Experiment(
        forgetting.eviction_by_seconds, "a lease is a sixth of a window's seconds at most (I10)"
    ),
    Experiment(
        forgetting.insert_counter,
        "the budget, and the look before a block is offered to another replica (R10)",
    ),
    Experiment(
        forgetting.server_run,
        "a repeat into a table that is not replicated is believed within one run only (R10)",
    ),
    Experiment(
        repeats.restart, "none: Sluice does not rely on it for tables that are not replicated"
    ),
    Experiment(
        quorums.quorum, "an acknowledged block is not lost with one replica, and is there once"
    ),
    Experiment(quorums.quorum_too_few, "blocks wait while replicas are away"),
    Experiment(
        quorums.quorum_in_doubt,
        "ranges in doubt are repeated until the quorum is there; insert locks (I7)",
    ),
    Experiment(reading.conversion, "no value wraps, is cut or becomes another in silence"),
    Experiment(reading.time_zone, "dates without a zone load as the server would read them (R8)"),
    Experiment(reading.running_insert, "a probe waits for what still runs (R11)"),
    Experiment(reading.merges, "a probe loads only what is missing (R11)"),
    Experiment(reading.merging_engines, "none: no probe is believed there"),
    Experiment(reading.deletes, "a probe loads only what is missing (R11)"),
    Experiment(
        moves.move,
        "a staged block is there once, and no reader sees a part of a partition (R21, H25)",
    ),
    Experiment(
        moves.claim, "a staged block is sealed once, and has one mover at a time (R21, I12)"
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
