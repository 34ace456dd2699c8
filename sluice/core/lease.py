"""The lease: until when the tasks of a record may start an insert (R9).

A lease travels as wall time and is used as remaining time: the worker turns it into its
own boot clock on receipt, so that neither a sleeping machine nor a clock that is set
later can lengthen it.
"""

from __future__ import annotations

from sluice.core.errors import TransientError

#: Largest tolerated difference between the driver's and an executor's wall clock.
CLOCK_SKEW_MS_MAX = 5_000

#: A lease is at most this share of a window's seconds.
LEASE_SHARE_OF_WINDOW = 6


class LeaseOverError(TransientError):
    """The lease ran out before the insert began. Nothing was inserted."""

    hint = "The driver renews the lease and sends the range again; no action is needed."


class ClockError(TransientError):
    """An executor's clock is behind the driver's. Nothing was inserted.

    Transient: a clock that is set back while a task is on its way looks the same.
    """

    hint = "Synchronise the clocks of driver and executors (chrony, ntpd)."


def deadline_ms(now_ms: int, lease_seconds: float) -> int:
    """Wall time at which a lease that starts now ends."""
    return now_ms + int(lease_seconds * 1000)


def remaining_ms(deadline: int, sent_at_ms: int, received_at_ms: int) -> int:
    """What is left of a lease when a worker receives it; may be negative.

    A clock that runs behind the driver's would lengthen the lease, so it is refused where it
    shows: where the task seems to arrive before it was sent. One that runs ahead, or a task
    that was queued, only shortens it. Both together hide each other: a task that was queued
    for 60 s on a machine that is 60 s behind looks just sent. Then this lease ends later by as
    much as the clock is behind, or as the task was queued, whichever is less; that is why the
    server's clock is asked too before each insert.

    :raises ClockError: the worker's clock is more than 5 s behind the driver's.
    """
    if received_at_ms < sent_at_ms - CLOCK_SKEW_MS_MAX:
        raise ClockError(
            f"the executor's clock is {(sent_at_ms - received_at_ms) / 1000:.1f} s behind "
            f"the driver's; at most {CLOCK_SKEW_MS_MAX // 1000} s are tolerated"
        )
    return deadline - max(received_at_ms, sent_at_ms)


def lease_seconds_max(window_seconds: int | None) -> float | None:
    """The longest safe lease under a window that forgets after so many seconds."""
    return None if window_seconds is None else window_seconds / LEASE_SHARE_OF_WINDOW


def has_expired(deadline: int, now_ms: int, grace_ms: int = 2 * CLOCK_SKEW_MS_MAX) -> bool:
    """Whether no insert of any task can still be on its way to a server under this deadline.

    An insert that was not wholly delivered at its worker's deadline is dropped there.

    :param grace_ms: covers the difference of the clocks, and as long again for a server to
        store what it has wholly received.
    """
    return now_ms > deadline + grace_ms
