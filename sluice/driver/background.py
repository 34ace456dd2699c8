"""What a driver looks at again and again in a thread of its own, beside its loops."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod

_logger = logging.getLogger("sluice.background")

#: After a bug.
_PAUSE_SECONDS = 1.0


class Background(ABC):
    """A thread that ends when it is told to, or with its process; never on a bug, since what is
    known from it would only grow old then.

    :param name: of the thread.
    :param what: it does, for the log: "watching the replicas".
    :param every_seconds: it does a step.
    """

    def __init__(self, name: str, what: str, every_seconds: float) -> None:
        self._what, self._every_seconds = what, every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _begin(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._every_seconds):
            try:
                self._step()
            except Exception:
                _logger.exception("%s ends on a bug, and is tried again", self._what)
                self._ended.wait(_PAUSE_SECONDS)

    @abstractmethod
    def _step(self) -> None:
        """What the thread does each time."""
