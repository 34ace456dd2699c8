"""What a chaos run breaks, as it sees it: links, servers, a driver, and how far loading got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sluice.testbed.chaos.cluster import SparkCluster
from sluice.testbed.chaos.drivers import Drivers
from sluice.testbed.chaos.proxy import Proxy
from sluice.testbed.chaos.schedule import Strike
from sluice.testbed.chaos.store import Struck
from sluice.testbed.chaos.victims import Victim


class Following(Protocol):
    """Where a pipeline stands, seen from outside."""

    @property
    def settled(self) -> int:
        """Sum of all settled positions."""
        ...

    @property
    def owners(self) -> frozenset[str]:
        """Who owns the partitions."""
        ...

    def moved_within(self, seconds: float) -> bool:
        """Whether anything was settled lately."""
        ...


class SingleServer(Protocol):
    """What a foreign writer and an administrator do to one server and its table."""

    def fill_half_window(self) -> None:
        """Add as many foreign blocks as may come within one lease: just below half a window.

        :raises TransientError: the server is away.
        """
        ...

    def add_column(self) -> None:
        """Give the table a column more, with a default.

        :raises TransientError: the server is away.
        """
        ...

    def change_zone(self) -> None:
        """The server's time zone is another one from its next start on."""
        ...


class Scene(Protocol):
    """Everything that runs."""

    @property
    def drivers(self) -> Drivers: ...

    @property
    def positions(self) -> Following: ...

    @property
    def spark(self) -> SparkCluster | None:
        """Master and workers, unless Spark is local."""
        ...

    @property
    def single(self) -> SingleServer | None:
        """What else can be done where one server has the table; None on a cluster."""
        ...

    @property
    def store(self) -> Struck | None:
        """Of claims, where events are deduplicated."""
        ...

    def links(self) -> Sequence[Proxy]:
        """All links."""
        ...

    def insert_links(self) -> Sequence[Proxy]:
        """Those that blocks pass."""
        ...

    def links_of(self, strike: Strike) -> Sequence[Proxy]:
        """What a fault of links happens to; of a server, the link to it."""
        ...

    def victims_of(self, strike: Strike) -> Sequence[Victim]:
        """What a fault of servers happens to."""
        ...

    def overrun_window(self) -> None:
        """Add more foreign blocks than the table's window remembers."""
        ...
