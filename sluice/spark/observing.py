"""A look at a lane's topics now and then: gone, created again, larger, held back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from sluice.core.errors import SluiceError
from sluice.core.lease import has_expired
from sluice.core.ranges import TopicPartition
from sluice.kafka.log import TopicMissingError
from sluice.spark.ports import SourceOffsets
from sluice.spark.state import PartitionState
from sluice.spark.stopped import PartitionStoppedError

_logger = logging.getLogger("sluice.lane")


class TopicObserver:
    """Observes the topics of one lane.

    :param states: the lane's own mapping; partitions may join it later.
    :param stop: called for a partition that cannot go on.
    :param appeared: called with partitions that the lane does not know; they join it.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        offsets: SourceOffsets,
        stop: Callable[[PartitionState, SluiceError], None],
        appeared: Callable[[list[TopicPartition]], None],
    ) -> None:
        self._states = states
        self._offsets = offsets
        self._stop = stop
        self._appeared = appeared

    def look(self, now_ms: int, since_seconds: int) -> None:
        """Topics that are gone, created again or larger, tasks that do not come back, and
        stable ends that a foreign open transaction holds back (F).

        A topic of which every partition has stopped is looked at too: a new one may go on.

        :param since_seconds: how long ago the last look was.
        :raises TransientError: Kafka does not answer.
        """
        for topic in sorted({source.topic for source in self._states}):
            self._look_at(topic)
        for state in self._states.values():
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
                    "%s: the stable end stands at %d for %d s although the log ends at %d; "
                    "an open transaction of a producer holds it back",
                    source,
                    state.stable_end,
                    since_seconds,
                    end,
                )
            state.held_back_at = state.stable_end

    def _look_at(self, topic: str) -> None:
        states = [state for source, state in self._states.items() if source.topic == topic]
        try:
            identity, count = self._offsets.topics([topic])[topic]
        except TopicMissingError as error:
            for state in states:
                self._stop_going(state, error)
            return
        for state in states:
            if state.record.topic_id != identity:
                message = (
                    f"{state.source}: the topic was deleted and created again "
                    f"(its id is {identity} now)"
                )
                hint = "`sluice adopt --offset 0` loads the new one from its beginning."
                self._stop_going(state, PartitionStoppedError(message, hint))
        if any(state.retiring for state in states):
            return  # its other partitions are settled, and not this pipeline's any more
        known = {state.source.partition for state in states}
        new = [TopicPartition(topic, number) for number in range(count) if number not in known]
        if new:
            self._appeared(new)

    def _stop_going(self, state: PartitionState, error: SluiceError) -> None:
        if state.stopped is None:
            self._stop(state, error)
