"""What a driver looks at again and again in a thread of its own, beside its loops."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod


class Background(ABC):
    """A thread that ends when it is told to, or with its process.

    :param name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _begin(self) -> None:
        self._thread.start()

    @abstractmethod
    def _run(self) -> None:
        """What the thread does until it is told to end."""
