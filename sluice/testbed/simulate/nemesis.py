"""What goes wrong by itself: processes, servers and topics that break at any step."""

from __future__ import annotations

import sys
from collections.abc import Callable

from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.core.records import Record
from sluice.testbed.simulate.columns import add_column
from sluice.testbed.simulate.faults import NEMESIS, STOPPING, STORE
from sluice.testbed.simulate.inserts import ACCESS_DENIED, VIOLATED_CONSTRAINT
from sluice.testbed.simulate.kafka import Log, record_of
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.plan import PARKABLE
from sluice.testbed.simulate.processes import DriverProcess
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.supervisor import Supervisor
from sluice.testbed.simulate.world import World

#: How often the world strikes by itself, compared with a call; and for the faults that stop.
_SHARE, _STOPPING_SHARE = 0.03, 0.4
DRIVERS_MAX = 3
#: How often only some of a fleet are struck by what strikes all drivers.
SOME_SHARE = 0.8
PARTITIONS_MAX = 3
#: How long a replica may be behind once everything is healed.
HEALED_LAG_MS = 200
#: Nothing is paused for so long and wakes up by itself.
HUNG_MS = 24 * 3_600_000

Actions = dict[str, Callable[[], None]]


def draw_outage_ms(world: World) -> int:
    """For how long something is away."""
    return world.rng.randrange(world.rng.choice((2_000, 20_000, 120_000)))


class Nemesis:
    """Draws and does the faults of the world."""

    def __init__(self, parts: Parts, supervisor: Supervisor) -> None:
        self._world = world = parts.world
        self._registry = parts.registry
        self._producers = parts.producers
        self._kept = parts.kept
        self._person = parts.person
        self._supervisor = supervisor
        self._of_clickhouse = ClickHouseFaults(parts)
        self._actions: Actions = {
            **DriverFaults(parts, supervisor).actions(),
            **self._of_clickhouse.actions(),
            **KafkaFaults(parts).actions(),
        }
        if parts.kept is not None:
            self._actions |= parts.kept.actions(lambda: draw_outage_ms(world))

    def start(self) -> None:
        """Begin to produce; in some worlds a table refuses its blocks soon, and for long."""
        self._producers.start()
        self._person.start()
        if self._world.plan.refuses:
            # Before the first block, or soon after it.
            delay_ms = self._world.rng.choice((0, 5_000))
            self._world.scheduler.at(delay_ms, lambda: self._of_clickhouse.refuse_blocks(900_000))

    def strike(self) -> None:
        """Called before each event; mostly nothing happens."""
        world = self._world
        kind = world.faults.draw(NEMESIS, _SHARE * world.plan.unrest)
        if kind is None and world.plan.stops:
            kind = world.faults.draw(STOPPING, _STOPPING_SHARE * world.plan.unrest)
            world.plan.stops -= kind is not None
        if kind is None and world.plan.claims is not None:
            kind = world.faults.draw(STORE, _SHARE * world.plan.claims.unrest)
        if kind is not None:
            world.say(kind)
            self._actions[kind]()

    def heal(self) -> None:
        """No more faults; what was paused wakes up, some of it late."""
        world = self._world
        world.faults.is_on = False
        world.broker.unreachable_until = 0
        self._registry.heal()
        if self._kept is not None:
            self._kept.away_until = 0
        # A probe waits until a replica has everything: one that is always behind holds it up.
        world.plan.lag_ms = min(world.plan.lag_ms, HEALED_LAG_MS)
        for host in world.clickhouse.hosts.values():
            host.down_until = host.read_only_until = 0
        for table in world.clickhouse.of_name(PARKABLE):
            table.refuses_until = 0
        self._of_clickhouse.ask_again()
        for process in world.scheduler.processes():
            if process.paused_until - world.now > HUNG_MS:
                world.scheduler.kill(process)  # somebody looks at what still hangs
                continue
            late = world.now + world.rng.randrange(world.plan.quiet_ms)
            process.paused_until = min(process.paused_until, late)
        for driver in world.drivers:
            for worker in driver.workers:
                worker.skew_ms = 0
        self._producers.heal()
        self._person.heal()
        self._supervisor.ensure_driver()


class DriverFaults:
    """What drivers and their workers meet, and what a new driver brings."""

    def __init__(self, parts: Parts, supervisor: Supervisor) -> None:
        self._world = parts.world
        self._adversary = parts.adversary
        self._producers = parts.producers
        self._supervisor = supervisor

    def actions(self) -> Actions:
        """What may happen, by name."""
        return {
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
            "worker paused": self._pause_worker,
            "worker clock off": self._shift_clock,
        }

    def _a_driver(self) -> DriverProcess | None:
        drivers = list(self._world.drivers)
        return self._world.rng.choice(drivers) if drivers else None

    def _kill_driver(self, tasks_live_on: bool) -> None:
        driver = self._a_driver()
        if driver is not None:
            self._supervisor.kill(driver, tasks_live_on=tasks_live_on)

    def _pause(self, process: Process) -> None:
        process.paused_until = self._world.now + self._world.draw_pause_ms()

    def _pause_driver(self) -> None:
        driver = self._a_driver()
        if driver is not None:
            self._pause(driver)
            if self._world.rng.random() < 0.5:
                self._duplicate_driver()

    def _struck(self) -> list[DriverProcess]:
        """All drivers; of a fleet mostly some, so that the others go on beside them."""
        drivers, chance = list(self._world.drivers), self._world.fleet_rng
        if len(drivers) > 1 and self._world.plan.members and chance.random() < SOME_SHARE:
            return chance.sample(drivers, chance.randrange(1, len(drivers)))
        return drivers

    def _pause_drivers(self) -> None:
        """They sleep, a flood passes, and a successor meets the zombies."""
        world = self._world
        wakes_at = world.now + world.plan.quiet_ms + 2_000
        for driver in self._struck():
            driver.paused_until = wakes_at + world.rng.randrange(5_000)
            for worker in driver.workers:
                worker.paused_until = wakes_at + world.rng.randrange(60_000)
        world.scheduler.at(world.plan.quiet_ms + 1_000, self._adversary.flood_windows)
        world.scheduler.at(world.plan.quiet_ms + 2_000, self._duplicate_driver)

    def _duplicate_driver(self) -> None:
        if len(self._world.drivers) < max(DRIVERS_MAX, self._world.plan.members + 1):
            self._supervisor.start()

    def _take_over_twice(self) -> None:
        """Two successors in step with each other; each may record while the other reads."""
        for driver in self._struck():
            self._supervisor.kill(driver)
        for _ in range(2):
            self._supervisor.start(is_in_step=True)

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
        for worker in driver.workers:
            worker.paused_until = world.now + 90_000
        world.plan.draw_limits(world.rng)
        self._duplicate_driver()

        def appear() -> None:
            if len(logs) < PARTITIONS_MAX and world.broker.topics[topic] is logs:
                logs.append(Log())
                self._producers.add(TopicPartition(topic, len(logs) - 1), 20)

        def die() -> None:
            if driver in world.drivers:
                self._supervisor.kill(driver)

        world.scheduler.at(wakes_in_ms - rng.randrange(5_000), appear)
        world.scheduler.at(wakes_in_ms + rng.randrange(6_000), die)

    def _stop_driver(self) -> None:
        driver = self._a_driver()
        if driver is not None:
            driver.connector_run.stopping.set()

    def _pause_worker(self) -> None:
        driver = self._a_driver()
        workers = list(driver.workers) if driver is not None else []
        if workers:
            self._pause(self._world.rng.choice(workers))

    def _shift_clock(self) -> None:
        """Ahead only shortens leases; behind by more than 5 s is refused, unless the task was
        queued for as long; then the server's clock holds the lease."""
        driver = self._a_driver()
        for worker in list(driver.workers)[:1] if driver is not None else []:
            worker.skew_ms = self._world.rng.choice((30_000, 8_000, -20_000, -600_000))

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
            # A share of a fleet's window may be too small for the blocks of a partitioned table.
            if table.shape.partition_divisor or not world.plan.members:
                table.change_divisor(3 - table.shape.partition_divisor)


class ClickHouseFaults:
    """What servers and tables meet, others who write into them, and the registry."""

    def __init__(self, parts: Parts) -> None:
        self._world = parts.world
        self._adversary = parts.adversary
        self._registry = parts.registry

    def actions(self) -> Actions:
        """What may happen, by name."""
        return {
            "column added to a table": self._add_column,
            "ClickHouse outage": self._clickhouse_outage,
            "ClickHouse restart": self._clickhouse_restart,
            "ClickHouse read-only for a while": self._read_only,
            "a table refuses its blocks": self.refuse_blocks,
            "foreign writer fills the window": self._adversary.fill_window,
            "foreign writer floods the window": self._adversary.flood_windows,
            "rows of another pipeline": self._adversary.load_elsewhere,
            "newest foreign parts are dropped": self._drop_newest,
            "registry forgets for a while": self._forget_schemas,
        }

    def ask_again(self) -> None:
        """SIGHUP to every driver, once no table refuses its blocks."""
        tables = self._world.clickhouse.of_name(PARKABLE)
        is_fixed = all(table.refuses_until <= self._world.now for table in tables)
        for driver in self._world.drivers if is_fixed else ():
            driver.connector_run.refresh()

    def _add_column(self) -> None:
        """While drivers run, and with ranges in doubt."""
        add_column(self._world, self._world.rng.choice(self._world.clickhouse.names()))

    def _clickhouse_outage(self) -> None:
        until = self._world.now + draw_outage_ms(self._world)
        for host in self._world.clickhouse.strike(self._world.rng):
            host.down_until = until

    def _clickhouse_restart(self) -> None:
        """What runs there is lost."""
        until = self._world.now + self._world.rng.randrange(5_000)
        for host in self._world.clickhouse.strike(self._world.rng):
            self._world.restart(host, until - self._world.now)

    def _read_only(self) -> None:
        until = self._world.now + draw_outage_ms(self._world)
        for host in self._world.clickhouse.strike(self._world.rng):
            host.read_only_until = until

    def refuse_blocks(self, for_ms: int = 0) -> None:
        """Until a person fixes the table, and says so."""
        world = self._world
        for_ms = for_ms or world.rng.choice((20_000, 400_000))
        refusal = world.rng.choice((ACCESS_DENIED, VIOLATED_CONSTRAINT))
        for table in world.clickhouse.of_name(PARKABLE):
            table.refuses_until, table.refusal = world.now + for_ms, refusal
        world.scheduler.at(for_ms, self.ask_again)

    def _forget_schemas(self) -> None:
        self._registry.forget(self._world.rng.randrange(self._world.rng.choice((5_000, 200_000))))

    def _drop_newest(self) -> None:
        """No more than others may write: an insert counter as before says that nothing came."""
        table = self._world.rng.choice(list(self._world.clickhouse.tables()))
        written = table.shape.window_blocks // 2 - 1 - self._adversary.allowance(table)
        table.drop_newest(written)


class KafkaFaults:
    """What topics, brokers and the group meet."""

    def __init__(self, parts: Parts) -> None:
        self._world = parts.world
        self._producers = parts.producers
        self._invariants = parts.invariants

    def actions(self) -> Actions:
        """What may happen, by name."""
        return {
            "Kafka outage": self._kafka_outage,
            "foreign transaction stays open": lambda: self._producers.write_in_transaction(
                "committed"
            ),
            "foreign transaction is aborted": lambda: self._producers.write_in_transaction(
                "aborted"
            ),
            "offsets with holes": self._producers.make_holes,
            "open transaction of others in the ledger": self._producers.hold_ledger,
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

    def _add_partition(self) -> None:
        logs = self._world.broker.topics[self._world.rng.choice(("a", "b"))]
        if len(logs) < PARTITIONS_MAX:
            logs.append(Log())

    def _kafka_outage(self) -> None:
        self._world.broker.unreachable_until = self._world.now + draw_outage_ms(self._world)

    def _excuse(self, why: str, *sources: TopicPartition) -> None:
        for source in sources:
            self._world.excused.setdefault(source, why)

    def _foreign_commit(self) -> None:
        world = self._world
        source = world.rng.choice(world.sources())
        self._excuse("foreign commit", source)
        world.foreign_commits[source] = world.now
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
            record = world.recorded(source)
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
        self._producers.add(source, before - log.end + rng.randrange(3))

    def _cut(self) -> None:
        """It lacks what is recorded; in place of it there are other messages. Where nothing is
        settled yet, it waits: a range in doubt is refused by its task anyway."""
        world, rng = self._world, self._world.rng
        may_wait = rng.random() < 0.7 and world.faults.is_on
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
        self._invariants.cut(source, EpochOffset(log.end, log.epoch))
        self._producers.add(source, before - log.end + rng.randrange(1, 9))

    def _expire_messages(self) -> None:
        world = self._world
        source = world.rng.choice(world.sources())
        self._excuse("messages expired", source)
        log = world.broker.log(source)
        log.begin = world.rng.randrange(log.begin, log.end + 1)

    def _create_again(self) -> None:
        """Empty, or with as many messages in a moment as nobody could tell from the old one's."""
        world = self._world
        topic = world.rng.choice(sorted(world.broker.ids))
        before = {s: world.broker.log(s).end for s in world.sources() if s.topic == topic}
        self._excuse("topic created again", *(TopicPartition(topic, n) for n in range(9)))
        old = world.broker.ids[topic]
        world.broker.ids[topic] = new = world.topic_id(f"B{world.named():010d}")
        world.broker.topics[topic] = [Log() for _ in before]
        last = self._producers.messages
        world.messages_of[old] = range(world.messages_of.get(old, range(0)).start, last + 1)
        world.messages_of[new] = range(last + 1, sys.maxsize)
        for source, end in before.items():
            if world.rng.random() < 0.7:
                self._producers.add(source, end + world.rng.randrange(1, 9))

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
        record_of(transaction.offsets.get(source))
        for transaction in world.broker.transactions.values()
        if transaction.state == "committing"
    )
    return max((record.end for record in records if record is not None), default=0)
