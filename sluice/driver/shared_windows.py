"""What the loop of a member of a fleet says in its reports, and what it may reserve of each window
(R24). Only the loop's thread is here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sluice.core.budget import BOUNDLESS, TargetShard
from sluice.core.fleet.busy import Busy
from sluice.core.fleet.floors import Floors, keeps_floor, most_of
from sluice.core.fleet.records import Report
from sluice.core.fleet.view import View
from sluice.core.ranges import TopicPartition
from sluice.driver.ports import Jobs, ShardWindow, Windows
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.state import Holds, PartitionState, Probed


class SharedWindows:
    """Windows as a member of a fleet may use them, and its reports, which say what it holds there.

    :param blank: a report with all that never changes.
    :param jobs: says how many tasks it can run at once.
    """

    def __init__(self, windows: Windows, planner: RecordPlanner, jobs: Jobs, blank: Report) -> None:
        self._windows, self._planner, self._jobs = windows, planner, jobs
        self._blank = blank
        self._floors = Floors(blank.owner, blank.members_max)
        self._shared: tuple[object, Mapping[TargetShard, ShardWindow]] | None = None
        self._rows = (0, 0)
        self._busy = Busy()
        self.outage, self.refusal = windows.outage, windows.refusal

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        """The last reading of each target shard, with this member's share."""
        windows = self._windows.current()
        if self._floors.is_alone:
            return windows
        shared = self._shared
        if shared is None or shared[0] is not windows:
            shares = {name: self._floors.share(name) for name in names_of(windows)}
            found = {
                each: replace(
                    window, state=replace(window.state, share=shares.get(name_of(each, window)))
                )
                for each, window in windows.items()
            }
            shared = self._shared = windows, found
        return shared[1]

    def see(self, others: Mapping[str, Report], *, has_strangers: bool) -> None:
        """These are the last reports of all other ids that count; see `Floors.see`."""
        names = names_of(self._windows.current())
        self._floors.see(others, names, has_strangers=has_strangers)
        self._shared = None

    def begin_again(self, others: Mapping[str, Report], number: int) -> None:
        """Reserve nothing before all others count this report; see `Floors.begin_again`."""
        self.see(others, has_strangers=True)
        self._floors.begin_again(number)

    def report(
        self,
        number: int,
        states: Mapping[TopicPartition, PartitionState],
        holds: Holds,
        rows: int,
        view: View,
        now_ms: int,
    ) -> Report:
        """How the loop does now. What it reserves from now on is within what this says."""
        windows, planner, held = self._windows.current(), self._planner, states.values()
        lowest, is_within = floors_of(windows, held, holds, self._blank.members_max, now_ms)
        floors, counted = self._floors.say(number, lowest, is_within=is_within)
        self._shared = None
        # Who has stopped moves nowhere, and what waits there does so for a person.
        waiting = [
            s.waiting_since_ms for s in held if s.stopped is None and s.waiting_since_ms is not None
        ]
        stand = (
            (s.source, s.stable_end, max(0, s.stable_end - s.settled))
            for s in held
            if s.stopped is None
        )
        self._busy.see(stand, view.busy, view.average, now_ms)
        before_ms, before = self._rows
        self._rows = now_ms, rows
        return replace(
            self._blank,
            number=number,
            slots=self._jobs.slots,
            slots_max=self._jobs.slots_max,
            work=sum(state.out for state in held),
            partitions=len(held),
            rows_per_second=round((rows - before) * 1000 / max(1, now_ms - before_ms), 1),
            oldest_wait_seconds=max(0, now_ms - min(waiting, default=now_ms)) / 1000,
            messages_per_partition=round(self._busy.average, 1),
            busy=self._busy.named,
            spec=planner.digest,
            decoder=planner.spec.decoder,
            floors=floors,
            counted=counted,
            is_ready=self._floors.is_ready(lowest),
        )


def names_of(windows: Mapping[TargetShard, ShardWindow]) -> set[str]:
    """The windows that blocks can push others out of."""
    return {name_of(e, w) for e, w in windows.items() if w.state.blocks != BOUNDLESS}


def name_of(target_shard: TargetShard, window: ShardWindow) -> str:
    """What a window is called in reports: the same by whichever entry or view it is reached."""
    return f"{window.state.table or target_shard.name}/{target_shard.shard}"


def floors_of(
    windows: Mapping[TargetShard, ShardWindow],
    states: Iterable[PartitionState],
    holds: Holds,
    members_max: int,
    now_ms: int,
) -> tuple[dict[str, int], bool]:
    """By window, the insert counter of the oldest hold, or else of the last reading; and whether
    all reservations are within a member's share."""
    lowest: dict[str, int] = {}
    reserved: dict[str, int] = {}
    named: dict[str, tuple[str, int, int]] = {}
    for each, window in windows.items():
        state = window.state
        if state.blocks == BOUNDLESS:
            continue
        name = name_of(each, window)
        named[each.key] = name, state.blocks, state.insert_counter
        lowest[name] = min(state.insert_counter, lowest.get(name, state.insert_counter))
        ended = holds.ended_since(each, window.read_started_ms)
        reserved[name] = reserved.get(name, 0) + ended
    for late in holds.late_inserts:
        for key, counter in late.insert_counters.items():
            if key in named:
                lowest[named[key][0]] = min(counter, lowest[named[key][0]])
    bundles = set[str]()
    for partition in states:
        record, counters = partition.record, partition.background.insert_counters
        if not counters or (record.bundle and record.bundle in bundles):
            continue
        bundles.add(record.bundle)
        may_insert = partition.may_insert(now_ms)
        # What was probed is recorded as a new hold, which the floor of the former one would bar.
        is_repeated = partition.stopped is None and not isinstance(partition.stage, Probed)
        for key, counter in counters.items():
            if key not in named:
                continue
            name, blocks, reading = named[key]
            may_come = is_repeated and keeps_floor(blocks, reading, counter)
            if may_insert or (record.in_doubt and may_come):
                lowest[name] = min(counter, lowest[name])
            if may_insert:
                reserved[name] += record.reservation
    most = {name: most_of(blocks, members_max) for name, blocks, _ in named.values()}
    return lowest, all(reserved[name] <= most[name] for name in lowest)
