"""How the shards of a ClickHouse are reached, by the driver and by its workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sluice.clickhouse.http import Server
from sluice.clickhouse.password import Login
from sluice.clickhouse.tls import Tls
from sluice.core.errors import ConfigurationError
from sluice.machine.secret_source import SecretSource

#: A server refuses the password, and its source still has that one: it is asked on for so long.
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClickHouseAccess:
    """How to reach the shards. Travels to the workers; holds the password in the clear.

    :param shards: URLs of the replicas of each shard, in order of preference.
    :param user: "" with a token, which says who it is.
    :param source: where the password is read from again; None: nowhere.
    :param bearer: the password is a token.
    :param patience_seconds: see `Server`.
    :param tls: of https.
    :param quorums: by shard, how many replicas have to have a block; a shard that is not named
        here waits for two. Of no meaning with durability "single".
    :param zookeeper: see `QuorumConfiguration`.
    :param preferred: replicas that blocks go to first, as those in one data center.
    :param behind: replicas that blocks go to last, see `core.replicas`.
    :param frozen: replicas that get no blocks, since a person said so (R23).
    :param looks: how often such a replica came back. Nothing that was known of servers before
        counts, since a person was at them.
    """

    shards: Mapping[str, tuple[str, ...]]
    user: str
    password: str = field(repr=False)
    durability: Literal["quorum", "single"]
    source: SecretSource | None = None
    patience_seconds: float = 0.0
    bearer: bool = False
    tls: Tls = field(default_factory=Tls)
    quorums: Mapping[str, int] = field(default_factory=dict)
    quorum_timeout_seconds: float = 25.0
    zookeeper: str = ""
    preferred: frozenset[str] = frozenset()
    behind: frozenset[str] = frozenset()
    frozen: frozenset[str] = frozenset()
    looks: int = 0

    def connect(self, url: str) -> Server:
        """A connection to one of them, which opens late."""
        return Server(
            url,
            self.user,
            self.password,
            source=self.source,
            bearer=self.bearer,
            patience_seconds=self.patience_seconds,
            tls=self.tls,
        )

    def headers(self) -> dict[str, str | bytes]:
        """What says to a server who asks."""
        return Login(self.user, self.password, bearer=self.bearer).headers()

    def patient(self) -> ClickHouseAccess:
        """For what runs on and on, while passwords change."""
        return replace(self, patience_seconds=PATIENCE_SECONDS)

    def renewed(self) -> ClickHouseAccess:
        """With what the password's source says now, if it can be read here."""
        if not self.source:
            return self
        try:
            return replace(self, password=self.source.latest())
        except ConfigurationError:
            return self

    def taking(self, shard: str, *, is_replicated: bool = True) -> tuple[str, ...]:
        """The replicas of a shard that may be sent blocks, in order of preference.

        :param is_replicated: the table is; else only the first server has its window.
        """
        urls = self.shards[shard] if is_replicated else self.shards[shard][:1]
        return tuple(url for url in urls if url not in self.frozen)

    @property
    def takers(self) -> Mapping[str, tuple[str, ...]]:
        """The same of each shard."""
        return {shard: self.taking(shard) for shard in self.shards}

    def quorum_of(self, shard: str) -> int:
        """How many replicas of a shard have to have a block; 1: nobody waits for another."""
        return self.quorums.get(shard, 2) if self.durability == "quorum" else 1
