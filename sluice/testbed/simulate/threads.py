"""Threads on virtual time: what a process starts beside itself is an actor of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from sluice.testbed.simulate.world import World


class VirtualEvent(threading.Event):
    """An event whose `wait` lets virtual time pass."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if timeout and not self.is_set():
            self._world.sleep(max(1, int(timeout * 1000)))
        return self.is_set()


class VirtualLock:
    """A lock whose waiters let virtual time pass."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False

    def __enter__(self) -> None:
        while self._is_held:
            self._world.sleep(50)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False


class VirtualThread:
    """A thread; nobody waits for its end."""

    def __init__(self, world: World, target: Callable[[], None], **_: object) -> None:
        self._world = world
        self._target = target

    def start(self) -> None:
        """See `threading.Thread`."""
        self._world.scheduler.spawn(self._world.process, self._target)

    def is_alive(self) -> bool:
        """See `threading.Thread`."""
        return False


class VirtualPool:
    """Stands for `ThreadPoolExecutor`: a thread for each task, however many there are."""

    def __init__(self, world: World, *_: object, **__: object) -> None:
        self._world = world

    def submit(self, run: Callable[..., None], *arguments: Any) -> None:
        """See `concurrent.futures.Executor`."""
        VirtualThread(self._world, partial(run, *arguments)).start()

    def shutdown(self, **_: bool) -> None:
        """They end with their process."""


def threading_in(world: World) -> SimpleNamespace:
    """Stands for the module `threading`."""
    return SimpleNamespace(
        Event=partial(VirtualEvent, world),
        Lock=partial(VirtualLock, world),
        Thread=partial(VirtualThread, world),
    )
