"""A task: one range after the other, until one of them holds the others up.

Runs in Spark's Python workers. What is given back was not touched, and is sent again as it is.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence

from sluice.core.errors import TerminalError
from sluice.core.receipts import Failed, Outcome, TaskReport, Untried
from sluice.worker.assignment import Assignment, TaskEnvironment
from sluice.worker.loading import load_range

#: No range is begun in a task that has taken so long: the receipts of those before wait for it.
TASK_SECONDS_MAX = 10.0


def load_task(
    environment: TaskEnvironment, assignments: Sequence[Assignment], task_attempt: int
) -> tuple[TaskReport, ...]:
    """Load the ranges of a task in their order, and report on each. Never raises an Exception.

    After one that failed for reasons that may hold for the others too (a server that is away costs
    each of them a time-out), or once the task has taken long, the rest is given back.
    """
    began = time.monotonic()
    reports: list[TaskReport] = []
    for number, assignment in enumerate(assignments):
        report = load_range(environment, assignment, task_attempt)
        reports.append(report)
        # In a task that Spark started again nothing is tried, so nothing is held up; and the
        # attempt before may still insert: none of its ranges may count as untouched.
        is_slow = time.monotonic() - began > TASK_SECONDS_MAX
        if task_attempt == 0 and (is_slow or _holds_up(report.outcome)):
            reports += [_given_back(left) for left in assignments[number + 1 :]]
            break
    return tuple(reports)


def _holds_up(outcome: Outcome) -> bool:
    return isinstance(outcome, Failed) and not isinstance(outcome.error, TerminalError)


def _given_back(assignment: Assignment) -> TaskReport:
    return TaskReport(
        block_range=assignment.block_range,
        batch=assignment.record.batch,
        outcome=Untried(),
        worker_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )
