"""A driver process: the real assembly of a connector, from take-over to its last record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.config import (
    BatchConfiguration,
    ClickHouseConfiguration,
    Configuration,
    ConnectorConfiguration,
    DeduplicationConfiguration,
    FleetConfiguration,
    RegistryConfiguration,
    ShardConfiguration,
    SparkConfiguration,
    TableConfiguration,
)
from sluice.core.decided import holding
from sluice.core.errors import OwnerChangedError, SluiceError
from sluice.core.load_spec import Sharding
from sluice.driver.connector import ConnectorRun
from sluice.driver.loop import ConnectorLoop
from sluice.driver.monitor import WindowMonitor
from sluice.driver.refreshing import SchemaReader
from sluice.driver.state import PartitionState, Probing
from sluice.driver.watching import ReplicaWatch
from sluice.spark.jobs import Inbox
from sluice.testbed.simulate import faults, registry
from sluice.testbed.simulate.invariants import Invariants
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.plan import PARKABLE
from sluice.testbed.simulate.processes import DriverProcess, Supervisor
from sluice.testbed.simulate.spark import Application
from sluice.testbed.simulate.threads import VirtualEvent
from sluice.testbed.simulate.world import World

#: The longest pause between two rounds of an idle loop.
IDLE_MS_MAX = 4_000


class SimulatedMonitor(WindowMonitor):
    """The real monitor."""

    world: World
    invariants: Invariants

    def _read_target_shard(self, *parts: Any) -> Any:
        found = super()._read_target_shard(*parts)
        for target_shard, window in found.items():
            if not target_shard.target:
                name = self.world.plan.entries[target_shard.entry]
                table = self.world.clickhouse.shards[target_shard.shard][name]
                self.invariants.looks.check_stamp(table, window.read_started_ms)
        return found


class SimulatedSchemaReader(SchemaReader):
    """The real reader of the tables' columns."""

    world: World

    def _read(self) -> bool:
        before = self._spec
        has_read = super()._read()
        if self._spec is not before:
            self.world.faults.note("new load spec while the driver runs")
        return has_read


class SimulatedReplicaWatch(ReplicaWatch):
    """The real watch of the replicas, which never looks: what it tells decides only in which order
    they are tried."""

    def start(self) -> None:
        """No thread."""


class VirtualInbox(Inbox):
    """The loop's inbox; waiting for an event lets virtual time pass."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self._events: list[object] = []
        self._waiting: Any = None
        self._idle_rounds = 0

    def put(self, event: object) -> None:
        self._events.append(event)
        if self._waiting is not None:
            self.world.scheduler.wake(self._waiting)

    def take(self, timeout_seconds: float) -> list[object]:
        world = self.world
        world.call("round", faults.ANYWHERE)
        if not self._events and timeout_seconds:
            # Rounds in which nothing happened become rarer: steps are for what happens.
            pause_ms = world.rng.choice(world.plan.loop_pauses_ms) << self._idle_rounds
            self._idle_rounds = min(self._idle_rounds + 1, 6)
            self._waiting = world.scheduler.current
            world.sleep(min(pause_ms, IDLE_MS_MAX))
            self._waiting = None
        events, self._events = self._events, []
        if events:
            self._idle_rounds = 0
        return events


class SimulatedLoop(ConnectorLoop):
    """The real loop, watched: after a round, no partition may stand where none will look at it."""

    world: World
    invariants: Invariants

    def _round(self, *arguments: Any, **named: Any) -> None:
        frozen = [
            state
            for state in (self.states.values() if self.freezing.standing else ())
            if self._is_frozen(state) and not (state.out or isinstance(state.stage, Probing))
        ]
        super()._round(*arguments, **named)
        self.invariants.reservations.check_floors(self.world.driver)
        for state in frozen:
            if state.out:
                self.world.violate(f"{state.block_range} was sent while it is frozen")
            if isinstance(state.stage, Probing):
                self.world.violate(f"{state.block_range} is probed while it is frozen")
        access, closed = self._environment.clickhouse, self._frozen_servers()
        taking = {url for urls in access.takers.values() for url in urls}
        for url in {url for urls in access.shards.values() for url in urls} - (taking ^ closed):
            self.world.violate(f"{url} is frozen, and may be sent blocks, or the other way round")
        for source in self._pending.misfiled():
            self.world.violate(f"{source} has changed, and no round looks at it")

    def _is_frozen(self, state: PartitionState) -> bool:
        """By what the world knows, not by what the loop makes of it."""
        plan, topic = self.world.plan, state.source.topic
        entries = [entry for entry in plan.entries if topic in plan.topics_of(entry)]
        frozen = self._frozen_servers()
        is_closed = any(frozen.issuperset(plan.replicas(shard)) for shard in plan.shards)
        return is_closed or bool(holding(self.freezing.standing, entries))

    def _frozen_servers(self) -> set[str]:
        urls = [url for shard in self.world.plan.shards for url in self.world.plan.replicas(shard)]
        held = (*self.freezing.standing, *self.freezing._resumed)
        return {url for url in urls if any(each.covers(url) for each in held)}


class _Ready:
    """A future whose result is there."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def result(self) -> Application:
        return self._application


class SimulatedRun(ConnectorRun):
    """The real run of a connector; `ending` says how it ended."""

    def __init__(self, world: World, application: Application, member: str) -> None:
        configuration = make_configuration(world, member)
        super().__init__(
            configuration,
            configuration.connectors[0],
            _Ready(application),  # type: ignore[arg-type]
            VirtualEvent(world),
            lambda configuration, connector: None,
        )
        self.ending = ""
        application.when_gone(self.lose_spark)

    def run(self, until_caught_up: bool, grace_seconds: float) -> None:
        try:
            self._run(until_caught_up, grace_seconds)
            self.ending = "asked to stop"
        except OwnerChangedError as error:
            self.ending = f"owner changed: {error}"
        except SluiceError as error:
            self.ending = f"{type(error).__name__}: {error}"


class Driver(DriverProcess):
    """One driver with its Spark."""

    def __init__(
        self, parts: Parts, supervisor: Supervisor, *, is_in_step: bool, member: str = ""
    ) -> None:
        self._world = world = parts.world
        self._supervisor = supervisor
        name, skew_ms = f"driver {world.named()}", world.draw_skew_ms()
        owner = f"run-{world.named():010d}"
        super().__init__(name, skew_ms, owner, world.plan.decoder, is_in_step=is_in_step)
        self.member = member
        self._application = Application(parts, self, lambda: supervisor.succeed(self))
        self.connector_run = self._run = SimulatedRun(world, self._application, member)

    def main(self) -> None:
        """The process from start to end."""
        world = self._world
        world.faults.note("take-over")
        try:
            world.sleep(world.rng.randrange(1, 60 if self.is_in_step else 2_000))
            self._run.run(False, 5.0)
            self.ending = self._run.ending
            world.say(f"ends: {self.ending}")
            if "owner changed" in self.ending:
                world.faults.note("owner fenced")
        finally:
            self._supervisor.ended(self, tasks_live_on=world.rng.random() < 0.5)

    def end_spark(self, *, tasks_live_on: bool) -> None:
        self._application.end(tasks_live_on=tasks_live_on)


def make_configuration(world: World, member: str = "") -> Configuration:
    """The file of today.

    :param member: of a fleet; "": there is none.
    """
    plan = world.plan
    topics = tuple(sorted(world.broker.ids))
    many = [shape.name for shape in plan.tables if shape.is_many]
    replacing = [shape.name for shape in plan.tables if shape.replaces]
    rules = plan.claims.rules if plan.claims is not None else {}
    return Configuration(
        path=Path("simulated.toml"),
        pipeline="p",
        spark=SparkConfiguration("local", {}),
        connectors=(
            ConnectorConfiguration("c", "", topics, reader="librdkafka", commit=plan.commit),
        ),
        batch=BatchConfiguration(
            plan.messages_max, plan.bytes_max, 1.0, plan.lease_seconds, plan.max_partitions
        ),
        clickhouse=ClickHouseConfiguration(
            database="d",
            shards=tuple(ShardConfiguration(shard, plan.replicas(shard)) for shard in plan.shards),
            user="",
            durability="quorum" if plan.is_quorum else "single",
            zookeeper="simulated" if plan.has_locks else "",
            max_inflight_inserts=plan.inflight_inserts_max,
            insert_timeout_seconds=plan.insert_seconds,
        ),
        tables=tuple(
            TableConfiguration(
                name=entry,
                target=f"d.{name}",
                topics=plan.topics_of(entry),
                route=plan.routes.get(entry),
                format="AvroConfluent" if entry in plan.registered else "JSONEachRow",
                lineage=plan.has_lineage,
                unknown_fields="ignore" if plan.dynamic is None else "refuse",
                dynamic_columns=plan.dynamic if entry not in plan.registered else None,
                rows="many" if name in many else "one",
                sharding=Sharding("offset") if len(plan.shards) > 1 else None,
                on_null="dead-letter",
                on_error="park"
                if entry == PARKABLE and name not in plan.staged
                else "stop-partition",
                deduplicate=rules.get(entry),
                delivery="staged"
                if name in plan.staged
                else "replacing"
                if name in replacing
                else "block",
            )
            for entry, name in sorted(plan.entries.items())
        ),
        dead_letters_topic=plan.dead_letters,
        ledger_topic=plan.ledger,
        decisions_topic=plan.decisions,
        parking_topic=plan.parking,
        duplicates_topic=plan.duplicates,
        http=None,
        deduplication=DeduplicationConfiguration(store="redis://simulated") if rules else None,
        registry=RegistryConfiguration(registry.URL, patience_seconds=plan.patience_seconds),
        fleet=FleetConfiguration(member, members_max=plan.members) if member else None,
    )
