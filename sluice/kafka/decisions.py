"""The topic of decisions: what persons decided for drivers that run.

Each decision stands in the ledger, among everything else that happened, and by the same
transaction in a topic of its own, which is short: who starts reads all of it, and who runs follows
it, without reading the ledger.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Sequence

from sluice.core.decided import Decided
from sluice.core.ledger import Commit, LedgerEntry
from sluice.kafka.clients import KafkaAccess, make_admin, make_producer
from sluice.kafka.errors import KafkaTerminalError
from sluice.kafka.tail import LogMessage, Tail, log_ends
from sluice.kafka.topics import ensure_own_topics
from sluice.kafka.transactions import Content, RecorderNames, initialise, transact

_TRANSACTION_MS = 30_000
#: A broker answers a fetch of a topic without news after so long: this topic rarely has any.
_FETCH_WAIT_MS = 10_000


class NoDecisionError(KafkaTerminalError):
    """The topic holds what is no decision, to this version."""

    # Kafka deletes only from the front: with the message everything before it would go.
    hint = (
        "If a newer version of Sluice wrote it, start that one. Otherwise stop all drivers, find "
        "the other producer, and decide again in another topic ([decisions] topic) what stands by "
        "`sluice ledger`: freezes and versions, before any driver starts, which else loads what is "
        "frozen, and by its file (docs/RUNBOOK.md)."
    )


class DecisionReader:
    """Follows the decisions of one connector. Not thread-safe.

    :param decided: what is known already. Only a decision takes it away: where the topic lost
        messages, what was frozen stays so.
    :raises SluiceError: the topic cannot be read.
    """

    def __init__(self, access: KafkaAccess, topic: str, decided: Decided | None = None) -> None:
        self.decided = decided or Decided()
        self._connector = access.connector
        _, self._end = log_ends(access, topic, is_stable=False)
        self._tail = Tail(access, topic, fetch_wait_max_ms=_FETCH_WAIT_MS)

    def read_all(self) -> Decided:
        """Read all that was written when this reader was made. A decision that is committed may
        stand behind a transaction of somebody else, and be marked as committed a little later: what
        is open by then is waited for.

        The end is not asked for again: by now the broker may hold a fetch of this connection open
        for the longest wait, and it answers in order.

        :raises StalledError: of what is below the end nothing comes.
        :raises SluiceError: it cannot be read.
        """
        while self._tail.position < self._end:
            for message in self._tail.poll(0.5, self._end):
                self._take(message)
        return self.decided

    def poll(self, timeout_seconds: float) -> bool:
        """Read what has come; whether it has changed what is decided."""
        before = self.decided
        for message in self._tail.poll(timeout_seconds, gathers=False):
            self._take(message)
        return self.decided != before

    def close(self) -> None:
        """Close the consumer."""
        self._tail.close()

    def _take(self, message: LogMessage) -> None:
        try:
            entry = json.loads(message.value or b"")
            if entry["connector"] == self._connector:
                self.decided = self.decided.after(entry)
        except (ValueError, TypeError, KeyError) as error:
            raise NoDecisionError(
                f"topic {self._tail.topic} holds a message at offset {message.offset} that is no "
                f"decision: {error}"
            ) from None


def write_decisions(
    access: KafkaAccess,
    group: str,
    ledger_topic: str,
    decisions_topic: str,
    entries: Sequence[LedgerEntry],
    now_ms: int,
) -> None:
    """Write decisions into the ledger and into their own topic, all of them or none.

    :param group: of the connector: with it begin the transactional ids of all who record.
    :raises TransientError: nothing was written.
    :raises UnknownCommitError: nobody knows whether it was.
    """
    ensure_own_topics(make_admin(access), (ledger_topic, decisions_topic))
    names = RecorderNames(
        group=group,
        ledger_topic=ledger_topic,
        dead_letter_topic="",
        owner="",
        decisions_topic=decisions_topic,
    )
    identity = f"{group}.decision-{uuid.uuid4().hex[:10]}"
    producer = make_producer(access, identity, _TRANSACTION_MS, ledger_topic)
    failure = initialise(producer)
    if failure is not None:
        raise failure
    content = Content(access.connector, names, now_ms, Commit({}, tuple(entries)))
    transact(producer, content, None, threading.Event())
