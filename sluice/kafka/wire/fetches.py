"""The batches of many ranges: one request for as many partitions of a leader as fit.

Ranges are taken one after the other, and fetched in this order. What came of later ranges is held
until it is their turn. Each leader has one request under way, so one answer is on its way while
another is parsed, and several leaders work side by side.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from ctypes import CDLL, byref, c_int64
from dataclasses import dataclass, field
from operator import attrgetter

from sluice.core.errors import TransientError
from sluice.core.ranges import TopicPartition
from sluice.kafka.quotas import Slowed
from sluice.kafka.reader import Wanted
from sluice.kafka.wire import messages
from sluice.kafka.wire.cluster import Cluster
from sluice.kafka.wire.connection import Connection
from sluice.kafka.wire.messages import BrokenAnswerError, Cursor, Fetched, Leader
from sluice.kafka.wire.native import address_of

#: What one fetch brings at most; a larger batch comes whole. 2 and 4 MiB cost as much.
FETCH_BYTES = 1024 * 1024
#: Answers that are held, and asked for, together. Only the range whose turn it is may exceed it.
HELD_BYTES_MAX = 8 * FETCH_BYTES
#: How long a broker may wait for messages that are not there yet.
FETCH_WAIT_MS = 500
#: What is asked for at least where an answer brought nothing.
_AGAIN_BYTES_MIN = 16 * 1024


class Sizes:
    """What the batches of each partition took before."""

    def __init__(self) -> None:
        self._known: dict[TopicPartition, tuple[float, int]] = {}
        #: Of a partition that nothing is known of: as the last one was.
        self._last: tuple[float, int] = (FETCH_BYTES, FETCH_BYTES)

    def learn(self, source: TopicPartition, size: int, offsets: int, largest: int) -> None:
        """So many bytes for so many offsets, and the largest batch."""
        self._known[source] = self._last = size / offsets, largest

    def estimate(self, source: TopicPartition, offsets: int) -> int:
        """Not much more than so many offsets take: the first and the last batch may reach beyond
        them."""
        each, largest = self._known.get(source, self._last)
        return int(min(FETCH_BYTES, each * offsets * 1.1 + largest))


@dataclass(slots=True, eq=False)
class _Answer:
    """An answer that is held until the last part of it is taken."""

    data: memoryview
    address: int
    parts: int = 0


@dataclass(slots=True, eq=False)
class Part:
    """What one answer brought of one range.

    :param begin: the offset that was asked for.
    :param following: where its whole batches end; `begin` if it has none.
    :param error: of Kafka, instead of batches.
    """

    begin: int
    following: int
    fetched: Fetched
    answer: _Answer

    @property
    def batches(self) -> memoryview:
        """All bytes of them, the last batch perhaps cut."""
        begin = self.fetched.records
        return self.answer.data[begin : begin + self.fetched.records_bytes]

    @property
    def address(self) -> int:
        """Where the batches are in memory."""
        return self.answer.address + self.fetched.records


@dataclass(slots=True, eq=False)
class _Fetching:
    """How far one range is fetched.

    :param epoch: that the leader has to be of at least: a broker that was cut off takes itself for
        the leader that it was, and has what others do not have any more.
    :param queue: of its leader; None: nothing is to be asked, or it is not known whom.
    :param least_bytes: what is asked for at least; more each time that nothing comes.
    """

    number: int
    source: TopicPartition
    following: int
    end: int
    epoch: int
    queue: _BrokerQueue | None = None
    is_asked: bool = False
    asked_bytes: int = 0
    least_bytes: int = 0
    error: int = 0
    parts: deque[Part] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class _BrokerQueue:
    """One leader, the ranges that it is to be asked for in their order, and those it was asked."""

    connection: Connection
    waiting: deque[_Fetching] = field(default_factory=deque)
    asked: dict[tuple[str, int], _Fetching] = field(default_factory=dict)
    asked_bytes: int = 0


class Fetches:
    """The fetches of one call. Where something fails (OSError, SluiceError), the caller says where
    to start over, or closes it."""

    def __init__(
        self,
        library: CDLL,
        cluster: Cluster,
        sizes: Sizes,
        slowed: Slowed,
        wanted: Sequence[Wanted],
    ) -> None:
        self._library = library
        self._slowed = slowed
        self._cluster = cluster
        self._sizes = sizes
        ranges = [one.block_range for one in wanted]
        self._all = [
            _Fetching(number, r.source, r.begin, r.end, one.epoch)
            for number, (r, one) in enumerate(zip(ranges, wanted, strict=True))
        ]
        self._queues: dict[int, _BrokerQueue] = {}
        self._held_bytes = 0
        self._largest = c_int64()

    def next_part(self, number: int) -> Part | int:
        """What comes next of a range, all ranges before which are done; an error of Kafka, or 0 if
        nothing came yet."""
        first = self._all[number]
        if not first.parts:
            self._bring(first)
        if not first.parts:
            return first.error
        part = first.parts.popleft()
        self._release(part.answer)
        return part

    def start_over(self, number: int, position: int) -> None:
        """Something of this range failed: ask again who leads, over new connections, and fetch
        from the position on. Of later ranges, what has come is held."""
        first = self._all[number]
        while first.parts:
            self._release(first.parts.popleft().answer)
        first.following = position
        self._cluster.drop(first.source)
        self.close()

    def close(self) -> None:
        """Wait for no answer any more."""
        for broker in tuple(self._queues):
            self._leave(broker)

    def _bring(self, first: _Fetching) -> None:
        """One answer about the range, and the next request under way."""
        first.error = 0
        if first.queue is None:
            self._queue(first)
        queue = first.queue
        assert queue is not None
        if queue.asked and not first.is_asked:
            self._receive(queue)
        if not queue.asked:
            # What was sent before would not be read, and its answer be missed.
            time.sleep(max(0.0, queue.connection.slowed_until - time.monotonic()))
            self._ask(queue, first)
        for broker, other in tuple(self._queues.items()):
            if not other.asked:
                try:
                    self._ask(other, first)
                except OSError:  # its ranges are not wanted yet; who leads is asked in their turn
                    self._leave(broker)
        self._receive(queue)
        self._ask(queue, first)

    def _queue(self, first: _Fetching) -> None:
        """Find out whom to ask for the range and for all later ones. Those of which it is not
        known wait until it is their turn."""
        found = [f for f in self._all[first.number :] if f.queue is None and f.following < f.end]
        self._cluster.find_leaders(fetching.source for fetching in found)
        unreachable: set[int] = set()
        for fetching in found:
            leader = self._cluster.leader_of(fetching.source)
            if fetching is first:
                leader = self._cluster.leader(fetching.source)
                self._queue_of(leader)
            if leader is None or leader.broker in unreachable:
                continue
            try:
                queue = self._queue_of(leader)
            except (OSError, TransientError):
                unreachable.add(leader.broker)
                continue
            fetching.queue, fetching.epoch = queue, max(leader.epoch, fetching.epoch)
            queue.waiting.append(fetching)
        for queue in self._queues.values():
            queue.waiting = deque(sorted(queue.waiting, key=attrgetter("number")))

    def _queue_of(self, leader: Leader) -> _BrokerQueue:
        if leader.broker not in self._queues:
            self._queues[leader.broker] = _BrokerQueue(self._cluster.connection(leader))
        return self._queues[leader.broker]

    def _leave(self, broker: int) -> None:
        queue = self._queues.pop(broker)
        if queue.connection.is_waiting:
            queue.connection.close()
        for fetching in (*queue.asked.values(), *queue.waiting):
            fetching.queue, fetching.is_asked = None, False

    def _ask(self, queue: _BrokerQueue, first: _Fetching) -> None:
        """Ask for as many ranges as fit; for the one whose turn it is always. A broker whose quota
        is used up is asked later."""
        if time.monotonic() < queue.connection.slowed_until:
            return
        under_way = sum(other.asked_bytes for other in self._queues.values())
        left = min(FETCH_BYTES, HELD_BYTES_MAX - self._held_bytes - under_way)
        asked: list[messages.Asked] = []
        while queue.waiting:
            fetching = queue.waiting[0]
            source, offset = fetching.source, fetching.following
            size = self._sizes.estimate(source, fetching.end - offset)
            size = min(FETCH_BYTES, max(size, fetching.least_bytes))
            if size > left and (asked or fetching is not first or first.parts):
                break
            left -= size
            queue.asked_bytes += size
            queue.asked[source.topic, source.partition] = queue.waiting.popleft()
            fetching.is_asked, fetching.asked_bytes = True, size
            asked.append((source, fetching.epoch, offset, size))
        if asked:
            body = messages.fetch_body(asked, queue.asked_bytes, FETCH_WAIT_MS)
            queue.connection.send(messages.FETCH, body)

    def _receive(self, queue: _BrokerQueue) -> None:
        """Take an answer; what is not complete is asked for again, before what follows it."""
        data = queue.connection.receive()
        slowed_ms, error, found = messages.read_fetched(Cursor(data))
        if slowed_ms > 0:
            connection = queue.connection
            connection.slowed_until = self._slowed.take(connection.name, slowed_ms / 1000)
        unasked = [where for *where, _ in found if tuple(where) not in queue.asked]
        if unasked:
            raise BrokenAnswerError(f"an answer is about {unasked[0]}, which was not asked for")
        asked, queue.asked, queue.asked_bytes = queue.asked, {}, 0
        answer = _Answer(data, address_of(data))
        for topic, partition, fetched in found:
            self._take(asked[topic, partition], fetched, answer)
        if answer.parts:
            self._held_bytes += len(data)
        again: list[_Fetching] = []
        for fetching in asked.values():
            fetching.is_asked = False
            fetching.error = fetching.error or error
            if fetching.following >= fetching.end or fetching.error:
                fetching.queue = None
            else:
                again.append(fetching)
        if again:
            ordered = sorted((*again, *queue.waiting), key=attrgetter("number"))
            queue.waiting = deque(ordered)

    def _take(self, fetching: _Fetching, fetched: Fetched, answer: _Answer) -> None:
        fetching.error = fetched.error
        begin = fetching.following
        if not fetched.records_bytes or fetched.error:
            fetching.least_bytes = max(_AGAIN_BYTES_MIN, 4 * fetching.asked_bytes)
            return
        part = Part(begin, begin, fetched, answer)
        size, largest = fetched.records_bytes, self._largest
        end = self._library.sluice_batches_end(part.address, size, begin, byref(largest))
        if end > begin:
            self._sizes.learn(fetching.source, size, end - begin, largest.value)
            fetching.following = part.following = end
            fetching.least_bytes = 0
        answer.parts += 1
        fetching.parts.append(part)

    def _release(self, answer: _Answer) -> None:
        answer.parts -= 1
        if not answer.parts:
            self._held_bytes -= len(answer.data)
