"""A look at a loop's topics now and then: gone, created again, larger, held back, new.

A take-over reads the ledger, as far back as somebody may still insert; for partitions that a loop
does not have yet it is read in a thread beside the loop, which loads the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.ranges import EPOCH_UNKNOWN, EpochOffset, TopicPartition
from sluice.core.topics import is_other_topic
from sluice.driver.beginning import StartRefusedError
from sluice.driver.effects import Effect, LetGo, StopPartition
from sluice.driver.ports import ConfigurationRead, FindCuts, SourceOffsets, Topics
from sluice.driver.report_handler import backoff_ms
from sluice.driver.start import ReadAhead, Started
from sluice.driver.state import PartitionState
from sluice.driver.stopped import PartitionStoppedError, begin_lost, cut_below
from sluice.kafka.errors import PASSING, recreated
from sluice.kafka.log import Cuts, TopicMissingError
from sluice.spark.jobs import Inbox

_logger = logging.getLogger("sluice.loop")

LOOK_EVERY_MS = 30_000
#: A last stable offset below what is recorded, for so long, is a truncated log.
SHORT_LOG_MS = 10_000
#: For so long others of a bundle wait for a partition whose log no leader tells of.
UNSEEN_MS = 60_000

_Ends = dict[TopicPartition, EpochOffset]


class _NewLeaders:
    """Asks whether logs whose leader has changed were cut. The loop stands still while one does not
    answer, so that it is asked ever more seldom."""

    def __init__(self, find_cuts: FindCuts) -> None:
        self._find_cuts = find_cuts
        #: Of those that told nothing: how often in a row, when they are asked again, and why.
        self._silent: dict[TopicPartition, tuple[int, int, str]] = {}

    def clock_went_back(self) -> None:
        """Ask all of them again."""
        self._silent.clear()

    def waiting(self, now_ms: int) -> dict[TopicPartition, str]:
        """Those that are not asked again yet, and why."""
        return {s: why for s, (_, again_at_ms, why) in self._silent.items() if now_ms < again_at_ms}

    def ask(self, points: Mapping[TopicPartition, EpochOffset], now_ms: int) -> Cuts:
        """Those that tell nothing wait from now on.

        :raises TransientError: it cannot be told of any.
        """
        cuts = self._find_cuts(points) if points else Cuts()
        if cuts.unknown:
            _logger.warning("%s; its new leader is not believed before that is known", cuts)
        tries = {source: self._silent.pop(source, (0, 0, ""))[0] + 1 for source in points}
        for source, why in cuts.unknown.items():
            self._silent[source] = tries[source], now_ms + backoff_ms(tries[source]), why
        return cuts


class _RefusedTopics:
    """Topics that are to be loaded and cannot be. Each is told of once."""

    def __init__(self) -> None:
        #: Why. Replaced, and never changed: other threads read it.
        self.now: Mapping[str, SluiceError] = {}

    def refuse(self, refused: Mapping[str, SluiceError]) -> None:
        """These cannot."""
        for topic in sorted(refused.keys() - self.now.keys()):
            error = refused[topic]
            _logger.error("topic %s is not loaded: %s. Try: %s", topic, error, error.hint)
        self.now = {**self.now, **refused}

    def become(self, refused: Mapping[str, SluiceError]) -> None:
        """These cannot, and no others."""
        self.keep(refused)
        self.refuse(refused)

    def keep(self, topics: Collection[str]) -> None:
        """The others are loaded, or nobody wants them any more."""
        self.now = {topic: error for topic, error in self.now.items() if topic in topics}


class TopicObserver:
    """Observes the topics of one connector. What follows is given one by one, since a look may end
    on an error after some of it was seen.

    :param connector: its name.
    :param states: the loop's own mapping; partitions may join it later.
    :param ask: asks for what a take-over of partitions that the loop does not have needs; `take_in`
        gets it. None: others of its fleet have them.
    :param changed: called with each state that was told a new end.
    :param found: finds topics that an expression takes; None: all topics have names.
    :param find_cuts: looks after logs whose leader has changed.
    """

    def __init__(
        self,
        connector: str,
        states: Mapping[TopicPartition, PartitionState],
        offsets: SourceOffsets,
        ask: Callable[[list[TopicPartition]], None] | None,
        changed: Callable[[PartitionState], None],
        found: Topics | None,
        find_cuts: FindCuts,
        now_ms: int,
    ) -> None:
        self._connector, self._states = connector, states
        self._offsets, self._ask = offsets, ask
        #: Whether a topic is loaded, as was applied last.
        self._reads: Callable[[str], bool] = lambda topic: True
        #: Asked for, and not there yet.
        self._asked = set[TopicPartition]()
        self._changed, self._found = changed, found
        self._leaders = _NewLeaders(find_cuts)
        self.refused = _RefusedTopics()
        self._looked_at_ms, self._is_wanted = now_ms, False
        #: Ends of which everything is taken in.
        self._known: Mapping[TopicPartition, EpochOffset] = {}
        #: Whether Kafka answered when it was last asked for last stable offsets.
        self.is_answered = True

    def configured(self, read: ConfigurationRead) -> Iterator[Effect]:
        """What is loaded was applied anew: topics that are not are settled and let go."""
        self._reads = read.reads
        for state in list(self._states.values()):
            state.retiring = not read.reads(state.source.topic)
        yield from _let_go(list(self._states.values()))
        self._asked.clear()  # of topics that are not loaded any more, perhaps
        self.refused.keep(())
        read.taken()
        self.request()

    def request(self) -> None:
        """Look soon; called from any thread."""
        self._is_wanted = True

    def joined(self, states: list[PartitionState]) -> Iterator[Effect]:
        """These have joined the loop: they may be told of already, or not configured any more."""
        self._known = {}
        for state in states:
            state.retiring = state.retiring or not self._reads(state.source.topic)
        yield from _let_go(states)

    def clock_went_back(self, now_ms: int) -> None:
        """Do not wait until the clock has caught up."""
        self._looked_at_ms = now_ms
        self._leaders.clock_went_back()
        for state in self._states.values():
            state.short_since_ms = None

    def see_ends(self, sources: list[TopicPartition], now_ms: int) -> Iterator[Effect]:
        """Take fresh last stable offsets in.

        :raises TransientError: no partition answers.
        """
        try:
            told = self._offsets.epoch_ends(sources, partial=True)
            states, known = self._states, self._known
            ends = (
                {}
                if told is known
                # An end that did not move is often the same object.
                else {
                    source: end
                    for source, end in told.items()
                    if known.get(source) is not end and not states[source].knows(end)
                }
            )
            moved = list(ends)
            yield from self._drop_unverified(ends, now_ms)
        except PASSING:
            self.is_answered = False
            raise
        self.is_answered = True
        for source, end in ends.items():
            states[source].is_unseen, states[source].unverified = False, ""
            states[source].see_end(end, now_ms)
            self._changed(states[source])
            yield from self._notice_short_log(states[source], end.offset, now_ms)
        asked = [states[source] for source in moved]
        if not any(s.short_since_ms is not None or s.is_unseen or s.unverified for s in asked):
            self._known = told

    def _drop_unverified(self, ends: _Ends, now_ms: int) -> Iterator[Effect]:
        """Of partitions that go on. Where the leader has changed, its log must hold what was
        recorded, before a word of it is believed: an end beyond the record's may be that of a log
        that was cut and filled again. Where that cannot be told the partition waits alone.

        :raises TransientError: it cannot be told of any.
        """
        _drop(ends, self._leaders.waiting(now_ms), self._states, now_ms)
        yield from self._see_begins(ends)
        points: dict[TopicPartition, EpochOffset] = {}
        for source, end in list(ends.items()):
            state = self._states[source]
            if EPOCH_UNKNOWN in (state.epoch, end.epoch) or end.epoch == state.epoch:
                continue
            if end.epoch < state.epoch:
                del ends[source]  # of a former leader, which does not know yet
            else:
                points[source] = EpochOffset(state.record.end, state.epoch)
        cuts = self._leaders.ask(points, now_ms)
        _drop(ends, cuts.unknown, self._states, now_ms)
        for source, where in cuts.found.items():
            state = self._states[source]
            del ends[source]
            cut = cut_below(source, state.record.log_end, where, self._connector)
            yield StopPartition(source, cut)

    def _see_begins(self, ends: _Ends) -> Iterator[Effect]:
        """Of those that a leader tells of for the first time since they were taken over, the log
        must hold what is to be loaded next."""
        unseen = [source for source in ends if self._states[source].is_unseen]
        if not unseen:
            return
        begins: Mapping[TopicPartition, int] = {}
        with suppress(*PASSING):  # their leaders are gone again
            begins = self._offsets.begins(unseen, partial=True)
        for source in unseen:
            state = self._states[source]
            position = state.record.begin
            if source not in begins:
                del ends[source]
            elif begins[source] > position:
                at = begins[source], ends.pop(source).offset, position
                yield StopPartition(source, begin_lost(source, *at, self._connector))

    def _notice_short_log(self, state: PartitionState, end: int, now_ms: int) -> Iterator[Effect]:
        """A log that ends before what is recorded was truncated, or is another topic's."""
        if end >= state.record.end:
            state.short_since_ms = None
        elif state.short_since_ms is None:
            state.short_since_ms = now_ms
            self.request()  # another topic id?
        elif now_ms - state.short_since_ms >= SHORT_LOG_MS:
            yield StopPartition(
                state.source,
                PartitionStoppedError(
                    f"{state.source}: the log ends at {end}, but offsets up to "
                    f"{state.record.end} are recorded; the log was truncated",
                    "Restore the log, or `sluice adopt` decides where to go on.",
                ),
            )

    def look(self, now_ms: int) -> Iterator[Effect]:
        """If it is time: topics that are gone, created again, larger or new, tasks that do not
        come back, and last stable offsets that a foreign open transaction holds back (H20).

        A topic of which every partition has stopped is looked at too: a new one may go on.

        :raises TransientError: Kafka does not answer.
        """
        if not self._is_wanted and now_ms - self._looked_at_ms < LOOK_EVERY_MS:
            return
        self._is_wanted, self._looked_at_ms = False, now_ms
        new = self._new_topics()
        yield from self._look_at_topics(new)
        new = [source for source in new if source not in self._asked]
        if new and self._ask is not None:
            self._asked.update(new)
            self._ask(new)
        for state in self._states.values():
            if state.is_unseen and now_ms - state.committed_at_ms > UNSEEN_MS:
                state.alone = True  # the others of its bundle do not wait for its leader
            if state.out and has_expired(state.record.deadline_ms, now_ms):
                _logger.warning(
                    "%s: its task has not come back, and its lease ended %d s ago; does Spark "
                    "have executors?",
                    state.block_range,
                    (now_ms - state.record.deadline_ms) // 1000,
                )
        going = [source for source, state in self._states.items() if state.stopped is None]
        for source, end in self._offsets.log_ends(going, partial=True).items():
            state = self._states[source]
            if end > state.stable_end == state.held_back_at:
                _logger.warning(
                    "%s: the last stable offset stands at %d for %d s although the log ends at %d; "
                    "an open transaction of a producer holds it back",
                    source,
                    state.stable_end,
                    LOOK_EVERY_MS // 1000,
                    end,
                )
            state.held_back_at = state.stable_end
        _see_stopped(self._states, self._offsets, now_ms)

    def _look_at_topics(self, new: list[TopicPartition]) -> Iterator[Effect]:
        """All of them by one request: a thousand, one after the other, held a round for seconds.

        :param new: gets the partitions that the loop does not have.
        """
        of_topic: dict[str, list[PartitionState]] = {}
        for state in self._states.values():
            of_topic.setdefault(state.source.topic, []).append(state)
        described = self._offsets.topics(of_topic, partial=True)
        for topic, states in sorted(of_topic.items()):
            if topic in described:
                identity, count = described[topic]
                yield from self._look_at(topic, states, identity)
                new += self._new_of(topic, states, count)
            else:
                yield from self._gone(topic, states)

    def _look_at(self, topic: str, states: list[PartitionState], identity: str) -> Iterator[Effect]:
        for state in states:
            if is_other_topic(state.record.topic_id, identity):
                yield from _stop_going(state, recreated(state.source, identity))

    def _new_of(self, topic: str, states: list[PartitionState], count: int) -> list[TopicPartition]:
        if any(state.retiring for state in states):
            return []  # its other partitions are settled, and not this pipeline's any more
        known = {state.source.partition for state in states}
        return [TopicPartition(topic, number) for number in range(count) if number not in known]

    def _new_topics(self) -> list[TopicPartition]:
        """Partitions of topics that are to be loaded, and of which the loop has none."""
        if self._found is None:
            return []
        if self._ask is None:
            self.refused.become(self._found.left_out)
            return []
        known = {source.topic for source in self._states}
        topics, refused = self._found.find(known)
        described = self._offsets.topics(topics, partial=True)
        missing = [topic for topic in topics if topic not in described]
        refused |= {topic: TopicMissingError(f"topic {topic} does not exist") for topic in missing}
        self.refused.keep({*known, *described, *refused})
        self.refused.refuse(refused)
        return [TopicPartition(t, n) for t, (_, count) in described.items() for n in range(count)]

    def take_in(
        self, sources: list[TopicPartition], take_over: Callable[[list[TopicPartition]], None]
    ) -> None:
        """What was asked for is there.

        :param take_over: lets them join the loop; called with all at once, and topic by topic where
            one of them cannot begin where `start` says.
        """
        asked = [source for source in sources if source in self._asked]
        self._asked.difference_update(asked)
        try:
            if asked:
                self._take_in(asked, take_over)
        except PASSING as error:
            _logger.warning("new partitions cannot be taken over yet: %s", error)

    def _take_in(
        self, sources: list[TopicPartition], take_over: Callable[[list[TopicPartition]], None]
    ) -> None:
        topics = sorted({source.topic for source in sources})
        new = set(topics).difference(source.topic for source in self._states)
        try:
            take_over(sources)
        except (TopicMissingError, StartRefusedError) as error:
            if len(topics) == 1:
                self.refused.refuse({topics[0]: error})
                return
            for topic in topics:
                self._take_in([source for source in sources if source.topic == topic], take_over)
            return
        self.refused.keep(self.refused.now.keys() - set(topics))
        new &= {source.topic for source in self._states}
        if new:
            _logger.warning("new topics are loaded from now on: %s", ", ".join(sorted(new)))

    def _gone(self, topic: str, states: list[PartitionState]) -> Iterator[Effect]:
        """A topic that nobody named may go, once what was begun is settled."""
        error = TopicMissingError(f"topic {topic} does not exist")
        is_named = self._found is None or self._found.is_named(topic)
        for state in states:
            if is_named or state.record.in_doubt or state.stopped is not None:
                yield from _stop_going(state, error)
            else:
                yield LetGo(state.source)
                _logger.warning(
                    "%s: its topic is gone; it is settled at %d and let go%s",
                    state.source,
                    state.settled,
                    f"; what it held up to {state.stable_end} was deleted before it was read"
                    if state.stable_end > state.settled
                    else "",
                )


def _drop(
    ends: _Ends,
    whys: Mapping[TopicPartition, str],
    states: Mapping[TopicPartition, PartitionState],
    now_ms: int,
) -> None:
    """Ends that are not believed, and why."""
    for source in whys.keys() & ends.keys():
        states[source].not_verified(whys[source], ends.pop(source).offset, now_ms)


def _let_go(states: Iterable[PartitionState]) -> Iterator[Effect]:
    """What is not configured any more goes once it is settled."""
    for state in states:
        if state.retiring and not (state.record.in_doubt or state.out):
            yield LetGo(state.source)
            is_settled = "%s is not configured any more; it is settled at %d and let go"
            _logger.info(is_settled, state.source, state.settled)


def _see_stopped(
    states: Mapping[TopicPartition, PartitionState], offsets: SourceOffsets, now_ms: int
) -> None:
    """What comes to partitions that stopped is told, so that their lag is; nothing follows."""
    stopped = [source for source, state in states.items() if state.stopped is not None]
    with suppress(SluiceError):  # their topic may be gone
        told = offsets.stable_ends(stopped, partial=True) if stopped else {}
        for source, end in told.items():
            states[source].see_end(EpochOffset(end, EPOCH_UNKNOWN), now_ms)


def _stop_going(state: PartitionState, error: SluiceError) -> Iterator[Effect]:
    if state.stopped is None:
        yield StopPartition(state.source, error)


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
