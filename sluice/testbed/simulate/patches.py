"""Puts the simulated world under the real modules: clients, clocks, threads and chance, nothing
else."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

from sluice.clickhouse import access, http, probe, statements
from sluice.core.decided import Decided
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import RANGES_OF_TASK, share_of_task
from sluice.decode import routing
from sluice.decode.schema import registry
from sluice.driver import (
    background,
    bundling,
    claims,
    connector,
    growing,
    inheriting,
    monitor,
    observing,
    probing,
    refreshing,
    report_handler,
    specs,
)
from sluice.driver import fleet as driver_fleet
from sluice.kafka import ledger, log, reader, readers, recorder, tail, transactions
from sluice.machine import clock as machine_clock
from sluice.testbed.simulate import clients, columns, decoding, driver, fleet, messages, store, wire
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.planting import patched
from sluice.testbed.simulate.spark import Worker, bundle_loader
from sluice.testbed.simulate.threads import VirtualPool, threading_in
from sluice.testbed.simulate.world import World
from sluice.worker import (
    claiming,
    failover,
    filling,
    insert_lock,
    inserting,
    leases,
    loading,
    tasks,
)
from sluice.worker import staging as worker_staging

#: Ledger entries that are read at once: few, so that reading backwards is exercised.
LEDGER_CHUNK = 60


class _CacheOfWorker:
    """Stands for the cache of the process that runs."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        worker = self._world.process
        assert isinstance(worker, Worker)
        return getattr(worker.cache, name)


@contextmanager
def installed(parts: Parts) -> Iterator[None]:
    """The whole world with its parts under the real modules; one world at a time in a process."""
    world = parts.world
    logger = logging.getLogger("sluice")
    level = logger.level
    if not world.is_shown:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with patched(
            *_of_machine(world),
            *_of_kafka(world),
            *_of_clickhouse(parts),
            *_of_spark(parts),
            *_of_claims(parts),
        ):
            yield
    finally:
        logger.setLevel(level)


def _tiny(messages: int, full: int) -> float:
    """Ranges here are so large a part of the largest that each would have its own task."""
    return 1 / RANGES_OF_TASK


def _of_machine(world: World) -> list[tuple[Any, str, Any]]:
    """Clock and threads."""
    clock = SimpleNamespace(
        monotonic=lambda: world.now / 1000,
        time=lambda: world.wall_ms() / 1000,
        time_ns=lambda: world.wall_ms() * 1_000_000,
        CLOCK_BOOTTIME=7,
        clock_gettime=lambda clock: world.now / 1000,
        sleep=lambda seconds: world.sleep(int(seconds * 1000)),
    )
    timed = (
        *(machine_clock, reader, readers, recorder, tail, transactions, http, probe, statements),
        *(driver_fleet, failover, insert_lock, inserting, leases, tasks, worker_staging),
    )
    threaded, threading = (background, connector, monitor), threading_in(world)
    pooled, pool = (inheriting, observing, probing), partial(VirtualPool, world)
    return [
        *((module, "time", clock) for module in timed),
        *((module, "threading", threading) for module in threaded),
        *((module, "ThreadPoolExecutor", pool) for module in pooled),
    ]


def _of_kafka(world: World) -> list[tuple[Any, str, Any]]:
    def make_consumer(
        *_: Any, stable: bool = True, is_tail: bool = False, **__: Any
    ) -> clients.SimulatedConsumer:
        return clients.SimulatedConsumer(world, stable=stable, is_tail=is_tail)

    def make_producer(
        access: Any, identity: str, timeout_ms: int, topic: str, lost: Callable[[], None]
    ) -> clients.SimulatedProducer:
        return clients.SimulatedProducer(world, identity, timeout_ms, lost)

    make_unstable = partial(make_consumer, stable=False)
    return [
        *((module, "make_consumer", make_consumer) for module in (reader, recorder)),
        (tail, "make_consumer", partial(make_consumer, is_tail=True)),
        *((module, "make_unstable_reader", make_unstable) for module in (recorder, tail)),
        (recorder, "make_producer", make_producer),
        (transactions, "within", partial(clients.within, world)),
        (ledger, "FIRST_CHUNK_MESSAGES", LEDGER_CHUNK),
        (reader, "make_admin", lambda access: None),
        (log, "SourceLog", lambda admin: clients.TopicIds(world)),
    ]


def _of_clickhouse(parts: Parts) -> list[tuple[Any, str, Any]]:
    world = parts.world

    def make_server(url: str, *_: Any, **__: Any) -> wire.SimulatedServer:
        return wire.SimulatedServer(world, url)

    names = SimpleNamespace(urandom=lambda n: world.named().to_bytes(n))
    return [
        (http, "open_connection", wire.connecting(parts)),
        (http, "has_ended", wire.has_ended),
        (http, "give_up_after", wire.give_up_after),
        (http, "drop", wire.drop),
        (http, "exchange", wire.exchange),
        (http, "urlencode", wire.encoded),
        (access, "Server", make_server),
        (monitor, "COUNT_PARTS_EVERY_MS", 5000),
        (monitor, "READ_EVERY_SECONDS", world.plan.windows_every_seconds),
        *((module, "os", names) for module in (filling, worker_staging)),
        (refreshing, "POLL_SECONDS", 2.0),
        (refreshing, "READ_EVERY_SECONDS", 20.0),
    ]


def _of_spark(parts: Parts) -> list[tuple[Any, str, Any]]:
    world = parts.world

    def bound(kind: type) -> type:
        return type(kind.__name__, (kind,), {"world": world, "invariants": parts.invariants})

    def decision_watch(*_: object) -> SimpleNamespace:
        """Who starts reads what is frozen; the person tells of changes."""
        return SimpleNamespace(start=lambda: Decided(parts.person.standing), stop=lambda: None)

    def read_owner() -> SimpleNamespace:
        return SimpleNamespace(hex=world.driver.owner.removeprefix("run-"))

    return [
        # The same few load specs are written out again and again.
        (LoadSpec, "canonical", lru_cache(maxsize=64)(LoadSpec.canonical)),
        (bundling, "share_of_task", _tiny if world.plan.shares_tasks else share_of_task),
        (connector, "make_admin", lambda access: None),
        (connector, "SourceLog", lambda admin, ends: clients.SimulatedLog(world)),
        (connector, "ensure_own_topics", lambda admin, names: None),
        (connector, "newest_version", lambda access, topic: None),
        (connector, "refuse_beside_fleet", lambda access, name, stopping: None),
        (connector, "find_cuts", clients.finding_cuts(world)),
        (connector, "message_bytes_max", lambda admin, name: world.plan.letter_bytes_max),
        (connector, "uuid", SimpleNamespace(uuid4=read_owner)),
        (connector, "WindowMonitor", bound(driver.SimulatedMonitor)),
        (connector, "Inbox", bound(driver.VirtualInbox)),
        (connector, "ConnectorLoop", bound(driver.SimulatedLoop)),
        (specs, "decoder_version", lambda: f"simulated {world.driver.decoder}"),
        (connector, "SchemaReader", bound(driver.SimulatedSchemaReader)),
        # To look through all that a process has takes it longer than a driver's life here.
        (connector, "relaxed_collector", nullcontext),
        (connector, "DecisionWatch", decision_watch),
        (connector, "FleetMember", fleet.member_in(parts.reports)),
        (connector, "boot_id", lambda: "one machine"),
        (driver_fleet, "FleetTopic", fleet.topic_in(parts.reports)),
        (connector, "ReplicaWatch", driver.SimulatedReplicaWatch),
        (loading, "new_fields", decoding.new_fields),
        (loading, "send_parallel", decoding.sending_parallel(world)),
        (loading, "without_rows", decoding.without_rows),
        (routing, "envelope_tables", messages.envelope_tables),
        (loading, "end_of_rows", partial(loading.end_of_rows, rows_max=world.plan.rows_max)),
        (registry, "_sources", {}),
        (tasks, "load_bundle", bundle_loader(world)),
        (growing, "add_columns", columns.adding_in(world)),
        (loading, "_cache", _CacheOfWorker(world)),
        (report_handler, "random", world.rng),
    ]


def _of_claims(parts: Parts) -> list[tuple[Any, str, Any]]:
    world = parts.world
    if world.plan.claims is None:
        return []
    seconds = world.plan.claims.poll_seconds
    return [
        (claims, "POLL_SECONDS", seconds),
        (connector, "SETTLE_MS", int(3_000 * seconds)),
        (connector, "store_access", lambda found: SimpleNamespace(is_local=False)),
        (connector, "open_store", lambda access: store.SimulatedStore(parts)),
        (connector, "rebuild", store.rebuilding(parts)),
        # A store is never taken for a new one: then nobody could have claimed.
        (connector, "TableLooks", lambda: SimpleNamespace(has_rows=lambda *_: True)),
        (claiming, "kept", store.kept),
    ]
