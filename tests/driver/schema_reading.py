"""The thread that reads tables, at one real table, and what it told."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from sluice.clickhouse.http import Server
from sluice.config import Configuration
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import SchemaRead
from sluice.driver.refreshing import SchemaReader
from sluice.driver.specs import read_spec
from tests.support.world import wait_for


class Reading:
    """A reader of one real table, and what it told."""

    def __init__(self, configuration: Configuration, server: Server, table: str) -> None:
        self.server = server
        self.table = table
        self.told: list[SchemaRead] = []
        self.refusal: Exception | None = None
        self.bugs: tuple[Exception, ...] = ()
        self.examined = 0
        self.spec = read_spec(configuration, "dc1")
        self.reader = SchemaReader(
            *(configuration, LoadSpecs(self.spec), lambda: time.time_ns() // 1_000_000),
            *(self._examine, self._put),
        )

    def _put(self, read: SchemaRead) -> None:
        bugs, self.bugs = self.bugs, ()
        for bug in bugs:
            raise bug
        self.told.append(read)

    def _examine(self) -> None:
        self.examined += 1
        if self.refusal is not None:
            raise self.refusal

    def alter(self, how: str) -> SchemaRead:
        """ALTER, ask for a reading, and wait for one that began later."""
        self.server.execute(f"ALTER TABLE {self.table} {how}")
        return self.ask()

    def ask(self, *, by_a_person: bool = False) -> SchemaRead:
        since_ms = time.time_ns() // 1_000_000
        (self.reader.ask if by_a_person else self.reader.request)()
        wait_for(lambda: any(r.started_ms >= since_ms for r in self.told), 60, "a reading")
        return next(read for read in self.told if read.started_ms >= since_ms)


@contextmanager
def reading_of(configuration: Configuration, server: Server, table: str) -> Iterator[Reading]:
    """A reader that has read once, until the block ends: what it would find amiss of a table that
    is dropped then would be in the log of another test."""
    found = Reading(configuration, server, table)
    found.reader.start()
    try:
        wait_for(lambda: bool(found.told), 60, "the first reading")
        yield found
    finally:
        found.reader.stop()
        found.reader._thread.join()
