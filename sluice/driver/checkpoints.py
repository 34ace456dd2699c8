"""What keeps a start short: the ledger says again, every few minutes, what a start needs.

Without it a start would read back to the last record of the partition that was idle longest, to
where a load spec was first written, and for a partition that never had a record to the very
beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.core.ledger import LedgerEntry, checkpoint_entries, record_entry, spec_entry
from sluice.core.ranges import TopicPartition
from sluice.driver.state import PartitionState

#: A start reads about as much of the ledger as is written meanwhile.
EVERY_MS = 600_000


class Checkpoints:
    """When a loop's next checkpoint is due, and what it says.

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
        return before_ms is None or not before_ms <= now_ms < before_ms + EVERY_MS

    def due(self, now_ms: int, specs: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """Entries for the transaction that is about to be written; none if it is not time.

        :param specs: canonical load specs by digest.
        """
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
            *(spec_entry(digest, specs[digest]) for digest in sorted(named & specs.keys())),
            *checkpoint_entries(last, others),
        )

    def committed(self, entries: Iterable[LedgerEntry]) -> None:
        """The transaction with these entries, and with those that `due` gave, is committed."""
        for entry in entries:
            if entry.source is not None and entry.body["type"] == "record":
                self._last[entry.source] = entry
        if self._offered_at_ms is not None:
            self._written_at_ms = self._offered_at_ms
