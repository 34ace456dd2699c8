"""Drops what staged blocks leave behind, when nobody can want it any more (R21)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.insert import QUERY_ID_PREFIX
from sluice.clickhouse.probe import running_query_ids
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import (
    Marker,
    StagingTable,
    read_markers,
    staging_prefix,
    staging_tables,
)
from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.tokens import row_source
from sluice.driver.background import Background
from sluice.driver.ports import Clock
from sluice.driver.state import PartitionState

_logger = logging.getLogger("sluice.staging")

SWEEP_EVERY_SECONDS = 10.0
SEE_EVERY_MS = 1_000


@dataclass(frozen=True, slots=True)
class Settled:
    """Up to where a partition is settled, and in which generation of which topic.

    :param until_ms: the latest end of a lease that a record of it had, as far as it was seen, or
        the ledger tells of it: leases may have been longer than today's.
    """

    topic_id: str
    generation: int
    position: int
    until_ms: int = 0


def is_settled(
    marker: Marker, settled: Mapping[TopicPartition, Settled], pipeline: str, connector: str
) -> bool:
    """Whether the range of a marker is settled by this connector, and never comes again. Pure."""
    source = TopicPartition(marker.topic, marker.partition)
    at = settled.get(source)
    if at is None:
        return False
    entry, generation = marker.loader.split("/")[-2:]
    mine = row_source(
        pipeline=pipeline,
        connector=connector,
        topic_id=at.topic_id,
        entry=entry,
        generation=int(generation),
    )
    is_past = (at.generation, at.position) >= (int(generation), marker.end)
    return marker.loader == mine and is_past


def to_drop(
    tables: Sequence[StagingTable],
    markers: Mapping[str, Marker],
    settled_since_ms: Mapping[str, int],
    lease_ms: int,
    now_ms: int,
) -> list[StagingTable]:
    """What nobody can want any more: copies of views, stored blocks, then markers. Pure.

    :param tables: of one target on one server, read before `markers`.
    :param settled_since_ms: by name of a marker, when its range was first seen settled.
    :param lease_ms: no attempt that was sent before then may still act so long after.
    """
    found = []
    for table in tables:
        marker = markers.get(table.marker)
        if table.attempt and (marker is None or table.attempt != marker.attempt):
            if has_expired(table.deadline_ms, now_ms):
                found.append(table)  # its attempt died, or another one was quicker
        elif marker is not None and has_expired(marker.deadline_ms, now_ms):
            since_ms = settled_since_ms.get(table.marker)
            if since_ms is not None and has_expired(since_ms + lease_ms, now_ms):
                found.append(table)
    return sorted(found, key=lambda table: (not table.attempt, not table.is_view))


class StagingCollector(Background):
    """Looks after the staging tables of a connector; `see` tells it what is settled.

    :param lease_ms: the longest lease of an attempt.
    """

    def __init__(
        self, access: ClickHouseAccess, spec: LoadSpec, lease_ms: int, now_ms: Clock
    ) -> None:
        super().__init__("staging", "sweeping staging tables", SWEEP_EVERY_SECONDS)
        self._access = access
        self._pipeline, self._connector = spec.pipeline, spec.connector
        self._targets: set[tuple[str, str, str]] = set()
        self._lease_ms = lease_ms
        self._now_ms = now_ms
        self._settled: Mapping[TopicPartition, Settled] = {}
        self._since_ms: dict[str, int] = {}
        self._seen_ms = 0
        self._is_wanted = False
        self.watch(spec)

    def start(self) -> None:
        """Begin, as soon as there is anything to look after."""
        self._is_wanted = True
        self.watch(None)

    def watch(self, spec: LoadSpec | None) -> None:
        """Look after the staged entries of a load spec, too."""
        self._targets = self._targets | {
            (table.database, table.table, shard)
            for table in (() if spec is None else spec.tables)
            if table.is_staged
            for shard in table.shards
        }
        if self._is_wanted and self._targets:
            self._is_wanted = False
            self._begin()

    def use(self, access: ClickHouseAccess) -> None:
        """Ask these servers from now on."""
        self._access = access

    def see(self, states: Iterable[PartitionState], now_ms: int) -> None:
        """What is settled by now; called by the loop in every round."""
        if not self._targets or 0 <= now_ms - self._seen_ms < SEE_EVERY_MS:
            return
        self._seen_ms = now_ms
        self._settled = {
            state.source: Settled(
                state.record.topic_id,
                state.record.generation,
                state.settled,
                max(state.record.deadline_ms, state.held_until_ms, self._until_ms(state.source)),
            )
            for state in states
        }

    def _until_ms(self, source: TopicPartition) -> int:
        known = self._settled.get(source)
        return 0 if known is None else known.until_ms

    def _step(self) -> None:
        self.sweep()

    def sweep(self) -> None:
        """Drop what can go now."""
        for database, table, shard in sorted(self._targets):
            for url in self._access.shards.get(shard, ()):
                try:
                    with self._access.connect(url) as server:
                        self._sweep(server, database, table)
                except SluiceError as error:
                    _logger.debug("staging tables of %s.%s: %s", database, table, error)

    def _sweep(self, server: Server, database: str, table: str) -> None:
        tables = staging_tables(server, database, staging_prefix(table))
        if not tables:
            return
        # Before the markers: a seal that is not seen to run is among them, or never comes.
        running = running_query_ids(server, QUERY_ID_PREFIX)
        markers = read_markers(server, database, {each.marker for each in tables})
        settled = self._settled
        # Other pipelines' stored blocks may go, too, and whose clock is right nobody knows here.
        server.ping()
        said_ms, now_ms = server.clock_ms(), self._now_ms()
        now_ms = now_ms if said_ms is None else min(now_ms, said_ms)
        for name, marker in markers.items():
            if is_settled(marker, settled, self._pipeline, self._connector):
                until_ms = settled[TopicPartition(marker.topic, marker.partition)].until_ms
                since_ms = max(now_ms, until_ms - self._lease_ms)
                self._since_ms.setdefault(f"{database}.{name}", since_ms)
        since = {name: self._since_ms.get(f"{database}.{name}", 1 << 62) for name in markers}
        mine = [each for each in tables if self._is_mine(each, markers)]
        for each in to_drop(mine, markers, since, self._lease_ms, now_ms):
            if any(found.startswith(QUERY_ID_PREFIX + each.block) for found in running):
                continue
            server.execute(f"DROP TABLE {qualified(database, each.name)}")
            if not each.attempt:
                self._since_ms.pop(f"{database}.{each.name}", None)

    def _is_mine(self, table: StagingTable, markers: Mapping[str, Marker]) -> bool:
        """A stored block without a marker is nobody's: whoever finds it may drop it."""
        marker = markers.get(table.marker)
        begin = f"{self._pipeline}/{self._connector}/"
        return marker is None or marker.loader.startswith(begin)
