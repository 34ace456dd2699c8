"""Watches the deduplication windows of all sites, in a thread of its own.

The lane's loop must never wait for ClickHouse, so it works with the last reading; what may
be missing in it is counted by the lane's own claims.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from sluice.clickhouse.http import Server
from sluice.clickhouse.parts import crowding
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.window import narrowest_window, window_mark
from sluice.core.budget import Site, WindowState
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.planning import stretched_delay_ms
from sluice.core.text import ConfigurationText
from sluice.spark.assignment import ClickHouseAccess
from sluice.spark.failover import refuse_own_windows
from sluice.spark.ports import Clock, SiteWindow
from sluice.spark.shards import ShardReader

_logger = logging.getLogger("sluice.windows")

READ_EVERY_SECONDS = 1.0
#: A table's description is read again so often: a window may have been altered. Each time it is
#: another replica's turn to answer.
DESCRIBE_EVERY_MS = 60_000
COUNT_PARTS_EVERY_MS = 10_000
#: So long a replica that says less than another one did is taken for one that is behind.
BEHIND_MS_MAX = 30_000
ALARM_EVERY_MS = 60_000
#: For a benchmark of tables that cannot deduplicate.
BOUNDLESS = 1 << 40


class WindowMonitor:
    """Reads marks; `current` and `outage` answer at once from the last reading.

    Any replica of a shard may answer: the marks of a Replicated table are ZooKeeper's, the same
    for all. What the window keeps is each server's own setting, and the narrowest counts, since
    whichever replica leads clears the window.

    :param bounded: False counts no entries; only for tables that cannot deduplicate.
    """

    def __init__(
        self,
        access: ClickHouseAccess,
        text: ConfigurationText,
        now_ms: Clock,
        *,
        bounded: bool = True,
    ) -> None:
        self._access = access
        self._now_ms = now_ms
        self._bounded = bounded
        self._tables = self._sites(text)
        self._facts: dict[Site, dict[str, tuple[int, TableFacts]]] = {}
        self._said: dict[Site, tuple[str, int]] = {}
        self._crowding: dict[Site, tuple[int, float]] = {}
        self._behind_since_ms: dict[Site, int] = {}
        self._windows: dict[Site, SiteWindow] = {}
        self._outages: dict[Site, SluiceError] = {}
        self._alarmed_at_ms = 0
        self._reading = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="windows", daemon=True)

    def start(self) -> None:
        """Read once, then go on in the background."""
        servers = self._servers()
        self._read(servers)
        self._thread.start()

    def watch(self, text: ConfigurationText) -> None:
        """Watch the sites of a recorded text too; they are read before this returns."""
        new = self._sites(text)
        if not new.keys() <= self._tables.keys():
            self._tables = {**new, **self._tables}
            self._read(self._servers())

    def use(self, access: ClickHouseAccess) -> None:
        """Ask these replicas from now on; called from any thread."""
        self._access = access

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def current(self) -> Mapping[Site, SiteWindow]:
        """The last reading of each site."""
        return self._windows

    def outage(self, site: Site) -> str | None:
        """Why a site's window cannot be read now."""
        error = self._outages.get(site)
        return None if error is None else str(error)

    def refusal(self, site: Site) -> SluiceError | None:
        """Why a site's window cannot be read until somebody mends it."""
        error = self._outages.get(site)
        return error if isinstance(error, TerminalError) else None

    def failure(self) -> SluiceError | None:
        """The error of the first site whose window cannot be read now."""
        return next(iter(self._outages.values()), None)

    def _sites(self, text: ConfigurationText) -> dict[Site, tuple[str, str]]:
        return {
            Site(table.entry, shard): (table.database, table.table)
            for table in text.tables
            for shard in table.shards
            if shard in self._access.shards
        }

    def _servers(self) -> dict[str, ShardReader]:
        return {
            shard: ShardReader(self._access, shard, self._now_ms) for shard in self._access.shards
        }

    def _run(self) -> None:
        access = None
        while not self._ended.wait(READ_EVERY_SECONDS):
            if access is not self._access:
                access = self._access
                servers = self._servers()
            self._read(servers)

    def _read(self, servers: dict[str, ShardReader]) -> None:
        # `watch` reads in its caller's thread: the slower of two must not undo the other.
        with self._reading:
            windows = dict(self._windows)
            down: dict[str, SluiceError] = {}
            outages: dict[Site, SluiceError] = {}
            for site, (database, table) in self._tables.items():
                try:
                    if site.shard in down:
                        raise down[site.shard]
                    windows[site] = self._read_site(servers[site.shard], site, database, table)
                except TransientError as error:
                    outages[site] = down[site.shard] = error
                except SluiceError as error:
                    # This table alone; the others of the shard go on.
                    outages[site] = error
            self._report(outages)
            self._windows = windows
            self._outages = outages

    def _read_site(self, servers: ShardReader, site: Site, database: str, table: str) -> SiteWindow:
        def read(server: Server) -> SiteWindow:
            started_ms = self._now_ms()
            if not self._bounded:
                server.ping()
                return SiteWindow(WindowState(BOUNDLESS, 0), started_ms, None)
            known = self._facts.setdefault(site, {})
            described_ms, facts = known.get(server.url, (0, None))
            if facts is None or started_ms - described_ms > DESCRIBE_EVERY_MS:
                facts = describe_table(server, database, table)
                refuse_own_windows(facts, site.shard, servers.urls)
                known[server.url] = (started_ms, facts)
            mark = window_mark(server, facts)
            self._refuse_behind(site, server.url, mark, started_ms)
            windows = [narrowest_window(each) for _, each in known.values()]
            narrowest = min((each for each, _ in windows), key=lambda facts: facts.window_blocks)
            state = WindowState(narrowest.window_blocks, mark, narrowest.target)
            seconds = min((each for _, each in windows if each is not None), default=None)
            crowded = self._read_crowding(server, site, facts, started_ms)
            return SiteWindow(state, started_ms, seconds, crowded)

        return servers.ask(read, self._now_ms() // DESCRIBE_EVERY_MS)

    def _read_crowding(self, server: Server, site: Site, facts: TableFacts, now_ms: int) -> float:
        """Now and then: merges take their time."""
        read_ms, last = self._crowding.get(site, (0, 0.0))
        if now_ms - read_ms < COUNT_PARTS_EVERY_MS:
            return last
        now = crowding(server, facts)
        if stretched_delay_ms(1, now) > 1 >= stretched_delay_ms(1, last):
            _logger.warning(
                "%s in shard %s: merges fall behind, a ClickHouse partition has %d %% of the parts "
                "from which the server delays inserts (parts_to_delay_insert). Ranges that are not "
                "full wait longer meanwhile. Try: raise max_delay, or give the server more CPU.",
                facts.target,
                site.shard,
                100 * now,
            )
        self._crowding[site] = now_ms, now
        return now

    def _refuse_behind(self, site: Site, url: str, mark: int, now_ms: int) -> None:
        """A server may ask a member of ZooKeeper's ensemble that is behind the others.

        :raises TransientError: another replica has said more; for a while, since a table that was
            made anew counts from the beginning.
        """
        last_url, last = self._said.get(site, (url, mark))
        if mark < last and url != last_url:
            since_ms = self._behind_since_ms.setdefault(site, now_ms)
            if now_ms - since_ms < BEHIND_MS_MAX:
                raise TransientError(
                    f"{url} says that {mark} entries of {site.entry} were created, and {last_url} "
                    f"said {last}",
                    "Its member of ZooKeeper's ensemble is behind; others are asked meanwhile.",
                )
        self._behind_since_ms.pop(site, None)
        self._said[site] = (url, mark)

    def _report(self, outages: dict[Site, SluiceError]) -> None:
        """Say what is new; every minute again what goes on, since nothing is loaded there."""
        again = self._now_ms() - self._alarmed_at_ms >= ALARM_EVERY_MS
        if again:
            self._alarmed_at_ms = self._now_ms()
        for site, error in outages.items():
            if again or site not in self._outages:
                _logger.warning(
                    "table entry %s in shard %s waits: %s. Try: %s",
                    site.entry,
                    site.shard,
                    error,
                    error.hint,
                )
        for site in self._outages.keys() - outages.keys():
            _logger.warning("table entry %s in shard %s goes on", site.entry, site.shard)
