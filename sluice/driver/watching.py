"""Watches the replicas while a driver runs, in a thread of its own.

Two things are read, neither of which decides where a row goes:

* How each replica is doing. One that is behind is tried last, until it is well again.
* Where the replicas are, if the servers are to be asked. Replicas that come or go are taken up;
  a changed set of shards is not: the sharding stays as it was at the start, and that is said.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.topology import read_condition, refuse_other_table
from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.core.replicas import Condition, ReplicaHealth, changes, judged
from sluice.core.topology import difference, taken_up
from sluice.driver.background import Background
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import Clock, ReplicaState
from sluice.driver.specs import access_of
from sluice.driver.topology import in_parallel, look, with_replicas

_logger = logging.getLogger("sluice.replicas")

READ_EVERY_MS = 10_000
#: While a replica takes nothing: it shall have its turn soon after it is back.
READ_SOON_MS = 2_000
#: Every so many readings replicas are counted, too: the servers ask ZooKeeper for that.
COUNT_EVERY = 6
FOLLOW_EVERY_MS = 30_000
ALARM_EVERY_MS = 600_000
#: How long a request waits at most until it is noticed.
POLL_SECONDS = 0.25


class ReplicaWatch(Background):
    """Reads on a timer, and when asked to.

    :param configuration: with the replicas of each shard (`resolved`).
    :param connector: whose preference counts.
    :param specs: today's says which tables, and which they are in ZooKeeper.
    :param changed: takes each change, from this thread: the configuration, with the replicas of
        now, and how to reach them.
    """

    def __init__(
        self,
        configuration: Configuration,
        connector: str,
        specs: LoadSpecs,
        now_ms: Clock,
        changed: Callable[[Configuration, ClickHouseAccess], None],
    ) -> None:
        super().__init__("replicas", "watching the replicas", POLL_SECONDS)
        self.configuration = configuration
        self.access = access_of(configuration, connector).patient()
        #: How the cluster's shards differ from those of the start; "" while they do not.
        self.differs = ""
        self._connector = connector
        self._specs = specs
        self._now_ms = now_ms
        self._changed = changed
        self._health: Mapping[str, ReplicaHealth] = {}
        self._servers: dict[str, Server] = {}
        self._readings = 0
        self._said: dict[str, str] = {}
        self._alarmed_at_ms = 0
        self._is_asked = False
        self._next_read_ms = self._next_follow_ms = 0

    def start(self) -> None:
        """Begin; the first reading is at once."""
        self._begin()

    def ask(self) -> None:
        """Read soon; called from any thread."""
        self._is_asked = True

    def current(self) -> Sequence[ReplicaState]:
        """Every replica as last read, shard by shard; those that were not read yet are missing."""
        health, access = self._health, self.access
        return [
            ReplicaState(shard, url, health[url])
            for shard, urls in sorted(access.shards.items())
            for url in urls
            if url in health
        ]

    def _step(self) -> None:
        now_ms = self._now_ms()
        asked, self._is_asked = self._is_asked, False
        # A clock that was set back must not put the next reading off.
        if asked or not 0 <= self._next_follow_ms - now_ms <= FOLLOW_EVERY_MS:
            self._next_follow_ms = now_ms + FOLLOW_EVERY_MS
            self.follow()
        if asked or not 0 <= self._next_read_ms - now_ms <= READ_EVERY_MS:
            self.read()
            is_away = any(h.is_behind and not h.lags for h in self._health.values())
            self._next_read_ms = now_ms + (READ_SOON_MS if is_away else READ_EVERY_MS)

    # How they are doing

    def read(self) -> None:
        """Read how each replica is doing, and tell what has changed."""
        counts = self._readings % COUNT_EVERY == 0
        self._readings += 1
        of = {url: shard for shard, urls in self.access.shards.items() for url in urls}
        urls = sorted(of)
        for url in urls:
            if url not in self._servers:
                self._servers[url] = self.access.connect(url)
        found = in_parallel(lambda url: self._condition(url, of[url], counts=counts), urls)
        limits = self.configuration.clickhouse.limits
        before = self._health
        self._health = {
            url: judged(before.get(url), _counted(before.get(url), condition), limits)
            for url, condition in zip(urls, found, strict=True)
        }
        for url, why in changes(before, self._health):
            if why:
                _logger.warning(
                    "replica %s of shard %s is tried last from now on: %s", url, of[url], why
                )
            else:
                _logger.warning("replica %s of shard %s takes its turn again", url, of[url])
        self._tell(self.configuration, self.access)

    def _condition(self, url: str, shard: str, *, counts: bool) -> Condition | None:
        server = self._servers[url]
        today = self._specs.today.spec
        tables = [(t.database, t.table) for t in today.tables if shard in t.shards]
        try:
            server.ping()  # one that is frozen is found out in seconds
            return read_condition(server, tables, counts=counts)
        except SluiceError as error:
            _logger.debug("replica %s: %s", url, error)
            return None

    def _tell(self, configuration: Configuration, access: ClickHouseAccess) -> None:
        """Pass a change on, if it is one."""
        behind = frozenset(url for url, health in self._health.items() if health.is_behind)
        access = replace(access, behind=behind)
        if access != self.access:
            self.configuration, self.access = configuration, access
            self._changed(configuration, access)

    # Where they are

    def follow(self) -> None:
        """Read where the replicas are, and tell what has changed."""
        if self.configuration.clickhouse.cluster is None:
            return
        try:
            found = look(self.configuration)
        except SluiceError as error:
            self._say("", f"the cluster cannot be read, its replicas stay as they are: {error}")
            return
        self._say("", "")
        known = self.access.shards
        self._alarm(difference(known, found))
        wanted = {
            shard: self._usable(shard, known[shard], urls)
            for shard, urls in taken_up(known, found).items()
        }
        for shard, urls in wanted.items():
            came, went = set(urls) - set(known[shard]), set(known[shard]) - set(urls)
            if came:
                _logger.warning("shard %s has more replicas: %s", shard, ", ".join(sorted(came)))
            if went:
                _logger.warning(
                    "replicas of shard %s are gone from the cluster, and get nothing any more: %s",
                    shard,
                    ", ".join(sorted(went)),
                )
        if wanted != known:
            configuration = with_replicas(self.configuration, wanted)
            self._tell(configuration, access_of(configuration, self._connector).patient())

    def _usable(self, shard: str, known: tuple[str, ...], urls: tuple[str, ...]) -> tuple[str, ...]:
        """Those replicas that may be offered blocks: a new one has to hold the tables first."""
        tables = [table for table in self._specs.today.spec.tables if shard in table.shards]
        alone = [t.target for t in tables if shard not in dict(t.zookeeper_paths)]
        if alone and set(urls) != set(known):
            # Each server has a window of its own for it: a block in doubt stays with its server.
            self._say(
                shard,
                f"the servers of shard {shard} have changed, and {alone[0]} is not replicated: the "
                f"driver stays with {', '.join(known)} until it is started again",
            )
            return known
        usable = []
        for url in urls:
            why = "" if url in known else self._why_unusable(url, shard, urls)
            if why:
                why = f"{url} is a replica of shard {shard} by now, and is not used yet: {why}"
            else:
                usable.append(url)
            self._say(url, why)
        return tuple(usable) or known

    def _why_unusable(self, url: str, shard: str, urls: tuple[str, ...]) -> str:
        try:
            with self.access.connect(url) as server:
                server.ping()
                for table in self._specs.today.spec.tables:
                    if shard in table.shards:
                        facts = describe_table(server, table.database, table.table)
                        refuse_other_table(facts, table, shard, urls)
        except SluiceError as error:
            return str(error)
        return ""

    def _alarm(self, differs: str) -> None:
        """Say it at once, and then every ten minutes: only a person can decide."""
        now_ms = self._now_ms()
        again = not 0 <= now_ms - self._alarmed_at_ms < ALARM_EVERY_MS
        if differs and (differs != self.differs or again):
            self._alarmed_at_ms = now_ms
            _logger.error(
                "the shards of the cluster are not those that this driver started with: %s. Rows "
                "go on to %s as before, and the next start is refused. Try: decide, and name the "
                "shards in [clickhouse] shards, or correct <remote_servers> on the servers",
                differs,
                ", ".join(sorted(self.access.shards)),
            )
        elif self.differs and not differs:
            _logger.warning("the shards of the cluster are again those of the start")
        self.differs = differs

    def _say(self, about: str, what: str) -> None:
        """Each thing once, until it is another."""
        if what and self._said.get(about) != what:
            _logger.warning("%s", what)
        self._said[about] = what


def _counted(before: ReplicaHealth | None, now: Condition | None) -> Condition | None:
    """With the counts of the reading before, if this one has none."""
    if now is None or before is None or before.condition is None or now.total is not None:
        return now
    return replace(now, active=before.condition.active, total=before.condition.total)
