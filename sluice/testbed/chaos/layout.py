"""Where replicas and brokers stand, by data centers, and which servers can be struck. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.core.errors import ConfigurationError
from sluice.testbed.local.children import Child

_SERVERS_MAX = 8
#: Name of the link that all workers of Spark have to ZooKeeper.
WORKERS = "workers"


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster for a chaos run: shards s1, s2, … of replicas r1, r2, … in data centers dc1, ….

    Each data center has a broker, which is a connector of its own, and an equal part of each
    shard's replicas, in their order.

    :param insert_locks: workers take the insert lock of a table in ZooKeeper, behind a link of
        their own.
    """

    shards: int = 1
    replicas: int = 4
    data_centers: int = 1
    insert_locks: bool = False

    def __post_init__(self) -> None:
        """:raises ConfigurationError: it cannot be."""
        if self.replicas % self.data_centers:
            raise ConfigurationError(
                f"{self.replicas} replicas cannot be spread over {self.data_centers} data centers",
                "Give each data center as many replicas of a shard.",
            )
        if self.shards * self.replicas > _SERVERS_MAX:
            raise ConfigurationError(
                f"{self.shards * self.replicas} servers are more than one machine bears",
                f"At most {_SERVERS_MAX}.",
            )

    @property
    def centers(self) -> list[str]:
        """Names of the data centers."""
        return [f"dc{number}" for number in range(1, self.data_centers + 1)]

    @property
    def servers(self) -> list[str]:
        """Names of all servers, like "s1/r2", shard by shard."""
        return [
            f"s{shard}/r{replica}"
            for shard in range(1, self.shards + 1)
            for replica in range(1, self.replicas + 1)
        ]

    @property
    def zookeeper_links(self) -> list[str]:
        """Names of who has a session with ZooKeeper."""
        return [*self.servers, *([WORKERS] if self.insert_locks else [])]

    def servers_in(self, center: str) -> list[str]:
        """The servers of a data center."""
        return [name for name in self.servers if self.center_of(name) == center]

    def center_of(self, server: str) -> str:
        """The data center of a server."""
        replica = int(server.rpartition("/r")[2])
        return f"dc{(replica - 1) * self.data_centers // self.replicas + 1}"


@dataclass(frozen=True, slots=True)
class Victim:
    """A server that can be struck.

    :param start: starts it and waits until it answers.
    """

    server: Child
    start: Callable[[], object]
