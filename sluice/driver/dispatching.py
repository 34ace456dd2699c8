"""Which ranges go to Spark together, and what their tasks are told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluice.core.packing import packed
from sluice.driver.state import PartitionState
from sluice.worker.assignment import Assignment


def grouped(
    ready: Sequence[PartitionState], share: Callable[[PartitionState], float], slots: int
) -> list[list[list[PartitionState]]]:
    """Jobs of tasks of ranges. Those that failed before run alone, so that a failing shard holds
    no slot and no receipt of the others (R3).

    :param share: how much of a task a range is.
    :param slots: tasks that can run at once.
    """
    healthy = [state for state in ready if state.failures == 0]
    jobs = [
        [[healthy[place] for place in task] for task in tasks]
        for tasks in packed([share(state) for state in healthy], slots)
    ]
    return jobs + [[[state]] for state in ready if state.failures > 0]


def assigned(state: PartitionState, now_ms: int, looks_for_fields: bool) -> Assignment:
    """What a task is told of a partition's recorded range."""
    return Assignment(
        block_range=state.block_range,
        record=state.record,
        rest=state.background.rest,
        stored=state.background.stored,
        bytes_max=state.background.bytes_max,
        sent_at_ms=now_ms,
        is_first=state.record.attempt == 1 and not state.sent,
        looks_for_fields=looks_for_fields,
        marks=state.background.marks,
        servers=state.background.servers,
        since_ms=state.background.since_ms,
        insert_seconds=state.insert_seconds,
    )
