"""The lease in a worker's hands: two clocks, and the earlier end counts (R9)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sluice.core.lease import LeaseOverError
from sluice.core.ranges import Range, TopicPartition
from sluice.worker import leases
from sluice.worker.leases import HeldLease

SENT_MS = 1_800_000_000_000
RANGE = Range(TopicPartition("a", 0), 0, 10)


def held(monkeypatch: pytest.MonkeyPatch, wall_ms: int, lease_ms: int) -> HeldLease:
    """A lease that is received when the wall clock here shows this."""
    clock = SimpleNamespace(
        time=lambda: wall_ms / 1000, CLOCK_BOOTTIME=7, clock_gettime=lambda clock: 100.0
    )
    monkeypatch.setattr(leases, "time", clock)
    return HeldLease(RANGE, SENT_MS + lease_ms, SENT_MS)


def test_a_clock_that_is_behind_does_not_lengthen_the_lease_of_a_queued_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The task waited for 60 s, and the clock here is 60 s behind: it looks just sent."""
    lease = held(monkeypatch, SENT_MS + 60_000 - 60_000, 90_000)
    assert lease.check() == 90.0
    assert lease.check(server_ms=SENT_MS + 60_000) == 30.0
    with pytest.raises(LeaseOverError, match=r"ended 1\.0 s ago"):
        lease.check(server_ms=SENT_MS + 91_000)


def test_a_servers_clock_that_is_behind_lengthens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = held(monkeypatch, SENT_MS + 60_000, 90_000)
    assert lease.check(server_ms=SENT_MS) == 30.0
