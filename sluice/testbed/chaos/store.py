"""The store of claims of a chaos run: a real Redis behind a proxy, or a directory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from sluice.testbed.chaos.layout import Victim
from sluice.testbed.chaos.proxy import Proxy
from sluice.testbed.chaos.requests import Claims
from sluice.testbed.local.redis_server import RedisServer
from sluice.testbed.local.settings import Section

StoreKind = Literal["redis", "local"]
#: The part of a log that is lost at most with its end.
_LOST_SHARE_MAX = 0.5


class RedisStruck:
    """A Redis that writes its log each second.

    :param losses: how often it lost claims, or may have; likewise how often it was started.
    """

    def __init__(self, folder: Path, link: Proxy) -> None:
        self.server = RedisServer(folder, "appendonly yes", "appendfsync everysec")
        self.link = link
        self.starts = 0
        self.losses = 0
        link.server = ("127.0.0.1", self.server.port)

    @property
    def section(self) -> Section:
        """Of the configuration."""
        return {"store": f"redis://127.0.0.1:{self.link.port}/0"}

    @property
    def links(self) -> list[Proxy]:
        """The one that claims pass."""
        return [self.link]

    @property
    def victims(self) -> list[Victim]:
        """The server."""
        return [Victim(self.server, self.start)]

    def start(self) -> None:
        """Start it, again with what it has."""
        self.server.start()
        self.starts += 1

    def lose_data(self) -> None:
        """All that it has on its disk is gone."""
        self.losses += 1
        shutil.rmtree(self._logs)

    def lose_end(self, share: float) -> None:
        """What it wrote last is gone."""
        self.losses += 1
        (log,) = self._logs.glob("*.incr.aof")
        size = log.stat().st_size
        with log.open("ab") as opened:
            opened.truncate(size - int(size * share * _LOST_SHARE_MAX))

    def empty(self) -> None:
        """Somebody empties it."""
        self.server.ask("FLUSHALL")
        self.losses += 1

    @property
    def _logs(self) -> Path:
        return self.server.folder / "appendonlydir"


class LocalStruck:
    """A directory; see `RedisStruck`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.starts = 1
        self.losses = 0

    @property
    def section(self) -> Section:
        """Of the configuration."""
        return {"store": "local", "path": str(self.folder)}

    @property
    def links(self) -> list[Proxy]:
        """There is none."""
        return []

    @property
    def victims(self) -> list[Victim]:
        """It has no process."""
        return []

    def lose_data(self) -> None:
        """All that it has on its disk is gone."""
        self.losses += 1
        self.starts += 1
        shutil.rmtree(self.folder)


Struck = RedisStruck | LocalStruck


@contextmanager
def running_store(folder: Path, kind: StoreKind) -> Iterator[Struck]:
    """Start it; nothing is left running at the end.

    :raises TerminalError: it is not installed, or did not start.
    """
    if kind == "local":
        yield LocalStruck(folder / "claims")
        return
    with Proxy(Claims) as link:
        store = RedisStruck(folder / "redis", link)
        try:
            store.start()
            yield store
        finally:
            store.server.stop()
