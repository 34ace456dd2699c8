"""Which replicas are better tried last, although they answer. Pure: readings are passed in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: A replica that was beyond a limit takes its turn again after so many readings in a row that are
#: well within the limits: one that hovers at one must not change places with every reading.
GOOD_READINGS = 2
#: What is well within: at most this share of a limit.
GOOD_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Condition:
    """A replica as it was read, the worst of its tables.

    :param delay_seconds: how far it is behind the other replicas (`absolute_delay`).
    :param queue: entries that it still has to fetch, merge or drop.
    :param active: of `total` replicas of the table; None where that was not read yet.
    """

    is_readonly: bool = False
    is_session_expired: bool = False
    delay_seconds: int = 0
    queue: int = 0
    active: int | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class ReplicaLimits:
    """From when on a replica is behind. A queue of some hundred entries is usual while parts are
    merged; one that keeps up with inserts is seconds behind."""

    delay_seconds: float = 300.0
    queue: int = 1000


@dataclass(frozen=True, slots=True)
class ReplicaHealth:
    """What is known of a replica.

    :param condition: as last read; None if it did not answer.
    :param why: it is tried last; "" if it takes its turn.
    :param lags: it was beyond a limit, since it was last well within them.
    :param good: readings in a row that are well within.
    """

    condition: Condition | None
    why: str = ""
    lags: bool = False
    good: int = 0

    @property
    def is_behind(self) -> bool:
        """Whether it is tried last."""
        return self.why != ""


def judged(
    before: ReplicaHealth | None, now: Condition | None, limits: ReplicaLimits
) -> ReplicaHealth:
    """What a reading says of a replica, with what was known of it before.

    :param now: None if it did not answer.
    """
    lagged = before is not None and before.lags
    why = _why_away(now)
    if why or now is None:
        return ReplicaHealth(now, why, lagged)
    why = _why_lagging(now, limits)
    if why:
        return ReplicaHealth(now, why, lags=True)
    if before is None or not lagged:
        return ReplicaHealth(now)
    is_good = (
        now.delay_seconds <= GOOD_SHARE * limits.delay_seconds
        and now.queue <= GOOD_SHARE * limits.queue
    )
    good = before.good + 1 if is_good else 0
    if good >= GOOD_READINGS:
        return ReplicaHealth(now)
    why = "it was beyond a limit, and is not well within it for long enough yet"
    return ReplicaHealth(now, why, lags=True, good=good)


def _why_away(now: Condition | None) -> str:
    """Why it takes nothing, which is over with the first reading that says so."""
    if now is None:
        return "it does not answer"
    if now.is_session_expired:
        return "its session with ZooKeeper has expired"
    if now.is_readonly:
        return "a table of it is read-only"
    return ""


def _why_lagging(now: Condition, limits: ReplicaLimits) -> str:
    if now.delay_seconds > limits.delay_seconds:
        return (
            f"it is {now.delay_seconds} s behind, and {limits.delay_seconds:g} s is the limit "
            "(max_replica_delay)"
        )
    if now.queue > limits.queue:
        return (
            f"its replication queue has {now.queue} entries, and {limits.queue} is the limit "
            "(max_replica_queue)"
        )
    return ""


def changes(
    before: Mapping[str, ReplicaHealth], after: Mapping[str, ReplicaHealth]
) -> list[tuple[str, str]]:
    """(replica, why) of those that are tried last from now on, and (replica, "") of those that
    take their turn again; sorted."""
    found = []
    for replica, health in sorted(after.items()):
        was = before.get(replica)
        if health.is_behind != (was is not None and was.is_behind):
            found.append((replica, health.why))
    return found
