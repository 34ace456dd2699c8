"""Looking at processes while events come at a steady rate: what they hold must not grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

#: Looks for each rate; a short one is looked at once a second.
_LOOKS = 120
_LEAST_SECONDS = 1.0
#: A first and a last part are compared: tenths of all looks.
_PARTS = 10
#: Below this many looks the parts say nothing.
_LOOKS_MIN = 2 * _PARTS
_MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class Held:
    """What the processes of one role hold at one moment, added up.

    :param resident_bytes: memory; what forked processes share is counted in each.
    :param files: open file descriptors.
    """

    resident_bytes: int
    files: int
    processes: int


@dataclass(slots=True)
class Watch:
    """Looks from time to time, while somebody calls it often.

    :param look: what each role holds now.
    :param seconds: how long it will be called.
    :param clock: seconds, monotonic.
    """

    look: Callable[[], Mapping[str, Held]]
    seconds: float
    clock: Callable[[], float] = time.monotonic
    seen: list[tuple[float, Mapping[str, Held]]] = field(default_factory=list)
    _began: float | None = None

    def __call__(self) -> None:
        """Look, if it is time to."""
        now = self.clock()
        if self._began is None:
            self._began = now
        interval = max(_LEAST_SECONDS, self.seconds / _LOOKS)
        if now - self._began >= len(self.seen) * interval:
            self.seen.append((now - self._began, self.look()))

    def growth(self) -> dict[str, Growth]:
        """By role: the first tenth but one of the looks against the last tenth, medians.

        The very first tenth is left out: caches fill, pools start. Empty after too few looks.
        """
        if len(self.seen) < _LOOKS_MIN:
            return {}
        part = len(self.seen) // _PARTS
        early, late = self.seen[part : 2 * part], self.seen[-part:]
        roles = [role for role in early[0][1] if all(role in held for _, held in self.seen)]
        return {
            role: Growth(
                _middle([held[role] for _, held in early]),
                _middle([held[role] for _, held in late]),
                max(held[role].resident_bytes for _, held in self.seen),
            )
            for role in roles
        }


@dataclass(frozen=True, slots=True)
class Growth:
    """What a role held early, and what late.

    :param most_bytes: of memory, at any look.
    """

    early: Held
    late: Held
    most_bytes: int

    @property
    def text(self) -> str:
        """E.g. "512 to 514 MB (at most 530), 40 to 40 files, 3 to 3 processes"."""
        early, late = self.early, self.late
        return (
            f"{early.resident_bytes / _MEGABYTE:,.0f} to {late.resident_bytes / _MEGABYTE:,.0f} "
            f"MB (at most {self.most_bytes / _MEGABYTE:,.0f}), {early.files:,} to {late.files:,} "
            f"files, {early.processes:,} to {late.processes:,} processes"
        )


def _middle(held: list[Held]) -> Held:
    return Held(
        round(median(one.resident_bytes for one in held)),
        round(median(one.files for one in held)),
        round(median(one.processes for one in held)),
    )
