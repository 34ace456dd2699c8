"""Steps 4 and 5 of a round: the committed offsets are compared, then one transaction is written."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sluice.core.errors import ForeignHandsError
from sluice.core.lease import has_expired
from sluice.core.ledger import Commit, LedgerEntry, checkpoint_entries, record_entry, spec_entry
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record, may_follow, may_hand_over
from sluice.driver.changes import SchemaChanges
from sluice.driver.counters import Counters
from sluice.driver.effects import Effect, LetGo, StopPartition
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.ports import LoopParts
from sluice.driver.record_updates import RecordUpdate, bounded
from sluice.driver.report_handler import backoff_ms
from sluice.driver.start import Started
from sluice.driver.state import Holds, PartitionState
from sluice.kafka.errors import PASSING

#: A start reads about as much of the ledger as is written meanwhile.
CHECKPOINT_EVERY_MS = 600_000


class Checkpoints:
    """When a loop's next checkpoint is due, and what it says: the ledger says again, every few
    minutes, what a start needs. Else a start would read back to the last record of the partition
    that was idle longest, to where a load spec was first written, and for a partition that never
    had a record to the very beginning.

    Who writes one has just seen that the group still holds its record of each partition in it (R5):
    partitions of another driver, which had to leave some to this one, are not this one's to speak
    of. What it repeats is what was committed: a partition's state may be ahead of that.

    :param states: all partitions of the loop, as they are later too.
    :param recorded: all partitions that have a record in the ledger; None: nobody knows.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        recorded: frozenset[TopicPartition] | None,
    ) -> None:
        self._states = states
        self._recorded = recorded
        self._last: dict[TopicPartition, LedgerEntry] = {}
        self._written_at_ms: int | None = None
        self._offered_at_ms: int | None = None
        self.took_over(states.values(), recorded)

    def took_over(
        self, states: Iterable[PartitionState], recorded: frozenset[TopicPartition] | None
    ) -> None:
        """These partitions were just taken over. Those that stopped have no record of this loop."""
        self._recorded = recorded
        for state in states:
            if state.stopped is None:
                entry = record_entry(state.source, state.record, state.background)
                self._last[state.source] = entry

    def is_due(self, now_ms: int) -> bool:
        """Whether the next transaction has a checkpoint."""
        before_ms = self._written_at_ms
        return before_ms is None or not before_ms <= now_ms < before_ms + CHECKPOINT_EVERY_MS

    def due(self, now_ms: int, specs: LoadSpecs) -> tuple[LedgerEntry, ...]:
        """Entries for the transaction that is about to be written; none if it is not time."""
        self._offered_at_ms = None
        if not self.is_due(now_ms):
            return ()
        self._offered_at_ms = now_ms
        # Of a partition that stopped the ledger may say something else, from other hands.
        last = [
            self._last[source]
            for source, state in self._states.items()
            if state.stopped is None and source in self._last
        ]
        named = {state.record.spec for state in self._states.values()}
        others = None
        if self._recorded is not None:
            others = self._recorded.difference(entry.source for entry in last if entry.source)
        return (
            *(spec_entry(digest, text) for digest, text in specs.texts(named).items()),
            *checkpoint_entries(last, others),
        )

    def committed(self, entries: Iterable[LedgerEntry]) -> None:
        """The transaction with these entries, and with those that `due` gave, is committed."""
        for entry in entries:
            if entry.source is not None and entry.body["type"] == "record":
                self._last[entry.source] = entry
        if self._offered_at_ms is not None:
            self._written_at_ms = self._offered_at_ms


_logger = logging.getLogger("sluice.loop")


class RoundRecorder:
    """Records what the rounds of one loop have planned, and takes it over into the states.

    :param name: of the connector.
    :param states: all partitions of the loop, as they are later too.
    :param apply: does what follows for a partition, at once.
    :param changed: called with each state that a new record is of.
    :param batch: number of the last batch that is committed.
    :param recorded: all partitions that have a record in the ledger; None: nobody knows.
    """

    def __init__(
        self,
        name: str,
        parts: LoopParts,
        states: Mapping[TopicPartition, PartitionState],
        holds: Holds,
        specs: LoadSpecs,
        schema: SchemaChanges,
        counters: Counters,
        apply: Callable[[Iterable[Effect]], None],
        changed: Callable[[PartitionState], None],
        batch: int,
        recorded: frozenset[TopicPartition] | None,
    ) -> None:
        self.batch = batch
        #: Transactions in a row that could not be written.
        self.failures = 0
        #: Before this nothing is recorded.
        self.again_at_ms = 0
        self.checkpoints = Checkpoints(states, recorded)
        self._name = name
        self._log, self._tracing = parts.log, parts.tracing
        self._size = parts.transaction_size
        self._is_shared = parts.fleet is not None
        self._now_ms = parts.now_ms
        self._states = states
        self._holds = holds
        self._specs, self._schema = specs, schema
        self._counters = counters
        self._apply = apply
        self._changed = changed

    def took_over(self, started: Started) -> None:
        """The loop has more partitions now, whose last records are known."""
        self.batch = max(self.batch, started.batch)
        self.checkpoints.took_over(started.states, started.recorded)

    def record(self, updates: list[RecordUpdate], now_ms: int) -> list[PartitionState]:
        """Commit the updates; gives the partitions that are to be loaded now."""
        initialised = self._log.initialised
        try:
            updates = self._unchanged(bounded(updates, self._size.bytes_max), now_ms)
            # What a member planned before its id was initialised again is planned anew (R24).
            is_planned_anew = self._is_shared and self._log.initialised != initialised
            if not updates or is_planned_anew:
                return []
            records = {update.source: update.numbered(self.batch + 1) for update in updates}
            expected = {source: self._states[source].record for source in records}
            for source, record in records.items():
                assert may_follow(expected[source], record), (expected[source], record)
                goes = record.owner == self._states[source].hands_to
                assert not goes or may_hand_over(expected[source], record), record
            named = {record.spec for record in records.values()}
            commit = Commit(
                records,
                (
                    *self.checkpoints.due(now_ms, self._specs),
                    *self._specs.entries(named),
                    *_entries(updates, records),
                ),
                tuple(letter for update in updates for letter in update.dead_letters),
            )
            began_ms = self._now_ms()
            self._log.record(commit, expected)
        except ForeignHandsError as error:
            _logger.warning("connector %s: %s", self._name, error)
            return []
        except PASSING as error:
            self.failures += 1
            delay = backoff_ms(self.failures)
            self.again_at_ms = now_ms + delay
            cannot = "connector %s cannot record (next in %.1f s): %s"
            _logger.warning(cannot, self._name, delay / 1000, error)
            return []
        self.batch += 1
        ended_ms = self._now_ms()
        self._counters.transactions.add((ended_ms - began_ms) / 1000)
        if self._tracing is not None:
            self._tracing.committed(self._name, self._states, records, began_ms, ended_ms)
        self.checkpoints.committed(commit.entries)
        self._specs.recorded(named)
        self.failures = 0
        self._counters.batches += 1
        committed = [self._committed(update, records[update.source]) for update in updates]
        return [state for state in committed if state is not None]

    def _unchanged(self, updates: list[RecordUpdate], now_ms: int) -> list[RecordUpdate]:
        """Updates of partitions whose committed offset is still ours; the others stop. A checkpoint
        speaks of all partitions, so all are looked at before one.

        :raises OwnerChangedError: another driver has one of them.
        """
        expected = {update.source: self._states[update.source].record for update in updates}
        if updates and self.checkpoints.is_due(now_ms):
            expected = {s: state.record for s, state in self._states.items() if not state.stopped}
        different = self._log.differences(expected)
        self._apply(StopPartition(s, ForeignHandsError(how)) for s, how in different.items())
        return [update for update in updates if update.source not in different]

    def _committed(self, update: RecordUpdate, record: Record) -> PartitionState | None:
        """Take a committed update over into the partition's state."""
        state = self._states[update.source]
        now_ms = self._now_ms()
        if state.loaded is not None:
            self._counters.settled(state.loaded)
            if not state.record.rest:
                tables = self._schema.spec_of(state).tables_of(state.source.topic)
                self._counters.account([table.entry for table in tables], state.loaded)
            _logger.debug("%s is settled: %d rows", state.block_range, state.loaded.rows)
            self._holds.end(state, now_ms)
            if not has_expired(state.late_insert_until_ms, now_ms):
                self._holds.late_inserts.append(state.late_insert)
                state.held_until_ms = max(state.held_until_ms, state.late_insert_until_ms)
            state.late_insert_until_ms = 0
            state.settled_at_ms = now_ms
        if state.hands_to and record.owner == state.hands_to:
            # Whatever is remembered of it is wrong as soon as its new owner records.
            self._apply([LetGo(state.source)])
            _logger.info("%s is handed over to %s at %d", state.source, record.owner, record.begin)
            return None
        state.recorded(record, update.background, now_ms)
        self._changed(state)
        if state.retiring and not state.record.in_doubt:
            self._apply([LetGo(state.source)])
            is_settled = "%s is not configured any more; it is settled at %d and let go"
            _logger.info(is_settled, state.source, state.settled)
        return state if update.dispatch else None


def _entries(
    updates: Sequence[RecordUpdate], records: Mapping[TopicPartition, Record]
) -> Iterator[LedgerEntry]:
    """Of each partition what is settled, then the record that goes on behind it."""
    for update in updates:
        yield from update.entries
        yield record_entry(update.source, records[update.source], update.background)
