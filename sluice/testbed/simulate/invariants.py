"""What must hold at every moment, seen by somebody who knows everything.

A rule that is broken seldom doubles a row at once: the window has to be overrun, too, and an insert
has to come late just then. So the rules themselves are watched: who may still insert what, what
windows could be asked for at worst, what was recorded, sent and looked at. Bundles have rules of
their own (R19).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice.core.anomalies import Judge, Place
from sluice.core.budget import TargetShard
from sluice.core.load_spec import Column, LoadSpec, parse_spec
from sluice.core.ranges import EpochOffset, TopicPartition
from sluice.core.records import Kind, Record, decode, encode
from sluice.kafka.tail import LogMessage
from sluice.testbed.simulate.clickhouse import Block, Row, Table
from sluice.testbed.simulate.inserters import SKEW_MS, Inserter, Inserters, Key, key_of
from sluice.testbed.simulate.kafka import Transaction, record_of
from sluice.testbed.simulate.messages import message_of
from sluice.testbed.simulate.processes import DriverProcess, Records, in_words
from sluice.testbed.simulate.reservations import Looks, ReservationRules, driver_of
from sluice.testbed.simulate.scheduler import Process
from sluice.testbed.simulate.world import World
from sluice.verify.history import ledger_events
from sluice.worker.assignment import Job, TaskEnvironment
from sluice.worker.tasks import bundles_of


class BundleRules:
    """Of one world.

    :param violate: told what rule is broken, and where.
    """

    def __init__(
        self,
        world: World,
        inserters: Inserters,
        violate: Callable[[TopicPartition, str], None],
    ) -> None:
        self._world = world
        self._inserters = inserters
        self._violate = violate
        self._members: dict[str, set[TopicPartition]] = {}
        #: What a task refused as too heavy: nobody ever inserts it, whoever it was sent to.
        self._too_heavy: set[tuple[TopicPartition, int, int, str, str]] = set()

    def recorded(self, source: TopicPartition, record: Record) -> None:
        """A record is decided."""
        if record.bundle:
            self._members.setdefault(record.bundle, set()).add(source)

    def sent(self, job: Job) -> None:
        """A bundle is sent whole, its members one after the other in the order of its rows and
        under one lease, or not at all."""
        for task in job.tasks:
            for members in bundles_of(task):
                records = {each.block_range.source: each.record for each in members}
                first, name = members[0].block_range.source, members[0].record.bundle
                if name:
                    self._world.faults.note("bundle of several ranges")
                    if members[0].record.rest:
                        self._world.faults.note("bundle of ranges that a probe did not find")
                if name and list(records) != sorted(self._members[name]):
                    bundle = ", ".join(map(str, sorted(self._members[name])))
                    self._violate(first, f"{in_words(records)} is sent, but {name} is {bundle}")
                leases = {
                    (r.attempt, r.deadline_ms, r.spec, r.reservation) for r in records.values()
                }
                if len(leases) > 1:
                    self._violate(first, f"{in_words(records)} is sent under several leases")

    def too_heavy(self, source: TopicPartition, record: Record) -> None:
        """A task refused a range, or its bundle, as too heavy (R12)."""
        self._too_heavy.add((source, record.begin, record.end, record.bundle, record.spec))

    def is_too_heavy(self, source: TopicPartition, record: Record) -> bool:
        """Whether a task has refused it as too heavy."""
        of_record = (source, record.begin, record.end, record.bundle, record.spec)
        return of_record in self._too_heavy

    def settled(self, source: TopicPartition, before: Record, transaction: Transaction) -> None:
        """All members of a bundle are settled by one transaction, but for those that stopped."""
        stopped = {
            stopped
            for driver in self._world.drivers
            if driver.connector_run.loop is not None
            for stopped, state in driver.connector_run.loop.states.items()
            if state.stopped is not None
        }
        for other, offset in self._world.broker.group.items():
            member = record_of(offset)
            if other in stopped or other in transaction.offsets or member is None:
                continue
            if before.bundle and member.in_doubt and member.bundle == before.bundle:
                self._violate(source, f"{before} is settled, and {other} {member} is not")

    def check_given_back(self, source: TopicPartition, before: Record, record: Record) -> None:
        """What ends elsewhere than the range before it, and does not shorten it, gives the range
        back into the backlog. That may be when nobody inserted it, nor will."""
        if before.rest or record.kind is not Kind.SETTLE or record.end != record.begin:
            self._violate(source, f"{record} is another cut than {before} (R2)")
        if before.bundle:
            self._world.faults.note("range of a bundle given back")
        if not self.is_too_heavy(source, before) and before.begin < before.end:
            for each in self._inserters.all_of(source):
                if each.records[source].begin == before.begin:
                    self._violate(source, f"{before} is given back, and may be inserted")


#: Kinds of records that insert under the tokens of the one before.
_REPEATS = ("renew", "change_spec", "add_columns")


class BlockRules:
    """What must hold of blocks that are stored, and of their tokens (R7, R8, R10, R12).

    :param violate: told what rule is broken, and where.
    """

    def __init__(
        self, world: World, bundles: BundleRules, violate: Callable[[TopicPartition, str], None]
    ) -> None:
        self._world = world
        self._bundles = bundles
        self._violate = violate
        #: What a token names, and what was stored under it.
        self._tokens: dict[str, object] = {}
        self._stored: dict[str, tuple[str, tuple[str, ...], tuple[Row, ...]]] = {}

    def inserts(self, block: Block, records: Records, table: Table) -> None:
        """Each row is of the topic that its record names, whichever has the name now (H12)."""
        of = self._world.messages_of
        ended = {s: of[r.topic_id] for s, r in records.items() if r.topic_id in of}
        for row in block.rows if ended else ():
            number = message_of(row.number, block.entry, is_many=table.shape.is_many)
            if row.source in ended and number >= 0 and number not in ended[row.source]:
                self._world.violate(
                    f"{row.source} {row.offset}: message {number} is inserted for "
                    f"{records[row.source]}, which is of another topic of this name (H12)"
                )
                return

    def stored(self, table: Table, block: Block, records: Records, token: str) -> None:
        """A block is about to be stored: its token names it alone (R7)."""
        (source, record), *others = records.items()
        entry, now = block.entry, self._world.now
        key = key_of(records, entry)
        identity = (key, table.shape.name, table.shard)
        if self._tokens.setdefault(token, identity) != identity:
            self._violate(source, f"{token} names {self._tokens[token]} and {identity} (R7)")
        if self._bundles.is_too_heavy(source, record):
            self._violate(source, f"{record} was refused as too heavy, and is inserted (R12)")
        of_range = (record.topic_id, str(record.generation))
        parts = (*(("bundle",) if others else of_range), entry, table.shape.name, table.shard)
        missing = [part for part in parts if part not in token]
        if missing:
            self._violate(source, f"the token {token} lacks {', '.join(missing)} (R7)")
        table.first_landing.setdefault(key, table.own)
        age_ms = now - table.first_landed_at.setdefault(key, now)
        seconds = table.shape.seconds
        if seconds is not None and age_ms > seconds * 1000:
            self._violate(
                source,
                f"{token} is inserted again {age_ms} ms after it was first stored, and "
                f"{table.shape.name} keeps its blocks for {seconds} s (R10)",
            )

    def storing(self, token: str, block: Block) -> None:
        """Same token, same rows (R8), once anything was stored under the token. What a
        second probe finds, when nothing was, may be decoded by another engine."""
        now = (block.entry, block.columns, block.rows)
        before = self._stored.setdefault(token, now)
        if before != now and not self._world.excused.keys() & set(block.sources):
            self._world.violate(f"token {token} named {before}, and names {now} (R8)")

    def stored_by_hash(
        self, table: Table, block: Block, records: Records, columns: tuple[Column, ...]
    ) -> None:
        """A server that hashes what it stores knows a block again only while its table has the
        columns that it had when the block came first (R8)."""
        before = table.hashed_with.setdefault(key_of(records, block.entry), columns)
        if before != columns:
            names = [column.name for column in columns if column not in before]
            self._violate(
                block.sources[0],
                f"{in_words(records)} is inserted again into {table.shape.name}, which has the "
                f"columns {', '.join(names)} since (R8)",
            )


class Invariants:
    """Of one world."""

    def __init__(self, world: World, inserters: Inserters) -> None:
        self._world = world
        self._recorded: set[tuple[TopicPartition, str]] = set()
        self._out: dict[tuple[Process, TopicPartition], Job] = {}
        self._backgrounds: dict[TopicPartition, dict[str, Any]] = {}
        #: Where logs were cut that lack what is recorded, and their leaders' epochs since.
        self._cut: dict[TopicPartition, EpochOffset] = {}
        #: When a driver's job with a partition came back.
        self._back_at: dict[tuple[Process, TopicPartition], int] = {}
        self._inserters = inserters
        self.bundles = BundleRules(world, inserters, self._violate)
        self.blocks = BlockRules(world, self.bundles, self._violate)
        self.looks = Looks(world)
        self.reservations = ReservationRules(
            world, inserters, self.looks, self._backgrounds, self._violate
        )

    def _violate(self, source: TopicPartition, what: str) -> None:
        if source not in self._world.excused:
            self._world.violate(f"{source}: {what}")

    # R1 and R10: what is sent

    def sent(
        self, driver: DriverProcess, job: Job, environment: TaskEnvironment, slots: int
    ) -> None:
        """A driver gives a job to Spark."""
        if len(job.tasks) > slots:
            self._world.violate(f"{len(job.tasks)} tasks in a job for {slots} slots")
        for assignment in job.assignments:
            source, record = assignment.block_range.source, assignment.record
            if (source, encode(record)) not in self._recorded:
                self._violate(source, f"{record} is sent and was never recorded (R1)")
            if (driver, source) in self._out:
                self._violate(source, f"{record} is sent while its former task is out")
            self._out[driver, source] = job
            if record.kind is Kind.RENEW and not assignment.is_first:
                spec = parse_spec(environment.specs[record.spec])
                self._check_look(driver, source, record, spec)
        self.bundles.sent(job)
        self._check_holds(driver)

    def _check_look(
        self, driver: DriverProcess, source: TopicPartition, record: Record, spec: LoadSpec
    ) -> None:
        """A range that came back is repeated on what the windows held since (R10). An entry that
        its load spec parks has a counter from an earlier one, and is sent nothing (R13)."""
        back_at = self._back_at.get((driver, source), 0)
        parked = {table.entry for table in spec.tables if table.parked}
        inserted = {
            name
            for name in self._backgrounds[source]["insert_counters"]
            if TargetShard.of(name).entry not in parked
        }
        for table in self._world.clickhouse.tables():
            key = next((name for name in table.target_shards if name in inserted), None)
            told_at = self.looks.told_at(driver, table, back_at)
            if key is not None and told_at < back_at:
                self._violate(
                    source,
                    f"{record} is sent again {self._world.now - back_at} ms after it came back, on "
                    f"what {key} held before (R10)",
                )

    def _check_holds(self, driver: DriverProcess) -> None:
        """Who reserves entries counts every late insert of what is settled (R10)."""
        loop, world = driver.connector_run.loop, self._world
        assert loop is not None
        held = max((s.deadline_ms for s in loop.holds.late_inserts), default=0)
        for each in self._inserters.all_of():
            for source, record in each.records.items():
                is_ours = source in loop.states and world.owner_of(source) == driver.owner
                is_late = is_ours and self._is_settled(source, record.end)
                if is_late and held < each.deadline_ms:
                    self._violate(
                        source,
                        f"[{record.begin}, {record.end}) is settled and may be inserted until "
                        f"{each.deadline_ms}, and who reserves entries does not count it (R10)",
                    )

    def came_back(self, driver: Process, job: Job) -> None:
        """A job has ended, as its driver knows it."""
        for assignment in job.assignments:
            source = assignment.block_range.source
            self._out.pop((driver, source), None)
            self._back_at[driver, source] = self._world.now

    def check_budget(self, table: Table) -> None:
        """Whatever may still come, a block that may be repeated is remembered (I6)."""
        world = self._world
        able: dict[Key, Inserter] = {}
        for each in self._inserters.all_of():
            for entry in each.entries_of(table):
                able[key_of(each.records, entry)] = each
        waiting = sum(
            max(0, each.reservation - table.stored_of[key])
            for key, each in able.items()
            # Of a partition whose position or topic is gone nobody knows any more.
            if not (
                key in table.landed
                or any(self._is_settled(source, r.end) for source, r in each.records.items())
                or each.records.keys() & world.excused.keys()
                or any(self.bundles.is_too_heavy(*item) for item in each.records.items())
            )
        )
        usable = self._usable(table)
        for key, each in able.items():
            first = table.entries_since(key)
            if first > 0 and first + waiting > usable:
                is_excused = each.records.keys() & world.excused.keys()
                if is_excused or "ledger lost" in world.excused.values():
                    continue
                self._violate(
                    next(iter(each.records)),
                    f"{in_words(each.records)} may be inserted again into {table.shape.name} "
                    f"after {first} entries and {waiting} more, beyond {usable} (I6)",
                )

    def _usable(self, table: Table) -> int:
        """Of a window, by all that is recorded. Who was succeeded, and goes on with a partition
        that its successor has not seen yet, is another writer to that one, and the other half is
        for such (R10)."""
        world, entries = self._world, table.shape.window_blocks
        owners = {world.owner_of(source) for source in world.broker.group} - {None}
        return entries // 2 if world.plan.members or len(owners) <= 1 else entries

    def _is_settled(self, source: TopicPartition, end: int) -> bool:
        """Whether all blocks of a range are stored, as far as there are any."""
        position = self._world.broker.group.get(source)
        return position is not None and position[0] >= end

    # R2, R4, R9 and R10: what is recorded

    def decided(self, transaction: Transaction) -> None:
        """A transaction will be committed: its records may be sent."""
        for source, (offset, metadata) in transaction.offsets.items():
            self._recorded.add((source, metadata or ""))
            self.bundles.recorded(source, decode(offset, metadata))

    def committed(
        self, source: TopicPartition, before: Record | None, record: Record, late_inserts: list[int]
    ) -> None:
        """A record replaces another one.

        :param late_inserts: deadlines of its possible late inserts in the same transaction.
        """
        if before is None:
            return
        for name in ("generation", "topic_id"):
            if getattr(record, name) != getattr(before, name):
                self._violate(source, f"{record} has another {name} than {before}")
        if record.batch <= before.batch:
            self._violate(source, f"{record} is not of a later batch than {before}")
        longest_ms = int(self._world.plan.lease_seconds * 1000) + SKEW_MS
        if record.in_doubt and record.deadline_ms > self._world.now + longest_ms:
            self._violate(source, f"the lease of {record} is too long (R9)")
        is_same = record.kind is Kind.RENEW and record.attempt == before.attempt
        if is_same and before.in_doubt and record.deadline_ms != before.deadline_ms:
            self._violate(source, f"{record} lengthens a lease without an attempt")
        if record.kind is Kind.INTEND:
            self._check_size(source, record)
            self._check_insert_counters(source)
        self._check_cut(source, record)
        if before.in_doubt and record.begin == before.end:
            self._check_late_inserts(source, before, late_inserts)

    def _check_cut(self, source: TopicPartition, record: Record) -> None:
        """A partition does not go on in a log that lacks what is recorded (R16). A range of which
        nobody inserted anything may become shorter (R12), or be given back (R19): where the log
        holds all that is recorded then, nothing was loaded of what it lost, and it goes on."""
        cut = self._cut.get(source)
        if cut is None:
            return
        if record.end <= cut.offset:
            del self._cut[source]
        elif record.kind is Kind.INTEND and record.epoch >= cut.epoch:
            self._world.violate(
                f"{source}: {record} is intended in a log that was cut below what was recorded"
            )

    def _check_insert_counters(self, source: TopicPartition) -> None:
        """A range is remembered by the counter of every window that its blocks take entries of."""
        insert_counters = self._backgrounds[source]["insert_counters"]
        for table in self._world.clickhouse.tables():
            targets = ["", *(f"d.{view.shape.name}" for view in table.views)]
            for entry in table.entries:
                places = [TargetShard(entry, table.shard, target) for target in targets]
                lacking = [each.name for each in places if each.key not in insert_counters]
                if insert_counters.keys() & {each.key for each in places} and lacking:
                    names = ", ".join(lacking)
                    self._violate(source, f"{insert_counters} has no counter of {names} (R10)")

    def _check_size(self, source: TopicPartition, record: Record) -> None:
        driver = driver_of(self._world, record)
        if driver is not None:
            most = driver.connector_run.configuration.batch.max_messages
            if record.end - record.begin > most:
                self._violate(source, f"{record} has more than {most} messages")

    def _check_late_inserts(
        self, source: TopicPartition, settled: Record, late_inserts: list[int]
    ) -> None:
        """What is settled and may still be inserted stands in the ledger (I4)."""
        for each in self._inserters.all_of(source):
            begin, end = each.records[source].begin, each.records[source].end
            is_of_it = settled.begin <= begin and end <= settled.end and begin < end
            until = each.deadline_ms
            may_come = is_of_it and until > self._world.now - SKEW_MS
            if may_come and max(late_inserts, default=0) < until:
                self._violate(
                    source,
                    f"[{begin}, {end}) is settled, may be inserted until {until}, and the ledger "
                    f"has only {late_inserts} (I4)",
                )

    def background_recorded(self, entry: dict[str, Any]) -> None:
        """What a range in doubt is remembered by is from before its first insert, whatever is
        recorded since (R10)."""
        source = TopicPartition(entry["topic"], entry["partition"])
        now = {name: entry[name] for name in ("begin", "insert_counters", "since_ms")}
        before = self._backgrounds.get(source)
        self._backgrounds[source] = now
        if before is None or before["begin"] != now["begin"] or not before["insert_counters"]:
            return
        if entry["kind"] in _REPEATS and now != before:
            self._violate(source, f"a {entry['kind']} has another background: {now}, was {before}")

    def cut(self, source: TopicPartition, at: EpochOffset) -> None:
        """A log was cut below what is recorded.

        :param at: where, and of which epoch its leader is since.
        """
        self._cut[source] = at

    # R11: what a probe looks at

    def probed(self, table: Table, url: str, source: TopicPartition, begin: int, end: int) -> None:
        """A probe looks for rows: nothing of them may come any more, and the replica has all."""
        process = self._world.process
        owner = self._world.owner_of(source)
        if owner is None or owner != getattr(process, "owner", None):
            return  # a zombie's; nothing comes of it
        for each in self._inserters.all_of(source):
            record = each.records[source]
            if record.begin < end and begin < record.end and each.reaches(table):
                who = "a server" if each.worker is None else "a task"
                self._violate(source, f"a probe looks while {who} may insert {record}")
        lacking = [row for part in table.unfetched.get(url, ()) for row in part.rows]
        if any(row.source == source and begin <= row.offset < end for row in lacking):
            self._violate(source, f"a probe looks at {url}, which lacks parts of the range")


def judge_history(world: World) -> None:
    """The verifier finds nothing in the history."""
    if world.excused:
        return
    plan = world.plan

    def tables_of(connector: str, topic: str) -> tuple[str, ...]:
        return tuple(entry for entry in plan.entries if topic in plan.topics_of(entry))

    judge = Judge(tables_of, has_receipts=True, complete=True)
    log = world.broker.topics[plan.ledger][0]
    for offset, stored in log.read(0, log.end, log.end)[0]:
        message = LogMessage(offset, stored.timestamp_ms, stored.key, stored.value)
        for event in ledger_events("c", Place(plan.ledger, 0, offset), message):
            for anomaly in judge.take(event):
                world.violate(f"the verifier finds {anomaly}")
