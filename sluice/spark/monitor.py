"""Watches the deduplication windows of all sites, in a thread of its own.

The lane's loop must never wait for ClickHouse, so it works with the last reading; what may
be missing in it is counted by the lane's own claims.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.clickhouse.window import window_mark
from sluice.core.budget import Site, WindowState
from sluice.core.errors import SluiceError, TerminalError, TransientError
from sluice.core.text import ConfigurationText
from sluice.spark.assignment import ClickHouseAccess
from sluice.spark.ports import Clock, SiteWindow

_logger = logging.getLogger("sluice.windows")

READ_EVERY_SECONDS = 1.0
#: A table's description is read again so often: a window may have been altered.
DESCRIBE_EVERY_MS = 60_000
ALARM_EVERY_MS = 60_000
#: For a benchmark of tables that cannot deduplicate.
BOUNDLESS = 1 << 40


def narrowest_window(facts: TableFacts) -> tuple[TableFacts, int | None]:
    """Over a table and its views' targets (C7): the one whose window keeps the fewest entries,
    and the smallest number of seconds."""
    tables = [facts, *(dependent.target for dependent in facts.all_dependents())]
    seconds = [t.window_seconds for t in tables if t.window_seconds is not None]
    return min(tables, key=lambda table: table.window_blocks), min(seconds, default=None)


class WindowMonitor:
    """Reads marks; `current` and `outage` answer at once from the last reading.

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
        self._facts: dict[Site, tuple[int, TableFacts]] = {}
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

    def _servers(self) -> dict[str, Server]:
        return {
            shard: Server(urls[0], self._access.user, self._access.password)
            for shard, urls in self._access.shards.items()
        }

    def _run(self) -> None:
        servers = self._servers()
        while not self._ended.wait(READ_EVERY_SECONDS):
            self._read(servers)

    def _read(self, servers: dict[str, Server]) -> None:
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

    def _read_site(self, server: Server, site: Site, database: str, table: str) -> SiteWindow:
        started_ms = self._now_ms()
        if not self._bounded:
            server.ping()
            return SiteWindow(WindowState(BOUNDLESS, 0), started_ms, None)
        described_ms, facts = self._facts.get(site, (0, None))
        if facts is None or started_ms - described_ms > DESCRIBE_EVERY_MS:
            facts = describe_table(server, database, table)
            self._facts[site] = (started_ms, facts)
        narrowest, seconds = narrowest_window(facts)
        mark = window_mark(server, facts)
        state = WindowState(narrowest.window_blocks, mark, narrowest.target)
        return SiteWindow(state, started_ms, seconds)

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
