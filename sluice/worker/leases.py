"""A lease in a worker's hands, measured by the machine's boot clock."""

from __future__ import annotations

import time

from sluice.core.lease import LeaseOverError, remaining_ms
from sluice.core.ranges import Range


class HeldLease:
    """Made on receipt of an assignment; `check` is called directly before each insert.

    The boot clock goes on while the machine sleeps and ignores a clock that is set.
    """

    def __init__(self, block_range: Range, deadline_ms: int, sent_at_ms: int) -> None:
        left_ms = remaining_ms(deadline_ms, sent_at_ms, int(time.time() * 1000))
        self._deadline_ms = deadline_ms
        self._range = block_range
        self._ends_at = time.clock_gettime(time.CLOCK_BOOTTIME) + left_ms / 1000

    def check(self, server_ms: int | None = None) -> float:
        """The seconds that are left, above 0: what starts now must be delivered by then.

        :param server_ms: the most that the server's wall clock can show now. A clock here that
            is behind lengthens the lease of a task that was queued; the server's does not.
        :raises LeaseOverError: no insert may start any more.
        """
        left, whose = self._ends_at - time.clock_gettime(time.CLOCK_BOOTTIME), ""
        by_server = left if server_ms is None else (self._deadline_ms - server_ms) / 1000
        if by_server < left:
            left, whose = by_server, " by ClickHouse's clock"
        if left <= 0:
            raise LeaseOverError(f"the lease of {self._range} ended {-left:.1f} s ago{whose}")
        return left
