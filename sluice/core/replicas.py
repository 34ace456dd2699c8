"""Which replica of a shard is asked first, and which last, although it answers. Pure: time and
readings are passed in."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

#: A replica that failed is tried last for so long; twice as long after each further failure.
REST_SECONDS_FIRST = 2.0
REST_SECONDS_MAX = 60.0


def turn(replicas: Sequence[str], number: int, preferred: Collection[str] = ()) -> tuple[str, ...]:
    """The replicas in the order in which a block goes to them.

    It starts at replica n mod R of the preferred ones, so that blocks spread over them; then come
    the others of those, in the order of the configuration, and then, turned in the same way, those
    that are not preferred: what goes to them spreads, too.

    :param number: n, of the block's range or bundle (`core.bundles.replica_number`).
    :param preferred: those that are tried first, as those in the driver's own data center.
    """
    near = [replica for replica in replicas if replica in preferred]
    far = [replica for replica in replicas if replica not in preferred]
    return (*_turned(near, number), *_turned(far, number))


def _turned(replicas: Sequence[str], number: int) -> Sequence[str]:
    first = number % len(replicas) if replicas else 0
    return (*replicas[first:], *replicas[:first])


def majority(replicas: int) -> int:
    """The least number that is more than half of the replicas."""
    return replicas // 2 + 1


def host_matches(url: str, pattern: str) -> bool:
    """Whether a replica is one of those that a pattern of `host` or `host:port` means."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    wanted = pattern.lower().replace("[", "").replace("]", "")
    return fnmatchcase(host, wanted) or fnmatchcase(f"{host}:{parts.port}", wanted)


@dataclass(slots=True)
class _Rest:
    failures: int
    until_seconds: float


class Breaker:
    """Remembers which replicas failed lately, for one process.

    A replica that fails rests: it is tried last, never left out. When its rest is over it comes
    back to its turn; the first success forgets its failures, another failure doubles the rest.
    Several threads may use it, each for replicas of its own.
    """

    def __init__(self) -> None:
        self._rests: dict[str, _Rest] = {}

    def failed(self, replica: str, now_seconds: float) -> None:
        """It did not answer, or cannot take anything. Harmless when repeated within one rest:
        whoever asks it although it rests has nothing better, and learns nothing new."""
        rest = self._rests.get(replica)
        if rest is not None and now_seconds < rest.until_seconds:
            return
        failures = 0 if rest is None else rest.failures
        # 2 ** 10 s is beyond the limit; a larger exponent only grows the number.
        seconds = min(REST_SECONDS_MAX, REST_SECONDS_FIRST * 2 ** min(failures, 10))
        self._rests[replica] = _Rest(failures + 1, now_seconds + seconds)

    def succeeded(self, replica: str) -> None:
        """It answered as it should."""
        self._rests.pop(replica, None)

    def rests(self, replica: str, now_seconds: float) -> bool:
        """Whether it is tried last now."""
        rest = self._rests.get(replica)
        return rest is not None and now_seconds < rest.until_seconds

    def order(
        self, replicas: Sequence[str], now_seconds: float, behind: Collection[str] = ()
    ) -> tuple[str, ...]:
        """The same replicas: those that are behind after the others, and last those that rest;
        otherwise in the same order.

        :param behind: that answer, but are better left alone for a while (`ReplicaHealth`).
        """
        return tuple(
            sorted(replicas, key=lambda url: (self.rests(url, now_seconds), url in behind))
        )


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
