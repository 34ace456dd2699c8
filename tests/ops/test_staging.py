"""What is left of staged blocks at a real server: dropped by the driver in its time, and listed."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.ledger import Background
from sluice.core.load_spec import LoadSpec
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record
from sluice.driver.staging import StagingCollector
from sluice.driver.state import PartitionState
from sluice.ops.status import read_leftovers
from tests.kafka.groups import NOW
from tests.support.delivered import FOREVER_MS, ROWS, DeliveredTable

LEASE_MS = 60_000
_FILLED, _SEALED = 1, 2


def made(url: str) -> DeliveredTable:
    table = DeliveredTable(url)
    table.create()
    return table


class Driver:
    """Its collector, at a time of its own.

    :param server_ms: what the server's clock says; None: the same.
    """

    server_ms: int | None = None

    def __init__(self, table: DeliveredTable) -> None:
        self.now_ms = NOW  # so that a lease of its is not over for the server
        self._spec = LoadSpec("p", "dc1", "", 0, (table.spec,))
        self._access = ClickHouseAccess({"s1": (table.url,)}, "default", "", "single")
        self._collector = self.started()

    def started(self) -> StagingCollector:
        return StagingCollector(self._access, self._spec, LEASE_MS, lambda: self.now_ms)

    def sweep(self, position: int) -> None:
        """Where all before `position` is settled."""
        record = Record(Kind.SETTLE, 1, 0, position, position, "o", 0, "topic", "t", 0, 0)
        state = PartitionState(TopicPartition("a", 0), record, Background(), position, 0)
        self._collector.see([state], self.now_ms)
        said_ms = self.now_ms if self.server_ms is None else self.server_ms
        with patch.object(Server, "clock_ms", lambda _: said_ms):
            self._collector.sweep()

    def restart(self) -> None:
        self._collector = self.started()

    def pass_lease(self) -> None:
        self.now_ms += LEASE_MS + 11_000


def test_a_marker_goes_a_lease_after_its_range_was_settled(embedded_url: str) -> None:
    table = made(embedded_url)
    driver = Driver(table)
    for number in range(2):
        table.attempt(number, deadline_ms=driver.now_ms + LEASE_MS)
    driver.pass_lease()
    driver.sweep(ROWS)  # of the second block the range is in doubt
    assert len(table.staged()) == 2
    driver.pass_lease()
    driver.sweep(ROWS)
    (left,) = table.staged()
    driver.restart()  # it sees for the first time what is settled
    driver.sweep(2 * ROWS)
    assert table.staged() == [left]
    driver.pass_lease()
    driver.sweep(2 * ROWS)
    assert table.staged() == [] and table.rows() == (2 * ROWS, 2 * ROWS)


def test_what_a_dead_attempt_has_filled_goes_and_what_it_has_sealed_stays(
    embedded_url: str,
) -> None:
    table = made(embedded_url)
    driver = Driver(table)
    deadline_ms = driver.now_ms + LEASE_MS
    assert table.killed(_FILLED, is_done=True, deadline_ms=deadline_ms)
    assert table.killed(_SEALED, is_done=True, number=1, deadline_ms=deadline_ms)
    driver.server_ms = driver.now_ms  # a driver whose clock is ahead drops nothing too early
    driver.pass_lease()
    driver.sweep(0)
    assert len(table.staged()) == 3
    driver.server_ms = None
    for _ in range(3):
        driver.pass_lease()
        driver.sweep(0)
    assert len(table.staged()) == 2
    table.attempt(1)
    assert table.rows() == (ROWS, ROWS)


def test_status_lists_what_is_left_for_longer_than_a_lease(
    embedded_url: str, tmp_path: Path
) -> None:
    table = made(embedded_url)
    file = tmp_path / "sluice.toml"
    file.write_text(
        f'[pipeline]\nname = "p"\n[[connector]]\nname = "dc1"\nbrokers = "b:1"\ntopics = ["a"]\n'
        f'[batch]\nlease = "1m"\n[clickhouse]\nshards = {{ s1 = ["{embedded_url}"] }}\n'
        f'durability = "single"\n[[table]]\nname = "{table.name}"\ntopics = ["a"]\n'
        f'format = "JSONEachRow"\ndelivery = "staged"\n'
    )
    configuration = load(file, {})
    table.killed(_FILLED, is_done=True)
    table.killed(_SEALED, is_done=True, number=1)
    assert read_leftovers(configuration, FOREVER_MS + LEASE_MS) == []
    lines = [each.line() for each in read_leftovers(configuration, FOREVER_MS + 2 * LEASE_MS)]
    assert len(lines) == 3 and all(
        f"for default.{table.name} on {embedded_url}" in x for x in lines
    )
    assert sum("stored block" in line for line in lines) == 2
    assert sum(f"of a[0] [{ROWS}, {2 * ROWS})" in line for line in lines) == 2
