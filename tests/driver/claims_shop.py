"""A keeper of the claims of a shop's table, over a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sluice.claims.port import StoreAwayError
from sluice.core.budget import TargetShard
from sluice.core.claim_notes import Me
from sluice.core.claims import Deduplicate
from sluice.core.errors import SluiceError
from sluice.core.ledger import Background
from sluice.core.load_spec import LoadSpec, TableSpec
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record
from sluice.driver.claims import ClaimsKeeper
from sluice.driver.claims_rebuild import RebuildFailedError
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import ShardWindow
from sluice.driver.state import Holds, PartitionState
from tests.claims.memory import Kept, MemoryStore
from tests.driver.loop_world import table_spec

NOW = 10_000_000
LEASE = 600_000
RUN, BEFORE = "b@0", "a@0"
KEY = "t/@claims"
OF_T = TargetShard.of(KEY)


def keyed(entry: str, scope: str = "") -> TableSpec:
    """A table of this name, of which `id` tells one event from another."""
    deduplicate = Deduplicate(("id",), 3_600, scope or f"p/d.{entry}")
    return replace(table_spec(entry, ("a",)), deduplicate=deduplicate)


SOURCE = TopicPartition("a", 0)
#: Of whose tables none deduplicates.
SPEC = LoadSpec("p", "c", "d", 1, (table_spec("t", ("a",)),))


def state(run: str = BEFORE, key: str = KEY, deadline_ms: int = NOW + 1_000) -> PartitionState:
    record = Record(
        kind=Kind.INTEND,
        batch=1,
        attempt=1,
        begin=0,
        end=10,
        owner="o",
        generation=0,
        topic_id="AAAAAAAAAAA",
        spec=SPEC.digest(),
        reservation=1,
        deadline_ms=deadline_ms,
    )
    background = Background({key: 0}, NOW - 1_000, servers={"@claims": run})
    return PartitionState(SOURCE, record, background, 10, NOW)


class NoWindows:
    """Windows of no table."""

    def current(self) -> dict[TargetShard, ShardWindow]:
        return {}

    def outage(self, target_shard: TargetShard) -> str | None:
        return None

    def refusal(self, target_shard: TargetShard) -> SluiceError | None:
        return None


class Shop:
    """A keeper of one table's claims, whose clock stands until it is told."""

    def __init__(
        self, kept: Kept, name: str = "c", settle_ms: int = 0, lease_ms: int = LEASE
    ) -> None:
        self.now = NOW
        self.rebuilt: list[tuple[str, int]] = []
        self.shards: list[tuple[str, ...]] = []
        self.away = False
        self.has_rows = False
        #: Tables of which claims cannot be made again.
        self.failing: set[str] = set()
        #: How long one takes, and what is said of the table meanwhile.
        self.rebuild_seconds = 0
        self.outages: list[str | None] = []
        self.spec = LoadSpec("p", name, "d", 1, (keyed("t"),))
        self.specs = LoadSpecs(self.spec)
        self.keeper = ClaimsKeeper(
            NoWindows(),
            lambda: self.opened(kept),
            self.specs,
            Me(f"p/{name}", "run-1", NOW),
            lease_ms,
            lambda: self.now,
            self.rebuild,
            lambda table: self.has_rows,
            settle_ms,
        )

    def opened(self, kept: Kept) -> MemoryStore:
        if self.away:
            raise StoreAwayError("the store is away")
        return MemoryStore(kept)

    def rebuild(
        self, table: TableSpec, since_ms: int, run: str, meanwhile: Callable[[], object]
    ) -> None:
        assert run == self.keeper.run
        self.rebuilt.append((table.target, since_ms))
        self.shards.append(table.shards)
        for _ in range(self.rebuild_seconds):
            self.now += 1_000
            meanwhile()
            self.outages.append(self.keeper.outage(OF_T))
        if table.target in self.failing:
            raise RebuildFailedError(f"{table.target} cannot be read")

    def poll(self, *states: PartitionState, after_ms: int = 1_000) -> str | None:
        self.now += after_ms
        self.see(self.spec, self.spec, *states)
        self.keeper.poll()
        return self.keeper.outage(OF_T)

    def see(self, today: LoadSpec, before: LoadSpec, *states: PartitionState) -> None:
        """A round of the loop, which sends these again under a load spec of before."""
        self.specs.go_over(today)
        self.keeper.see(states, Holds(), lambda _: before, self.now)
