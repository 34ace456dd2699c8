"""Which staging tables nobody seems to be at any more (R21). Reads only."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.staging import (
    Marker,
    StagingTable,
    read_markers,
    staging_prefix,
    staging_tables,
)
from sluice.config import Configuration, TableConfiguration
from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.driver.specs import access_of

_logger = logging.getLogger("sluice.status")


@dataclass(frozen=True, slots=True)
class Leftover:
    """A staging table whose attempt's lease has been over for one lease more.

    :param table: its name; `target`: where its rows go.
    :param is_stored: it is a stored block, with rows that may have to be moved yet; else a marker.
    :param of: topic, partition and offsets, where a marker says it.
    """

    shard: str
    replica: str
    target: str
    table: str
    is_stored: bool
    of: str

    def line(self) -> str:
        """For people."""
        what = "stored block" if self.is_stored else "marker"
        of = f" of {self.of}" if self.of else ""
        where = f"{self.table}{of}, for {self.target} on {self.replica}"
        return f"left over: {what} {where}; the driver drops it, do not drop it by hand"


def read_leftovers(configuration: Configuration, now_ms: int | None = None) -> list[Leftover]:
    """Of all staged entries, on all servers that answer; one that does not is logged."""
    staged = [table for table in configuration.tables if table.delivery == "staged"]
    if not staged:
        return []
    access = access_of(configuration)
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    lease_ms = int(configuration.batch.lease_seconds * 1000)
    found: list[Leftover] = []
    for table in staged:
        for shard in configuration.shards_of(table):
            for url in access.shards[shard]:
                try:
                    found += _at(access, table, shard, url, now_ms - lease_ms)
                except SluiceError as error:
                    _logger.error("staging tables on %s: %s. Try: %s", url, error, error.hint)
    return found


def _at(
    access: ClickHouseAccess, table: TableConfiguration, shard: str, url: str, then_ms: int
) -> Iterator[Leftover]:
    with access.connect(url) as server:
        tables = staging_tables(server, table.database, staging_prefix(table.table))
        markers = read_markers(server, table.database, {each.marker for each in tables})
    for each in tables:
        marker = markers.get(each.marker)
        if has_expired(_deadline_ms(each, marker), then_ms):
            name = f"{table.database}.{each.name}"
            yield Leftover(shard, url, table.target, name, bool(each.attempt), _of(marker))


def _deadline_ms(table: StagingTable, marker: Marker | None) -> int:
    if table.claim is not None:
        return int(table.claim.by[:8], 16) * 1000
    if table.attempt:
        return table.deadline_ms
    return 0 if marker is None else marker.deadline_ms


def _of(marker: Marker | None) -> str:
    if marker is None:
        return ""
    return f"{marker.topic}[{marker.partition}] [{marker.begin}, {marker.end})"
