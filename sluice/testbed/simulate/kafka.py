"""A broker in memory: logs with transactions, a consumer group, fencing by epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.core.ranges import TopicPartition
from sluice.core.records import InvalidRecordError, Record, decode

Headers = list[tuple[str, bytes | None]]
#: Offset and metadata as the group holds them.
Offset = tuple[int, str | None]


def record_of(offset: Offset | None) -> Record | None:
    """A committed offset's record; None if it is none of ours."""
    try:
        return None if offset is None else decode(*offset)
    except InvalidRecordError:
        return None


@dataclass(slots=True, eq=False)
class Transaction:
    """One transaction. `state`: open, committing, committed, aborted."""

    identity: str
    epoch: int
    state: str = "open"
    offsets: dict[TopicPartition, Offset] = field(default_factory=dict)
    logs: list[Log] = field(default_factory=list)
    messages: list[tuple[str, Stored]] = field(default_factory=list)
    initialised_at: int = 0
    begun_at: int = 0
    #: The owner id of who writes it, under whatever id.
    writer: str = ""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a log. `number` tells equal contents apart."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    number: int = 0
    timestamp_ms: int = 0


#: A place in a log: a message or None (control record, hole), and its transaction.
Place = tuple[Stored | None, Transaction | None]


class Log:
    """One partition of a topic."""

    def __init__(self) -> None:
        self.begin = 0
        self.places: list[Place] = []
        self.opened: dict[Transaction, int] = {}
        #: Leader epochs that this log knows, each with its first offset.
        self.epochs: list[tuple[int, int]] = [(0, 0)]
        #: What a former leader still says, and until when: it does not know yet.
        self.former: tuple[int, int, int] = (0, 0, 0)

    @property
    def epoch(self) -> int:
        """Of the present leader."""
        return self.epochs[-1][0]

    def elect(self, cut_at: int | None, former_until_ms: int) -> None:
        """Another leader; an unclean one lacks everything from an offset on."""
        epoch = self.epoch + 1
        self.former = (self.epoch, self.stable_end, former_until_ms)
        if cut_at is not None:
            self.truncate(cut_at)
        kept = [(number, first) for number, first in self.epochs if first < self.end]
        self.epochs = [*(kept or [(0, 0)]), (epoch, self.end)]

    def epoch_end(self, epoch: int) -> int:
        """Where an epoch ended, as OffsetForLeaderEpoch says it."""
        return next((first for number, first in self.epochs if number > epoch), self.end)

    @property
    def end(self) -> int:
        """The offset after the last place."""
        return len(self.places)

    @property
    def stable_end(self) -> int:
        """The first offset of the oldest open transaction, or the end."""
        return min(self.opened.values(), default=len(self.places))

    def append(self, message: Stored | None, transaction: Transaction | None = None) -> None:
        """A message, or None for an offset that holds none."""
        if transaction is not None and transaction not in self.opened:
            self.opened[transaction] = len(self.places)
            transaction.logs.append(self)
        self.places.append((message, transaction))

    def mark(self, transaction: Transaction) -> None:
        """The control record that ends a transaction here."""
        if self.opened.pop(transaction, None) is not None:
            self.places.append((None, None))

    def truncate(self, end: int) -> None:
        """Lose everything from an offset on."""
        del self.places[end:]
        self.opened = {t: first for t, first in self.opened.items() if first < end}

    def read(self, position: int, count: int, stop: int) -> tuple[list[tuple[int, Stored]], int]:
        """Committed messages from a position on, and the position after them."""
        found: list[tuple[int, Stored]] = []
        end = min(stop, self.stable_end)
        while position < end and len(found) < count:
            message, transaction = self.places[position]
            if message is not None and (transaction is None or transaction.state != "aborted"):
                found.append((position, message))
            position += 1
        return found, position


class Broker:
    """Topics, one consumer group, one transaction coordinator.

    :param at: schedules an action after so many milliseconds.
    :param delay_ms: draws how long a marker takes to arrive.
    """

    def __init__(
        self, at: Callable[[int, Callable[[], None]], None], delay_ms: Callable[[], int]
    ) -> None:
        self.topics: dict[str, list[Log]] = {}
        self.ids: dict[str, str] = {}
        self.group: dict[TopicPartition, Offset] = {}
        self.pending: dict[TopicPartition, Transaction] = {}
        self.epochs: dict[str, int] = {}
        self.transactions: dict[str, Transaction] = {}
        #: How many transactions of an id are decided, and not yet carried out.
        self._deciding: Counter[str] = Counter()
        self.unreachable_until = 0
        self.timed_out: Callable[[Transaction], None] = lambda transaction: None
        #: Called when a transaction is decided, before anything of it is visible.
        self.decided: Callable[[Transaction], None] = lambda transaction: None
        #: Called before the offsets of a committed transaction replace those before.
        self.committing: Callable[[Transaction], None] = lambda transaction: None
        self._at = at
        self._delay_ms = delay_ms

    def log(self, source: TopicPartition) -> Log:
        """The log of a partition."""
        return self.topics[source.topic][source.partition]

    # The coordinator

    def initialise(self, identity: str) -> int | None:
        """Raise the epoch of a transactional id and abort what it had open.

        :returns: the new epoch; None while a commit is being carried out: ask again.
        """
        # Also one before the last that was begun: the coordinator hears of that one afterwards.
        if self._deciding[identity]:
            return None
        transaction = self.transactions.get(identity)
        self.epochs[identity] = self.epochs.get(identity, -1) + 1
        if transaction is not None:
            self._abort(transaction)
        return self.epochs[identity]

    def begin(self, identity: str, epoch: int, timeout_ms: int) -> Transaction:
        """A transaction; the coordinator ends it after its time-out.

        A fenced producer's is dead at once; the coordinator never hears of it.
        """
        transaction = Transaction(identity, epoch)
        if self.is_fenced(identity, epoch):
            transaction.state = "aborted"
            return transaction
        self.transactions[identity] = transaction
        self._at(timeout_ms, lambda: self._time_out(transaction))
        return transaction

    def is_fenced(self, identity: str, epoch: int) -> bool:
        """Whether somebody initialised this id later."""
        return self.epochs.get(identity) != epoch

    def add_offsets(self, transaction: Transaction, offsets: dict[TopicPartition, Offset]) -> None:
        """Offsets that become true with the transaction."""
        transaction.offsets.update(offsets)
        self.pending.update(dict.fromkeys(offsets, transaction))

    def commit(self, transaction: Transaction) -> bool:
        """Decide to commit; offsets and messages become visible as the markers arrive.

        :returns: whether it is or was committed.
        """
        if transaction.state != "open":
            return transaction.state in ("committing", "committed")
        transaction.state = "committing"
        self._deciding[transaction.identity] += 1
        self.decided(transaction)
        logs = list(transaction.logs)
        # The markers of offsets and of messages travel separately.
        self._at(self._delay_ms(), lambda: self._apply(transaction))
        self._at(self._delay_ms(), lambda: _mark(logs, transaction))
        return True

    def abort(self, transaction: Transaction) -> None:
        """Abort it unless it is decided."""
        if transaction.state == "open":
            self._abort(transaction)

    def _abort(self, transaction: Transaction) -> None:
        if transaction.state != "open":
            return
        transaction.state = "aborted"
        for log in transaction.logs:
            log.mark(transaction)
        self._forget(transaction)

    def _apply(self, transaction: Transaction) -> None:
        self.committing(transaction)
        self.group.update(transaction.offsets)
        self._forget(transaction)
        transaction.state = "committed"
        self._deciding[transaction.identity] -= 1

    def _forget(self, transaction: Transaction) -> None:
        for source in transaction.offsets:
            if self.pending.get(source) is transaction:
                del self.pending[source]

    def _time_out(self, transaction: Transaction) -> None:
        if transaction.state == "open":
            self.epochs[transaction.identity] += 1
            self._abort(transaction)
            self.timed_out(transaction)


def _mark(logs: list[Log], transaction: Transaction) -> None:
    for log in logs:
        log.mark(transaction)
