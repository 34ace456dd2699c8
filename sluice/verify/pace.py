"""How much of a core, and for how long, verifier and audit work: beside a driver they must leave it
and the servers alone most of the time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

#: No rest is longer, so that whoever is told to stop does so soon.
_REST_SECONDS_MAX = 600.0
#: Elements of a log between two rests.
_ELEMENTS = 500


@dataclass(slots=True)
class Pace:
    """Rests between pieces of work, for as long as keeps the work to its share of the time.

    Time that is spent waiting for a server counts as work: so servers have as little to do. What is
    waited for while nobody works (`waiting`) does not.

    :param share: of the time; 1.0: no rest.
    :param within_seconds: from the first look at it on; what is not done by then is left out.
    :param stop: set when nothing more is to be done.
    """

    share: float = 1.0
    within_seconds: float = float("inf")
    stop: threading.Event = field(default_factory=threading.Event)
    _worked_since: float = field(default_factory=time.monotonic)
    _ends_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._ends_at = self._worked_since + self.within_seconds

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be begun."""
        return self.stop.is_set() or time.monotonic() >= self._ends_at

    def rest(self) -> None:
        """Called after a piece of work."""
        worked = time.monotonic() - self._worked_since
        left = max(0.0, self._ends_at - time.monotonic())
        self.stop.wait(min(worked * (1 / self.share - 1), left, _REST_SECONDS_MAX))
        self._worked_since = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Nobody works meanwhile: no rest pays for it, and what is to be done has as much time as
        before."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = time.monotonic() - began
            self._worked_since += took
            self._ends_at += took

    def through(self, elements: Iterable[T]) -> Iterator[T]:
        """All of them, with a rest now and then. They are read to their end, whatever the time:
        half of a log says nothing."""
        for number, element in enumerate(elements, 1):
            yield element
            if number % _ELEMENTS == 0:
                self.rest()
