"""Which replica of a shard is asked first, and which last. Pure: time is passed in."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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

        :param behind: that answer, but are better left alone for a while (`core.health`).
        """
        return tuple(
            sorted(replicas, key=lambda url: (self.rests(url, now_seconds), url in behind))
        )
