"""What goes wrong by itself: processes, servers and topics that break at any step."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.testbed.simulate.decoding import make_message
from sluice.testbed.simulate.driver import Driver
from sluice.testbed.simulate.faults import NEMESIS, STOPPING, STORE
from sluice.testbed.simulate.inserts import ACCESS_DENIED, VIOLATED_CONSTRAINT
from sluice.testbed.simulate.kafka import Log, Stored, Transaction
from sluice.testbed.simulate.plan import PARKABLE
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.spark import Worker

if TYPE_CHECKING:
    from sluice.testbed.simulate.world import World

#: How often the world strikes by itself, compared with a call; and for the faults that stop.
_SHARE, _STOPPING_SHARE = 0.03, 0.4
DRIVERS_MAX = 3
PARTITIONS_MAX = 3
#: The longest time without any driver.
LONG_OUTAGE_MS = 600_000
#: How long a replica may be behind once everything is healed.
HEALED_LAG_MS = 200
#: Nothing is paused for so long and wakes up by itself.
HUNG_MS = 24 * 3_600_000


class Nemesis:
    """Draws and does the faults of the world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open: list[tuple[TopicPartition, Transaction]] = []
        self._held_back: set[TopicPartition] = set()
        self._is_healed = False
        self._actions: dict[str, Callable[[], None]] = {
            "driver killed": lambda: self._kill_driver(False),
            "driver killed, its tasks live on": lambda: self._kill_driver(True),
            "driver paused": self._pause_driver,
            "driver paused beyond lease and window": self._pause_drivers,
            "duplicate driver": self._duplicate_driver,
            "two drivers take over at once": self._take_over_twice,
            "partition appears under a zombie": self._add_partition_under_zombie,
            "driver asked to stop": self._stop_driver,
            "configuration changed": self._change_configuration,
            "decoder judges messages differently": self._change_decoder,
            "ClickHouse partition key changes": self._change_partition_key,
            "column added to a table": self._add_column,
            "worker paused": self._pause_worker,
            "worker clock off": self._shift_clock,
            "ClickHouse outage": self._clickhouse_outage,
            "ClickHouse restart": self._clickhouse_restart,
            "ClickHouse read-only for a while": self._read_only,
            "a table refuses its blocks": self._refuse_blocks,
            "foreign writer fills the window": world.adversary.fill_window,
            "foreign writer floods the window": self._flood_windows,
            "rows of another pipeline": world.adversary.load_elsewhere,
            "newest foreign parts are dropped": self._drop_newest,
            "registry forgets for a while": self._forget_schemas,
            "Kafka outage": self._kafka_outage,
            "foreign transaction stays open": lambda: self._foreign_transaction("committed"),
            "foreign transaction is aborted": lambda: self._foreign_transaction("aborted"),
            "offsets with holes": self._make_holes,
            "open transaction of others in the ledger": self._hold_ledger,
            "partitions added": self._add_partition,
            "foreign commit": self._foreign_commit,
            "offsets expired": self._expire_offsets,
            "another leader": lambda: self._elect(None),
            "end of a log lost, and filled again": self._lose_end,
            "log truncated": self._truncate,
            "log cut below what is recorded, and filled again": self._cut,
            "messages expired": self._expire_messages,
            "topic created again": self._create_again,
            "ledger lost": self._lose_ledger,
        }
        if world.claims is not None:
            self._actions |= world.claims.actions(self._draw_outage_ms)

    def start(self) -> None:
        """Begin to produce; in some worlds a table refuses its blocks soon, and for long."""
        self._produce()
        if self._world.plan.refuses:
            # Before the first block, or soon after it.
            delay_ms = self._world.rng.choice((0, 5_000))
            self._world.scheduler.at(delay_ms, lambda: self._refuse_blocks(900_000))

    def strike(self) -> None:
        """Called before each event; mostly nothing happens."""
        world = self._world
        kind = world.faults.draw(NEMESIS, _SHARE * world.plan.unrest)
        if kind is None and world.plan.stops:
            kind = world.faults.draw(STOPPING, _STOPPING_SHARE * world.plan.unrest)
            world.plan.stops -= kind is not None
        if kind is None and world.claims is not None:
            kind = world.faults.draw(STORE, _SHARE * world.claims.plan.unrest)
        if kind is not None:
            world.say(kind)
            self._actions[kind]()

    def heal(self) -> None:
        """No more faults; what was paused wakes up, some of it late."""
        world = self._world
        self._is_healed = True
        world.faults.is_on = False
        world.broker.unreachable_until = 0
        world.registry.heal()
        if world.claims is not None:
            world.claims.away_until = 0
        # A probe waits until a replica has everything: one that is always behind holds it up.
        world.plan.lag_ms = min(world.plan.lag_ms, HEALED_LAG_MS)
        for host in world.clickhouse.hosts.values():
            host.down_until = host.read_only_until = 0
        for table in world.clickhouse.of_name(PARKABLE):
            table.refuses_until = 0
        self._ask_again()
        for process in world.scheduler.processes():
            if process.paused_until - world.now > HUNG_MS:
                world.scheduler.kill(process)  # somebody looks at what still hangs
                continue
            late = world.now + world.rng.randrange(world.plan.quiet_ms)
            process.paused_until = min(process.paused_until, late)
        for driver in world.drivers:
            for worker in driver.application.workers:
                worker.skew_ms = 0
        for source, transaction in self._open:
            if transaction.state == "open":
                if world.rng.random() < 0.3:
                    world.faults.note("stable offset that never moves")
                    self._held_back.add(source)
                else:
                    self._close(source, transaction, "committed")
        world.ensure_driver()

    def draw_restart_ms(self) -> int:
        """Until a supervisor starts the next driver; sometimes leases and windows pass."""
        world = self._world
        point = world.rng.random()
        if self._is_healed or point < 0.6:
            return world.rng.randrange(3_000)
        if point < 0.75:
            return world.rng.randrange(int(world.plan.lease_seconds * 1000))
        if world.rng.random() < 0.5:
            world.scheduler.at(world.plan.quiet_ms + 1_000, self._flood_windows)
            return world.plan.quiet_ms + 2_000
        # Nothing is written meanwhile: only the age of blocks tells that they may be forgotten.
        seconds = max((t.shape.seconds or 0 for t in world.clickhouse.tables()), default=0)
        return max(world.plan.quiet_ms, min(seconds * 1_000, LONG_OUTAGE_MS)) + 2_000

    # Producers

    def _produce(self) -> None:
        if self._is_healed:
            return
        world = self._world
        every_ms = world.plan.produce_every_ms
        if world.checks.lag() < world.plan.lag_max:
            for source in world.plan.draw_sources(world.rng, world.sources()):
                self._produce_some(source)
        else:
            every_ms *= 10
        world.scheduler.at(world.rng.randrange(50, every_ms), self._produce)

    def _produce_some(self, source: TopicPartition) -> None:
        """A batch; where producers use transactions, each has its own, and some are aborted."""
        world, rng = self._world, self._world.rng
        if not world.plan.in_transactions:
            world.produce(source, rng.randrange(1, 10))
            return
        transaction = Transaction("producer", 0)
        world.produce(source, rng.randrange(1, 6), transaction)
        self._open.append((source, transaction))
        outcome = "aborted" if rng.random() < 0.1 else "committed"
        delay_ms = rng.randrange(rng.choice((20, 3_000, 30_000)))
        world.scheduler.at(delay_ms, lambda: self._close(source, transaction, outcome))

    def _foreign_transaction(self, outcome: str) -> None:
        world, rng = self._world, self._world.rng
        source = rng.choice(world.sources())
        log = world.broker.log(source)
        transaction = Transaction("foreign", 0)
        for _ in range(rng.randrange(1, 5)):
            stored, _ = make_message(rng, -world.named(), world.now, 100)
            log.append(stored, transaction)
            world.produce(source, rng.randrange(2))
        self._open.append((source, transaction))
        delay_ms = rng.randrange(rng.choice((3_000, 60_000, 400_000)))
        world.scheduler.at(delay_ms, lambda: self._close(source, transaction, outcome))

    def _hold_ledger(self) -> None:
        """Another connector writes to the same ledger, and leaves its transaction open."""
        world = self._world
        transaction = Transaction("other", 0)
        entry = {"connector": "other", "at_ms": world.now, "type": "note"}
        stored = Stored(json.dumps(entry).encode(), b"other", (), 0, world.now)
        log = world.broker.topics[world.plan.ledger][0]
        log.append(stored, transaction)

        def end() -> None:
            transaction.state = world.rng.choice(("committed", "aborted"))
            log.mark(transaction)

        world.scheduler.at(world.rng.randrange(world.rng.choice((2_000, 60_000))), end)

    def _close(self, source: TopicPartition, transaction: Transaction, outcome: str) -> None:
        if transaction.state == "open" and source not in self._held_back:
            transaction.state = outcome
            self._world.broker.log(source).mark(transaction)

    def _make_holes(self) -> None:
        """Compacted away before anybody read them, or control records."""
        world = self._world
        log = world.broker.log(world.rng.choice(world.sources()))
        for _ in range(world.rng.randrange(1, 8)):
            log.append(None)

    def _add_partition(self) -> None:
        logs = self._world.broker.topics[self._world.rng.choice(("a", "b"))]
        if len(logs) < PARTITIONS_MAX:
            logs.append(Log())

    # Drivers and workers

    def _a_driver(self) -> Driver | None:
        drivers = list(self._world.drivers)
        return self._world.rng.choice(drivers) if drivers else None

    def _kill_driver(self, tasks_live_on: bool) -> None:
        driver = self._a_driver()
        if driver is not None:
            self._world.kill(driver, tasks_live_on=tasks_live_on)

    def _pause(self, process: Process) -> None:
        process.paused_until = self._world.now + self._world.draw_pause_ms()

    def _pause_driver(self) -> None:
        driver = self._a_driver()
        if driver is not None:
            self._pause(driver)
            if self._world.rng.random() < 0.5:
                self._duplicate_driver()

    def _pause_drivers(self) -> None:
        """All of them sleep, a flood passes, and a successor meets the zombies."""
        world = self._world
        wakes_at = world.now + world.plan.quiet_ms + 2_000
        for driver in world.drivers:
            driver.paused_until = wakes_at + world.rng.randrange(5_000)
            for worker in driver.application.workers:
                worker.paused_until = wakes_at + world.rng.randrange(60_000)
        world.scheduler.at(world.plan.quiet_ms + 1_000, self._flood_windows)
        world.scheduler.at(world.plan.quiet_ms + 2_000, self._duplicate_driver)

    def _duplicate_driver(self) -> None:
        if len(self._world.drivers) < DRIVERS_MAX:
            self._world.start_driver()

    def _take_over_twice(self) -> None:
        """Two successors in step with each other; each may record while the other reads."""
        world = self._world
        for driver in list(world.drivers):
            world.kill(driver)
        for _ in range(2):
            world.start_driver(is_in_step=True)

    def _add_partition_under_zombie(self) -> None:
        """A partition that only a former owner sees at first. It loads it under a load spec of its
        own, and dies; the present owner takes a range in doubt over while it runs.

        The former owner's other tasks sleep: whoever records for them finds the successor."""
        world, rng = self._world, self._world.rng
        driver = self._a_driver()
        topic = rng.choice(("a", "b"))
        logs = world.broker.topics[topic]
        if driver is None or len(logs) >= PARTITIONS_MAX:
            return
        wakes_in_ms = rng.randrange(8_000, 25_000)
        driver.paused_until = world.now + wakes_in_ms
        for worker in driver.application.workers:
            worker.paused_until = world.now + 90_000
        world.plan.draw_limits(world.rng)
        self._duplicate_driver()

        def appear() -> None:
            if len(logs) < PARTITIONS_MAX and world.broker.topics[topic] is logs:
                logs.append(Log())
                world.produce(TopicPartition(topic, len(logs) - 1), 20)

        def die() -> None:
            if driver in world.drivers:
                world.kill(driver)

        world.scheduler.at(wakes_in_ms - rng.randrange(5_000), appear)
        world.scheduler.at(wakes_in_ms + rng.randrange(6_000), die)

    def _stop_driver(self) -> None:
        driver = self._a_driver()
        if driver is not None:
            driver.connector_run._stopping.set()

    def _pause_worker(self) -> None:
        driver = self._a_driver()
        workers = list(driver.application.workers) if driver is not None else []
        if workers:
            self._pause(self._world.rng.choice(workers))

    def _shift_clock(self) -> None:
        """Ahead only shortens leases; behind by more than 5 s is refused, unless the task was
        queued for as long; then the server's clock holds the lease."""
        driver = self._a_driver()
        for worker in list(driver.application.workers)[:1] if driver is not None else []:
            worker.skew_ms = self._world.rng.choice((30_000, 8_000, -20_000, -600_000))

    # Configuration

    def _change_configuration(self) -> None:
        plan, rng = self._world.plan, self._world.rng
        plan.draw_limits(rng)

    def _change_decoder(self) -> None:
        """The next driver brings another engine."""
        self._world.plan.decoder += 1
        self._kill_driver(self._world.rng.random() < 0.5)

    def _change_partition_key(self) -> None:
        """Between two drivers and inserts, as a person would; late ones may still come."""
        world = self._world
        if len(world.drivers) != 1 or world.tasks_running or world.inserts_running:
            return
        self._kill_driver(True)
        for table in world.clickhouse.of_name("parted"):
            table.change_divisor(3 - table.shape.partition_divisor)

    # ClickHouse

    def _add_column(self) -> None:
        """While drivers run, and with ranges in doubt."""
        self._alter(self._world.rng.choice(self._world.clickhouse.names()))

    def add_columns(self) -> None:
        """To every table."""
        for name in self._world.clickhouse.names():
            self._alter(name)

    def _alter(self, name: str) -> None:
        """A server that hashes is not altered in the moment between a task's look at the columns
        and its insert: nothing protects from that."""
        world = self._world
        shapes = {table.columns for table in world.clickhouse.of_name(name)}
        if len(shapes) > 1:
            return  # a driver is adding one; in another order, shards would differ for good
        if world.plan.tokens or not any(isinstance(who, Worker) for who in world.looking):
            world.say(f"{name} gets a column")
            for table in world.clickhouse.of_name(name):
                table.add_column()
        elif not self._is_healed:
            world.scheduler.at(500, lambda: self._alter(name))

    def align_columns(self) -> None:
        """A person gives all shards the columns that one of them has."""
        for name in self._world.clickhouse.names():
            tables = self._world.clickhouse.of_name(name)
            longest = max((table.columns for table in tables), key=len)
            for table in tables:
                table.columns = longest

    def _draw_outage_ms(self) -> int:
        return self._world.rng.randrange(self._world.rng.choice((2_000, 20_000, 120_000)))

    def _clickhouse_outage(self) -> None:
        until = self._world.now + self._draw_outage_ms()
        for host in self._world.clickhouse.strike(self._world.rng):
            host.down_until = until

    def _clickhouse_restart(self) -> None:
        """What runs there is lost."""
        until = self._world.now + self._world.rng.randrange(5_000)
        for host in self._world.clickhouse.strike(self._world.rng):
            self._world.restart(host, until - self._world.now)

    def _read_only(self) -> None:
        until = self._world.now + self._draw_outage_ms()
        for host in self._world.clickhouse.strike(self._world.rng):
            host.read_only_until = until

    def _refuse_blocks(self, for_ms: int = 0) -> None:
        """Until a person fixes the table, and says so."""
        world = self._world
        for_ms = for_ms or world.rng.choice((20_000, 400_000))
        refusal = world.rng.choice((ACCESS_DENIED, VIOLATED_CONSTRAINT))
        for table in world.clickhouse.of_name(PARKABLE):
            table.refuses_until, table.refusal = world.now + for_ms, refusal
        world.scheduler.at(for_ms, self._ask_again)

    def _ask_again(self) -> None:
        """SIGHUP to every driver."""
        tables = self._world.clickhouse.of_name(PARKABLE)
        is_fixed = all(table.refuses_until <= self._world.now for table in tables)
        for driver in self._world.drivers if is_fixed else ():
            driver.connector_run.refresh()

    def _forget_schemas(self) -> None:
        self._world.registry.forget(
            self._world.rng.randrange(self._world.rng.choice((5_000, 200_000)))
        )

    def _drop_newest(self) -> None:
        """No more than others may write: an insert counter as before says that nothing came."""
        table = self._world.rng.choice(list(self._world.clickhouse.tables()))
        written = table.shape.window_blocks // 2 - 1 - self._world.adversary.allowance(table)
        table.drop_newest(written)

    def _flood_windows(self) -> None:
        """More than a window: only while nobody looked at it for longer than any lease."""
        world = self._world
        if world.now - world.active_at > world.plan.quiet_ms:
            world.faults.note("window overrun")
            every = world.clickhouse.with_views()
            for table in every if world.rng.random() < 0.5 else [world.rng.choice(every)]:
                blocks = table.shape.window_blocks
                # Beyond half of it the loader has to look, although the token is still known.
                table.write_foreign(world.rng.choice((blocks // 2 + 1, 2 * blocks)))

    # Kafka

    def _kafka_outage(self) -> None:
        self._world.broker.unreachable_until = self._world.now + self._draw_outage_ms()

    def _excuse(self, why: str, *sources: TopicPartition) -> None:
        for source in sources:
            self._world.excused.setdefault(source, why)

    def _foreign_commit(self) -> None:
        world = self._world
        source = world.rng.choice(world.sources())
        self._excuse("foreign commit", source)
        world.checks.foreign_commits[source] = world.now
        world.broker.group[source] = (world.rng.randrange(world.broker.log(source).end + 1), None)

    def _expire_offsets(self) -> None:
        """Not together with the ledger: then there is no copy left (H3)."""
        if "ledger lost" in self._world.excused.values():
            return
        source = self._world.rng.choice(self._world.sources())
        self._excuse("offsets expired", source)
        self._world.broker.group.pop(source, None)

    def _truncate(self) -> None:
        world = self._world
        source = world.rng.choice(world.sources())
        self._excuse("log truncated", source)
        log = world.broker.log(source)
        log.truncate(world.rng.randrange(log.end // 2, log.end + 1))

    def _elect(self, cut_at: int | None, source: TopicPartition | None = None) -> None:
        """Where nobody tells epochs, nobody can tell either that a log was cut and filled again."""
        world = self._world
        if not world.plan.has_epochs:
            return
        log = world.broker.log(source or world.rng.choice(world.sources()))
        log.elect(cut_at, world.now + world.rng.randrange(3_000))

    def _recorded(
        self, is_usable: Callable[[Record], bool]
    ) -> tuple[TopicPartition, Record] | None:
        """A partition of which something is recorded, and the record."""
        world = self._world
        found = []
        for source in world.sources():
            record = world.checks.recorded(world.broker.group.get(source))
            if record is not None and source not in world.excused and is_usable(record):
                found.append((source, record))
        return world.rng.choice(found) if found and world.plan.has_epochs else None

    def _lose_end(self) -> None:
        """An unclean leader lacks messages that nobody has recorded yet. Others are written under
        their offsets: those are what counts."""
        world, rng = self._world, self._world.rng
        chosen = self._recorded(lambda record: True)
        if chosen is None:
            return
        source, record = chosen
        log = world.broker.log(source)
        world.cut_logs.add(source)
        before, kept = log.end, max(record.end, _end_to_be_committed(world, source))
        self._elect(rng.randrange(min(kept, before), before + 1), source)
        world.produce(source, before - log.end + rng.randrange(3))

    def _cut(self) -> None:
        """It lacks what is recorded; in place of it there are other messages. Where nothing is
        settled yet, it waits: a range in doubt is refused by its task anyway."""
        world, rng = self._world, self._world.rng
        may_wait = rng.random() < 0.7 and not self._is_healed
        chosen = self._recorded(
            lambda record: record.end > 0 <= record.epoch and not (may_wait and record.in_doubt)
        )
        if chosen is None:
            if may_wait and world.plan.has_epochs:
                world.scheduler.at(500, self._cut)
            return
        source, record = chosen
        log = world.broker.log(source)
        self._excuse("log cut", source)
        world.cut_logs.add(source)
        before = log.end
        self._elect(rng.randrange(record.end), source)
        world.invariants.cut(source, log.epoch)
        world.produce(source, before - log.end + rng.randrange(1, 9))

    def _expire_messages(self) -> None:
        world = self._world
        source = world.rng.choice(world.sources())
        self._excuse("messages expired", source)
        log = world.broker.log(source)
        log.begin = world.rng.randrange(log.begin, log.end + 1)

    def _create_again(self) -> None:
        world = self._world
        topic = world.rng.choice(sorted(world.broker.ids))
        sources = [source for source in world.sources() if source.topic == topic]
        self._excuse("topic created again", *(TopicPartition(topic, n) for n in range(9)))
        world.broker.ids[topic] = world.topic_id(f"B{world.named():010d}")
        world.broker.topics[topic] = [Log() for _ in sources]

    def _lose_ledger(self) -> None:
        world = self._world
        if "offsets expired" in world.excused.values():
            return
        self._excuse("ledger lost", *world.sources())
        self._excuse("ledger lost", *(TopicPartition(t, n) for t in "ab" for n in range(9)))
        world.broker.topics[world.plan.ledger] = [Log()]


def _end_to_be_committed(world: World, source: TopicPartition) -> int:
    """Of the record in a transaction whose end the broker has taken, and not yet written down: its
    driver goes on as with what is committed."""
    records = (
        world.checks.recorded(transaction.offsets.get(source))
        for transaction in world.broker.transactions.values()
        if transaction.state == "committing"
    )
    return max((record.end for record in records if record is not None), default=0)
