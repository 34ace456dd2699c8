"""Server processes for tests, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar


class Server(Protocol):
    """What can be run."""

    def start(self) -> None:
        """Start it and wait until it answers."""

    def kill(self) -> object:
        """End it at once; its data goes with its folder."""


Started = TypeVar("Started", bound=Server)


@contextmanager
def running(make: Callable[[Path], Started]) -> Iterator[Started]:
    """A server until the block ends.

    :param make: gives it for its folder.
    """
    with TemporaryDirectory(prefix="sluice-server-") as folder:
        server = make(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.kill()
