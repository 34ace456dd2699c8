"""Partitions that a loop does not have yet. A take-over reads the ledger, as far back as somebody
may still insert; for these it is read in a thread beside the loop, which loads the others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from sluice.core.ranges import TopicPartition
from sluice.driver.start import ReadAhead, Started
from sluice.spark.jobs import Inbox

_TakeOver = Callable[[list[TopicPartition], ReadAhead], Started]


@dataclass(frozen=True, slots=True)
class NewPartitionsRead:
    """What a take-over of these partitions needs of the ledger was read.

    :param take_over: takes over all of them, or some; called from the loop's thread. Raises what
        the reading ended on, too.
    """

    sources: list[TopicPartition]
    take_over: Callable[[list[TopicPartition]], Started]


class NewPartitions:
    """Reads for one loop.

    :param read: reads the ledger; see `sluice.driver.start.read_ahead`.
    :param take_over: takes partitions over with what was read.
    """

    def __init__(
        self,
        read: Callable[[list[TopicPartition]], ReadAhead],
        take_over: _TakeOver,
        inbox: Inbox,
    ) -> None:
        self._read, self._take_over, self._inbox = read, take_over, inbox
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="new-partitions")

    def ask(self, sources: list[TopicPartition]) -> None:
        """Read for these; a `NewPartitionsRead` tells."""
        self._pool.submit(self._run, sources)

    def close(self) -> None:
        """End without waiting."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, sources: list[TopicPartition]) -> None:
        ahead = Future[ReadAhead]()
        try:
            ahead.set_result(self._read(sources))
        except Exception as error:
            ahead.set_exception(error)

        def take_over(some: list[TopicPartition]) -> Started:
            return self._take_over(some, ahead.result())

        self._inbox.put(NewPartitionsRead(sources, take_over))
