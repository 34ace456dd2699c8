"""Jobs that do not come back: a worker hangs, or its machine does. Nobody else may load its ranges
while it might, and after its lease it may not any more."""

from __future__ import annotations

import logging

from sluice.core.lease import has_expired
from sluice.worker.assignment import Job

_logger = logging.getLogger("sluice.loop")

#: A job is given so long beyond the leases of its ranges: what came too late says so itself, and
#: a worker that only starts slowly must not be ended while it does.
PATIENCE_MS = 30_000
#: After each job that had to be ended, the next ones are given twice as long, up to this.
PATIENCE_MS_MAX = 8 * PATIENCE_MS


class HungJobs:
    """Knows which jobs of one connector are out, and which of them have to be ended.

    :param loop: for messages.
    """

    def __init__(self, loop: str) -> None:
        self._loop = loop
        self._patience_ms = PATIENCE_MS
        #: With the end of the last lease, and when it was ended, if it was.
        self._out: dict[int, tuple[Job, int]] = {}
        self._ended: set[int] = set()

    def sent(self, job: Job) -> None:
        """A job goes out."""
        self._out[id(job)] = job, max(each.record.deadline_ms for each in job.assignments)

    def came_back(self, job: Job) -> None:
        """Loaded, failed or lost."""
        self._out.pop(id(job), None)
        if id(job) not in self._ended:
            self._patience_ms = PATIENCE_MS
        self._ended.discard(id(job))

    def due(self, now_ms: int) -> list[Job]:
        """Jobs that are to be ended now: no insert of theirs can begin or be on its way."""
        due = [
            job
            for key, (job, deadline_ms) in self._out.items()
            if key not in self._ended and has_expired(deadline_ms + self._patience_ms, now_ms)
        ]
        for job in due:
            self._ended.add(id(job))
            _logger.warning(
                "connector %s: %s does not come back although its lease is over: a worker hangs. "
                "Spark is told to end it, and its ranges are sent again",
                self._loop,
                job.description,
            )
        if due:
            self._patience_ms = min(2 * self._patience_ms, PATIENCE_MS_MAX)
        return due
