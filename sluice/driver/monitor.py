"""Watches the deduplication windows of all target shards, in a thread of its own.

the connector's loop must never wait for ClickHouse, so it works with the last reading; what may
be missing in it is counted by the loop's own holds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.topology import refuse_async_inserts, refuse_own_windows
from sluice.clickhouse.vanishing import tokens_went_until_ms, why_not_seen
from sluice.clickhouse.window import (
    crowding,
    read_insert_counter,
    read_server_run,
    tables_with_windows,
)
from sluice.core.budget import BOUNDLESS, TargetShard, WindowState, own_target_shards
from sluice.core.decided import Standing
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import stretched_delay_ms
from sluice.driver.background import Background
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import Clock, ShardWindow
from sluice.driver.shards import ShardReader

_logger = logging.getLogger("sluice.windows")

READ_EVERY_SECONDS = 1.0
#: A table's description is read again so often: a window may have been altered. Each time it is
#: another replica's turn to answer.
DESCRIBE_EVERY_MS = 60_000
COUNT_PARTS_EVERY_MS = 10_000
#: So long a replica that says less than another one did is taken for one that is behind.
BEHIND_MS_MAX = 30_000
ALARM_EVERY_MS = 60_000


class WindowMonitor(Background):
    """Reads insert counters; `current` and `outage` answer at once from the last reading.

    Any replica of a shard may answer: the insert counters of a Replicated table are ZooKeeper's,
    the same for all. What the window keeps is each server's own setting, and the narrowest counts,
    since whichever replica leads clears the window. What views write to is found with the table's
    description, and watched like the table.

    :param specs: whose tables are watched. Of an entry that several have, today's counts.
    """

    def __init__(
        self,
        access: ClickHouseAccess,
        specs: LoadSpecs,
        now_ms: Clock,
    ) -> None:
        super().__init__("windows", "reading the windows", READ_EVERY_SECONDS)
        self._access, self._specs = access, specs
        self._frozen: Standing = ()
        self._now_ms = now_ms
        #: By the last reading that has ended.
        self._looked_at = frozenset[TargetShard]()
        self._facts: dict[TargetShard, dict[str, tuple[int, TableFacts]]] = {}
        self._said: dict[TargetShard, tuple[str, int]] = {}
        self._crowding: dict[TargetShard, tuple[int, float]] = {}
        self._behind_since_ms: dict[TargetShard, int] = {}
        self._windows: dict[TargetShard, ShardWindow] = {}
        self._outages: dict[TargetShard, SluiceError] = {}
        self._alarmed_at_ms = 0
        self._reading = threading.Lock()
        #: What `_servers` were made for, and these.
        self._known: tuple[ClickHouseAccess, Standing] | None = None
        self._readers: dict[str, ShardReader] = {}

    def start(self) -> None:
        """Read once, then go on in the background."""
        self._read(self._servers())
        self._begin()

    def watch(self, spec: LoadSpec) -> None:
        """Watch the target shards of a load spec that the loop does not have yet; they are read
        before this returns. Called from any thread."""
        self._specs.expect(spec)
        if not self._target_shards(self._access.shards).keys() <= self._looked_at:
            self._read(self._servers())

    def other_tables(self, spec: LoadSpec) -> list[str]:
        """Entries of a load spec of which another table's window is watched: what is in doubt in
        the one would be judged by the window of the other (R10)."""
        known = self._target_shards(self._access.shards)
        return sorted(
            {
                table.entry
                for table in spec.tables
                for target_shard in own_target_shards(table)
                if known.get(target_shard, here := (table.database, table.table)) != here
            }
        )

    def use(self, access: ClickHouseAccess) -> None:
        """Ask these replicas from now on; called from any thread."""
        self._access = access

    def bear(self, frozen: Standing) -> None:
        """Take a replica that is frozen and refuses to answer for one that is away; called from any
        thread."""
        self._frozen = frozen

    def current(self) -> Mapping[TargetShard, ShardWindow]:
        """The last reading of each target shard."""
        return self._windows

    def outage(self, target_shard: TargetShard) -> str | None:
        """Why a target shard's window cannot be read now."""
        error = self._outages.get(target_shard.own)
        return None if error is None else str(error)

    def refusal(self, target_shard: TargetShard) -> SluiceError | None:
        """Why a target shard's window cannot be read until somebody fixes it."""
        error = self._outages.get(target_shard)
        return error if isinstance(error, TerminalError) else None

    def failure(self) -> SluiceError | None:
        """The error of the first target shard whose window cannot be read now."""
        return next(iter(self._outages.values()), None)

    def _target_shards(self, shards: Collection[str]) -> dict[TargetShard, tuple[str, str]]:
        """Those to read now, as far as they are in these shards, with their tables."""
        found: dict[TargetShard, tuple[str, str]] = {}
        for table in (table for spec in self._specs.watched for table in spec.tables):
            for target_shard in own_target_shards(table):
                if target_shard.shard in shards:
                    found.setdefault(target_shard, (table.database, table.table))
        return found

    def _servers(self) -> dict[str, ShardReader]:
        return {
            shard: ShardReader(self._access, shard, self._now_ms, self._frozen)
            for shard in self._access.shards
        }

    def _step(self) -> None:
        now = self._access, self._frozen
        if self._known != now:
            self._known, self._readers = now, self._servers()
        self._read(self._readers)

    def _read(self, servers: dict[str, ShardReader]) -> None:
        # `watch` reads in its caller's thread: the slower of two must not undo the other.
        with self._reading:
            windows: dict[TargetShard, ShardWindow] = {}
            down: dict[str, SluiceError] = {}
            runs: dict[str, str] = {}
            outages: dict[TargetShard, SluiceError] = {}
            tables = self._target_shards(servers)
            for target_shard, (database, table) in tables.items():
                try:
                    if target_shard.shard in down:
                        raise down[target_shard.shard]
                    found = self._read_target_shard(
                        servers[target_shard.shard], target_shard, (database, table), runs
                    )
                    windows |= found
                    # At once: where others take long, it would be too old to repeat on at the end.
                    self._windows = {**self._windows, **found}
                except TransientError as error:
                    outages[target_shard] = down[target_shard.shard] = error
                except SluiceError as error:
                    # This table alone; the others of the shard go on.
                    outages[target_shard] = error
            self._report(outages)
            before = {s: w for s, w in self._windows.items() if s.own in outages}
            self._windows = {**before, **windows}
            self._outages, self._looked_at = outages, frozenset(tables)

    def _read_target_shard(
        self,
        servers: ShardReader,
        target_shard: TargetShard,
        table: tuple[str, str],
        runs: dict[str, str],
    ) -> dict[TargetShard, ShardWindow]:
        """The windows of an entry's own table and of all that views behind it write to, the
        process that serves them before their insert counters.

        :param runs: by server, who served it when this reading began; what is read is added.
        """

        def read(server: Server) -> dict[TargetShard, ShardWindow]:
            started_ms = self._now_ms()
            known = self._facts.setdefault(target_shard, {})
            described_ms, facts = known.get(server.url, (0, None))
            if facts is None or not 0 <= started_ms - described_ms <= DESCRIBE_EVERY_MS:
                facts = describe_table(server, *table)
                refuse_own_windows(facts, target_shard.shard, servers.urls)
                refuse_async_inserts(facts)
                known[server.url] = (started_ms, facts)
            crowded = self._read_crowding(server, target_shard, facts, started_ms)
            if not target_shard.has_window:
                state = WindowState(BOUNDLESS, 0, facts.target)
                return {target_shard: ShardWindow(state, started_ms, None, crowded)}
            tables: dict[str, list[TableFacts]] = {}
            others = [each for url, (_, each) in known.items() if url != server.url]
            for each in (facts, *others):
                for target, there in tables_with_windows(each):
                    tables.setdefault(target, []).append(there)
            found: dict[TargetShard, ShardWindow] = {}
            for target, on_replicas in tables.items():
                at = replace(target_shard, target=target)
                # Where nothing is deduplicated, as on old servers, nobody relies on it.
                has_own = not on_replicas[0].replicated and on_replicas[0].deduplicates
                if has_own and server.url not in runs:
                    runs[server.url] = read_server_run(server)
                insert_counter = read_insert_counter(server, on_replicas[0])
                self._refuse_behind(at, server.url, insert_counter, started_ms)
                found[at] = replace(
                    narrowest(on_replicas, insert_counter, started_ms),
                    crowding=0.0 if target else crowded,
                    server=runs[server.url] if has_own else "",
                )
            return found

        return servers.ask(read, self._now_ms() // DESCRIBE_EVERY_MS)

    def _read_crowding(
        self, server: Server, target_shard: TargetShard, facts: TableFacts, now_ms: int
    ) -> float:
        """Now and then: merges take their time."""
        read_ms, last = self._crowding.get(target_shard, (0, 0.0))
        if 0 <= now_ms - read_ms < COUNT_PARTS_EVERY_MS:
            return last
        now = crowding(server, facts)
        if stretched_delay_ms(1, now) > 1 >= stretched_delay_ms(1, last):
            _logger.warning(
                "%s in shard %s: merges fall behind, a ClickHouse partition has %d %% of the parts "
                "from which the server delays inserts (parts_to_delay_insert). Ranges that are not "
                "full wait longer meanwhile. Try: raise max_delay, or give the server more CPU.",
                facts.target,
                target_shard.shard,
                100 * now,
            )
        self._crowding[target_shard] = now_ms, now
        return now

    def _refuse_behind(
        self, target_shard: TargetShard, url: str, insert_counter: int, now_ms: int
    ) -> None:
        """A server may ask a member of ZooKeeper's ensemble that is behind the others.

        :raises TransientError: another replica has said more; for a while, since a table that was
            made anew counts from the beginning.
        """
        last_url, last = self._said.get(target_shard, (url, insert_counter))
        if insert_counter < last and url != last_url:
            since_ms = min(now_ms, self._behind_since_ms.get(target_shard, now_ms))
            self._behind_since_ms[target_shard] = since_ms
            if now_ms - since_ms < BEHIND_MS_MAX:
                raise TransientError(
                    f"{url} says that {insert_counter} entries of {target_shard.name} were "
                    "created, and "
                    f"{last_url} "
                    f"said {last}",
                    "Its member of ZooKeeper's ensemble is behind; others are asked meanwhile.",
                )
        self._behind_since_ms.pop(target_shard, None)
        self._said[target_shard] = (url, insert_counter)

    def _report(self, outages: dict[TargetShard, SluiceError]) -> None:
        """Say what is new; every minute again what goes on, since nothing is loaded there."""
        now_ms = self._now_ms()
        again = not 0 <= now_ms - self._alarmed_at_ms < ALARM_EVERY_MS
        if again:
            self._alarmed_at_ms = now_ms
        for target_shard, error in outages.items():
            if again or target_shard not in self._outages:
                _logger.warning(
                    "table entry %s in shard %s waits: %s. Try: %s",
                    target_shard.entry,
                    target_shard.shard,
                    error,
                    error.hint,
                )
        for target_shard in self._outages:
            if target_shard not in outages:
                _logger.warning(
                    "table entry %s in shard %s goes on", target_shard.entry, target_shard.shard
                )


def narrowest(
    replicas: Sequence[TableFacts], insert_counter: int, read_started_ms: int
) -> ShardWindow:
    """What a window surely keeps, whichever replica clears it.

    :param replicas: of one table; one at least.
    """
    table = min(replicas, key=lambda facts: facts.window_blocks)
    seconds = [facts.window_seconds for facts in replicas if facts.window_seconds is not None]
    return ShardWindow(
        WindowState(table.window_blocks, insert_counter, table.target),
        read_started_ms,
        min(seconds, default=None),
        is_partitioned=any(facts.partition_key for facts in replicas),
        keeps_rows=not any(map(why_not_seen, replicas)),
        lost_until_ms=max(map(tokens_went_until_ms, replicas)),
    )
