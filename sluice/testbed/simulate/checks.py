"""What must hold: after every commit, and in the end row by row."""

from __future__ import annotations

import json
from collections import Counter

from sluice.core.fleet.placement import is_older
from sluice.core.ledger import entries_in
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, Kind, Record, decode, may_hand_over
from sluice.testbed.simulate.clickhouse import Table
from sluice.testbed.simulate.decoding import OTHER_ROWS
from sluice.testbed.simulate.invariants import judge_history
from sluice.testbed.simulate.kafka import Offset, Transaction, record_of
from sluice.testbed.simulate.messages import AGAIN, AGAIN_NUMBERS, judge
from sluice.testbed.simulate.parts import Parts
from sluice.testbed.simulate.processes import DriverProcess

#: Source, offset, table.
Place = tuple[TopicPartition, int, str]

#: What a driver says of a range of which it cannot tell what is missing, or not load it.
_UNPROBABLE = (
    "has no lineage column",
    "materialized views, which a probe cannot see",
    "which keeps one row of each sorting key",
    "so it cannot be shortened",
    "what views make has no lineage",
)
#: What a worker says of a sealed block whose rows its decoder does not make.
_OTHER_BLOCK = "the load spec was changed while the range was in doubt"
#: What it says of one whose rows are gone.
_LOST = "does not say that the block was moved"

#: What two transactions of one producer decide may be seen in another order for so long.
TRANSACTIONS_OVERTAKE_MS = 100


class Checks:
    """Of one world."""

    def __init__(self, parts: Parts) -> None:
        self.commits = 0
        self._world = parts.world
        self._invariants = parts.invariants
        self._claim_rules = parts.claim_rules
        self._registry = parts.registry
        self._staging = parts.staging
        self._dead_letters: Counter[Place] = Counter()
        self._parked: Counter[Place] = Counter()
        self._texts: set[str] = set()
        #: Texts of records that the ledger does not hold yet: since when, and a record.
        self._unknown: dict[str, tuple[int, str]] = {}

    def committing(self, transaction: Transaction) -> None:
        """Called when a transaction's offsets are about to replace those before."""
        self.commits += 1
        for source, offset in transaction.offsets.items():
            self._world.say(f"committed {source} {offset}")
        plan = self._world.plan
        dead_letters = _written(transaction, plan.dead_letters, plan.duplicates)
        self._claim_rules.check_copies(transaction)
        parked = _written(transaction, plan.parking)
        self._dead_letters.update(dead_letters)
        self._parked.update(parked)
        if parked:
            self._world.faults.note("message parked")
        late_inserts: dict[TopicPartition, list[int]] = {}
        ledger = (
            entry
            for topic, stored in transaction.messages
            if topic == self._world.plan.ledger
            for entry in entries_in(json.loads(stored.value or b"{}"))
        )
        for entry in ledger:
            if entry["type"] == "load_spec":
                self._texts.add(entry["digest"])
            elif entry["type"] == "record":
                self._invariants.background_recorded(entry)
            elif entry["type"] == "late_insert":
                of = TopicPartition(entry["topic"], entry["partition"])
                late_inserts.setdefault(of, []).append(entry["deadline_ms"])
        for source, offset in transaction.offsets.items():
            before = self._world.recorded(source)
            self._invariants.committed(
                source, before, decode(*offset), late_inserts.get(source, [])
            )
            if source not in self._world.excused:
                self._check_record(source, offset, transaction, dead_letters, parked)
            self._check_foreign(source, offset, transaction)
        self._check_budget(transaction)
        self._check_texts(TRANSACTIONS_OVERTAKE_MS)

    def _check_budget(self, transaction: Transaction) -> None:
        """What is reserved together has room."""
        group = {**self._world.broker.group, **transaction.offsets}
        for source, later in self._world.broker.pending.items():
            if later is not transaction and later.state == "committing":
                group.pop(source, None)  # decided, and seen in a moment
        recorded = {source: record_of(offset) for source, offset in group.items()}
        records = {source: record for source, record in recorded.items() if record is not None}
        for source in transaction.offsets:
            found = records.get(source)  # none where a later one is decided already
            if found is not None and found.kind is Kind.INTEND:
                self._invariants.reservations.check(source, records)

    def _check_texts(self, patience_ms: int) -> None:
        """The ledger holds a load spec no later than the first record that names it (R8)."""
        for digest in self._texts & self._unknown.keys():
            del self._unknown[digest]
        for since_ms, record in self._unknown.values():
            if self._world.now - since_ms >= patience_ms:
                self._world.violate(f"{record} names a load spec that is not in the ledger")

    def _check_record(
        self,
        source: TopicPartition,
        offset: Offset,
        transaction: Transaction,
        dead_letters: Counter[Place],
        parked: Counter[Place],
    ) -> None:
        before = self._world.recorded(source)
        record = decode(*offset)
        if record.in_doubt:
            self._unknown.setdefault(record.spec, (self._world.now, f"{source}: {record}"))
        owner = GENESIS if before is None else before.owner
        if transaction.identity.rpartition(".")[2] != owner:
            self._world.violate(
                f"{source}: {transaction.identity} recorded, but the owner is {owner} (R4)"
            )
        epoch = self._world.broker.epochs.get(transaction.identity)
        if transaction.epoch != epoch:
            self._world.violate(f"{source}: {transaction.identity} recorded, and was fenced (R4)")
        if before is None:
            if record.begin != 0 or record.kind is not Kind.SETTLE:
                self._world.violate(f"{source}: the first record is {record}")
            return
        # What an heir was at may end after its driver has started anew, under another id.
        is_own = is_older(record.owner, transaction.writer)
        if not is_own and record.owner not in (before.owner, transaction.writer):
            self._world.faults.note("partition handed over")
            if not may_hand_over(before, record):
                self._world.violate(f"{source}: {before} is handed over as {record} (R25)")
        if record.begin == before.end:
            self._invariants.bundles.settled(source, before, transaction)
            if before.begin < before.end:
                self._check_rows(source, before.begin, before.end, dead_letters, parked)
        elif record.begin != before.begin:
            self._world.violate(f"{source}: {record} follows {before} (R2)")
        elif record.end != before.end and record.kind is not Kind.SHORTEN:
            self._invariants.bundles.check_given_back(source, before, record)
        stable_end = self._world.broker.log(source).stable_end
        if record.end > stable_end:
            self._world.violate(
                f"{source}: {record} ends beyond the last stable offset {stable_end}"
            )

    def _check_foreign(
        self, source: TopicPartition, offset: Offset, transaction: Transaction
    ) -> None:
        """The committed offset is read again directly before each record (R5)."""
        at_ms = self._world.foreign_commits.pop(source, 0)
        own = transaction.identity.rpartition(".")[2] == decode(*offset).owner
        if at_ms and own and transaction.initialised_at < at_ms < transaction.begun_at:
            self._world.violate(f"{source}: {offset} is recorded over a foreign commit (R5)")

    # Rows and dead letters

    def _check_rows(
        self,
        source: TopicPartition,
        begin: int,
        end: int,
        dead_letters: Counter[Place],
        parked: Counter[Place],
    ) -> None:
        """Each good message is one row of each table, each bad one one dead letter; of a table
        that may be parked, either of them may be one parked message instead."""
        world = self._world
        log = world.broker.log(source)
        for name, of_table in world.plan.entries.items():
            if source.topic not in world.plan.topics_of(name):
                continue
            for offset in range(begin, min(end, log.end)):
                message, transaction = log.places[offset]
                gone = transaction is not None and transaction.state == "aborted"
                found = Counter[int]()
                for table in world.clickhouse.of_name(of_table):
                    for number, count in table.shown(source, offset).items():
                        if (number > AGAIN_NUMBERS // 2) == (name == AGAIN):
                            found[number] += count
                rows, place = found.total(), (source, offset, name)
                dead, waits = dead_letters[place], parked[place]
                wanted, numbers = {(0, 0, 0)}, set[int]()
                if message is not None and message.value is not None and not gone:
                    wanted, numbers = self._registry.outcomes(name, message.value)
                    if set(found) - numbers:
                        self._world.violate(
                            f"{source} {offset}: foreign rows {dict(found)} in {name}"
                        )
                told, may_lack = (rows, dead, waits), self._claim_rules.may_lack
                is_right = told in wanted or may_lack(name, numbers, found, dead, waits)
                if not is_right or max(found.values(), default=0) > 1:
                    self._world.violate(
                        f"{source} {offset}: {rows} rows, {dead} dead letters and {waits} parked "
                        f"in {name}, not {' or '.join(map(str, sorted(wanted)))}: {message}"
                    )
                    return

    # Stops and the drain

    def look_at_stops(self, driver: DriverProcess) -> None:
        """A partition may stop only for a reason that the world really caused."""
        loop = driver.connector_run.loop
        for source, state in loop.states.items() if loop is not None else ():
            if state.stopped is None or source in self._world.excused:
                continue
            if source in self._world.cut_logs and "leader epoch" in str(state.stopped):
                # It was recorded, but not committed yet, when the log was cut.
                self._world.excused[source] = "log cut"
            elif state.record.in_doubt and any(why in str(state.stopped) for why in _UNPROBABLE):
                # No driver can tell what is missing, now or later: it must never be repeated.
                self._world.faults.note("range that only a person resolves")
                self._world.excused[source] = "no lineage"
            elif self._is_lost(str(state.stopped), source):
                self._world.excused[source] = "stored block lost"
            elif self._is_of_another_engine(str(state.stopped), state.record, source):
                # An engine made the rows that are there, and another one makes others.
                self._world.excused[source] = "rows of another engine"
            else:
                self._world.violate(f"{source} stopped without a cause: {state.stopped}")

    def _is_lost(self, why: str, source: TopicPartition) -> bool:
        """Whether a server has lost rows of a block that was sealed."""
        return self._staging is not None and _LOST in why and source in self._staging.lost

    def _is_of_another_engine(self, why: str, record: Record, source: TopicPartition) -> bool:
        """Whether a partition stopped since decoders make other rows of a message: one of them
        none, or, where a block is sealed, others."""
        places = self._world.broker.log(source).places[record.begin : record.end]
        messages = [each.value for each, _ in places if each is not None and each.value is not None]
        verdicts = [[judge(each, decoder, True).value for decoder in (0, 1)] for each in messages]
        if _OTHER_BLOCK in why:
            return any(one != other for one, other in verdicts)
        return OTHER_ROWS in why and any(
            (one is None) != (other is None) for one, other in verdicts
        )

    def is_drained(self) -> bool:
        """Whether everything is settled, and nobody is left who could still do something."""
        world = self._world
        if world.tasks_running or world.inserts_running or self.what_is_left():
            return False
        return all(p.paused_until <= world.now for p in world.scheduler.processes())

    def what_is_left(self) -> list[str]:
        """Partitions that are not settled up to their last stable offset."""
        world = self._world
        left = []
        for source in world.sources():
            record = world.recorded(source)
            end = world.broker.log(source).stable_end
            settled = record is not None and not record.in_doubt and record.begin >= end
            if not settled and source not in world.excused:
                left.append(f"{source} at {record} of {end}")
        return left

    def final(self) -> None:
        """After the drain: every offset of every partition, every dead letter."""
        world = self._world
        if world.violations:
            return
        self._check_texts(0)
        judge_history(world)
        for source in world.sources():
            if source not in world.excused:
                end = world.broker.log(source).stable_end
                self._check_rows(source, 0, end, self._dead_letters, self._parked)
        sources = set(world.sources())
        for table in world.clickhouse.tables():
            name = table.shape.name
            for source, offset in table.rows:
                # With the ledger, what was known of late inserts is gone.
                if (
                    max(table.shown(source, offset).values()) > 1
                    and world.excused.get(source) != "ledger lost"
                ):
                    self._world.violate(f"{source} {offset} is doubled in {name}")
                elif source not in sources or (
                    source not in world.excused and offset >= world.broker.log(source).stable_end
                ):
                    self._world.violate(f"{source} {offset} in {name} is foreign")
            for view in table.views:
                self._compare_view(table, view)
        self._claim_rules.check_lost(self._parked)
        for (source, offset, name), count in self._dead_letters.items():
            if count > 1 and source not in world.excused:
                self._world.violate(f"{source} {offset} has {count} dead letters of {name}")

    def _compare_view(self, table: Table, view: Table) -> None:
        """What a view writes is what its table has, each row once."""
        excused = self._world.excused
        for place in sorted(table.rows.keys() | view.rows.keys()):
            rows, behind = table.rows.get(place, Counter()), view.rows.get(place, Counter())
            if place[0] not in excused and +rows != +behind:
                self._world.violate(
                    f"{place[0]} {place[1]}: {dict(rows)} in {table.shape.name}, and "
                    f"{dict(behind)} in {view.shape.name}"
                )
                return


def _written(transaction: Transaction, *topics: str) -> Counter[Place]:
    """Where the messages are from that a transaction writes to topics of dead letters."""
    return Counter(
        _origin(dict(stored.headers)) for name, stored in transaction.messages if name in topics
    )


def _origin(headers: dict[str, bytes | None]) -> Place:
    def text(name: str) -> str:
        return (headers[f"sluice.{name}"] or b"").decode()

    return TopicPartition(text("topic"), int(text("partition"))), int(text("offset")), text("table")
