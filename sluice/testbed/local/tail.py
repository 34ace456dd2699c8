"""Following a pipeline from outside: its ledger, as it is committed.

Watching costs the pipeline nothing, and sees what is committed and nothing else.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from sluice.core.errors import TerminalError, TransientError
from sluice.core.ledger import entries_in
from sluice.core.ranges import TopicPartition
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.tail import Tail

_POLL_SECONDS = 0.05
#: Until a broker knows a topic that was made a moment ago.
_KNOWN_SECONDS = 15.0

Entry = dict[str, Any]


class LedgerTail:
    """All entries of a ledger from its beginning on, in order.

    :param topic: the ledger; it must exist.
    """

    def __init__(self, access: KafkaAccess, topic: str) -> None:
        self.settled: list[Entry] = []
        self.receipts: list[Entry] = []
        self.records: list[Entry] = []
        #: Settled position of each partition.
        self.positions: dict[TopicPartition, int] = {}
        self._tail = _tail_of(access, topic)

    def close(self) -> None:
        """Stop following."""
        self._tail.close()

    def poll(self) -> None:
        """Take in what was committed meanwhile; waits a moment if there is nothing."""
        for message in self._tail.poll(_POLL_SECONDS):
            for entry in entries_in(json.loads(message.value or b"{}")):
                self._take(entry)

    def wait(
        self,
        done: Callable[[], bool],
        check: Callable[[], None],
        timeout_seconds: float,
        progress: Callable[[int], None] = lambda settled: None,
    ) -> None:
        """Follow until `done`.

        :param check: raises if waiting has become useless.
        :param progress: called with the sum of all settled positions.
        :raises TerminalError: nothing was committed for `timeout_seconds`.
        """
        moved_at, seen = time.monotonic(), -1
        while not done():
            self.poll()
            check()
            progress(sum(self.positions.values()))
            if len(self.records) > seen:
                moved_at, seen = time.monotonic(), len(self.records)
            elif time.monotonic() - moved_at > timeout_seconds:
                raise TerminalError(
                    f"the pipeline committed nothing for {timeout_seconds:.0f} s",
                    "Read the driver's log.",
                )

    def _take(self, entry: Entry) -> None:
        match entry["type"]:
            case "settled":
                self.settled.append(entry)
                self.positions[source_of(entry)] = entry["end"]
            case "receipt":
                self.receipts.append(entry)
            case "record":
                self.records.append(entry)


def source_of(entry: Entry) -> TopicPartition:
    """Whose entry it is: of a receipt, a record or a settled range."""
    return TopicPartition(entry["topic"], entry["partition"])


def _tail_of(access: KafkaAccess, topic: str) -> Tail:
    until = time.monotonic() + _KNOWN_SECONDS
    while True:
        try:
            return Tail(access, topic, fetch_wait_max_ms=50)
        except TransientError:
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_SECONDS)
