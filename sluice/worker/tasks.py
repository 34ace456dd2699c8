"""A task: one bundle of ranges after the other, until one of them holds the others up.

Runs in Spark's Python workers. What is given back was not touched, and is sent again as it is.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from itertools import groupby

from sluice.core.errors import TerminalError
from sluice.core.receipts import Failed, Outcome, TaskReport, Untried
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.loading import load_bundle

#: No range is begun in a task that has taken so long: the receipts of those before wait for it.
TASK_SECONDS_MAX = 10.0


def load_task(
    environment: TaskEnvironment, assignments: Sequence[Assignment], task_attempt: int
) -> tuple[TaskReport, ...]:
    """Load the ranges of a task in their order, those of a bundle together, and report on each.
    Never raises an Exception.

    After one that failed for reasons that may hold for the others too (a server that is away costs
    each of them a time-out), or once the task has taken long, the rest is given back.
    """
    began = time.monotonic()
    reports: list[TaskReport] = []
    for members in bundles_of(assignments):
        reports += load_bundle(environment, members, task_attempt)
        # In a task that Spark started again nothing is tried, so nothing is held up; and the
        # attempt before may still insert: none of its ranges may count as untouched.
        is_slow = time.monotonic() - began > TASK_SECONDS_MAX
        if task_attempt == 0 and (is_slow or _holds_up(reports[-1].outcome)):
            reports += [_given_back(left) for left in assignments[len(reports) :]]
            break
    return tuple(reports)


def bundles_of(assignments: Sequence[Assignment]) -> Iterator[list[Assignment]]:
    """Ranges that are loaded as one: those that name one bundle, which stand together, or one."""
    numbered = enumerate(assignments)
    for _, members in groupby(numbered, lambda pair: pair[1].record.bundle or pair[0]):
        yield [assignment for _, assignment in members]


def _holds_up(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and not isinstance(outcome.error, TerminalError)


def _given_back(assignment: Assignment) -> TaskReport:
    return TaskReport(
        block_range=assignment.block_range,
        batch=assignment.record.batch,
        outcome=Untried(),
        worker_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
