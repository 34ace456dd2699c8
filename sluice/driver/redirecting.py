"""What a person decides about partitions of a loop that runs: where they go on, or what became of a
range in doubt.

The loop records it itself, between two rounds and as the owner that it is, so nobody is fenced for
it: who is not the owner any more finds that out before. Then it takes these partitions over anew,
as a start does: by what is recorded, and by nothing that it knew of them before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field

from sluice.core.errors import (
    InDoubtError,
    OwnerChangedError,
    SluiceError,
    TerminalError,
    TransientError,
)
from sluice.core.ranges import TopicPartition
from sluice.driver.effects import Effect, StopPartition
from sluice.driver.ports import IntentLog
from sluice.driver.start import Started
from sluice.driver.state import Answered, PartitionState
from sluice.driver.stopped import PartitionStoppedError
from sluice.spark.jobs import Inbox

_logger = logging.getLogger("sluice.loop")

#: Within this a loop comes to what a person decided about its partitions, or does not do it.
DECIDED_SECONDS_MAX = 30.0
#: What ends the loop, too: another driver has the partitions, or the driver is to stop and does not
#: know what it has recorded, which a later look would take for a foreign commit.
_ENDING = (OwnerChangedError, InDoubtError)


class PartitionBusyError(TerminalError):
    """Something of a partition is under way: nobody may decide about it now."""

    hint = (
        "Freeze its table entry or its connector, wait until what is out has come back and is "
        "settled, or until its lease is over, decide, and resume. Nothing was done."
    )


@dataclass(frozen=True, slots=True)
class PartitionsDecided:
    """A person has decided about these partitions.

    :param record: commits what was decided; called from the loop's thread. Raises where nothing
        was committed.
    :param done: gets its result once the loop goes on with what was decided.
    """

    sources: tuple[TopicPartition, ...]
    record: Callable[[], None]
    done: Future[None] = field(default_factory=Future)


def decide(inbox: Inbox, event: PartitionsDecided) -> None:
    """Have a loop carry this out, by its inbox; called from any thread. It waits until the loop
    goes on from there.

    :raises PartitionBusyError: something of the partitions is under way; nothing was done.
    :raises SluiceError: it was not recorded, or the loop could not go on from there.
    """
    inbox.put(event)
    try:
        event.done.result(DECIDED_SECONDS_MAX)
    except TimeoutError:
        if event.done.cancel():
            silent = f"the loop made no round for {DECIDED_SECONDS_MAX:.0f} s"
            raise TransientError(f"{silent}; nothing was done") from None
        event.done.result()


class Redirecting:
    """Carries out what is decided about partitions of one loop.

    :param states: the loop's own mapping; `owner`: its id.
    :param take_over: takes partitions over; `join` lets them take part in the loop.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        log: IntentLog,
        owner: str,
        take_over: Callable[[list[TopicPartition]], Started],
        join: Callable[[Started], None],
        apply: Callable[[Iterable[Effect]], None],
    ) -> None:
        self._states, self._log, self._owner = states, log, owner
        self._take_over, self._join = take_over, join
        self._apply = apply

    def take(self, event: PartitionsDecided) -> None:
        """Carry it out, or say in `done` why not.

        :raises OwnerChangedError: another driver has these partitions.
        :raises InDoubtError: nobody knows what is recorded, and the driver is to stop.
        """
        if not event.done.set_running_or_notify_cancel():
            return  # who asked has gone
        try:
            self._refuse_busy(event.sources)
            self.see_owner(event.sources)
            event.record()
            self._go_on(event.sources)
        except BaseException as error:  # who asked waits for an end, also where it is a bug
            event.done.set_exception(error)
            if isinstance(error, _ENDING) or not isinstance(error, SluiceError):
                raise
        else:
            event.done.set_result(None)

    def see_owner(self, sources: Collection[TopicPartition] = ()) -> None:
        """Look whether all that goes on is this owner's still, before anything is taken over (R5).

        :param sources: these, too, though they have stopped.
        :raises OwnerChangedError: a successor has it; to take partitions over would fence it.
        """
        own = {
            source: state.record
            for source, state in self._states.items()
            if state.stopped is None or (source in sources and state.record.owner == self._owner)
        }
        self._log.differences(own)

    def _refuse_busy(self, sources: Iterable[TopicPartition]) -> None:
        reasons = [why for source in sources if (why := self._why_busy(source))]
        if reasons:
            raise PartitionBusyError("; ".join(reasons))

    def _why_busy(self, source: TopicPartition) -> str:
        state = self._states.get(source)
        if state is None or state.retiring or state.hands_to:
            return f"{source} is not this driver's to decide about"
        if state.out:
            return f"a task of {state.block_range} may still insert"
        if isinstance(state.stage, Answered):
            return f"{state.block_range} is about to be settled, or to be sent again"
        if state.is_looked_for:
            return f"{state.block_range} is being looked for in its tables"
        return ""

    def _go_on(self, sources: tuple[TopicPartition, ...]) -> None:
        """What was decided is committed."""
        try:
            self._join(self._take_over(list(sources)))
        except _ENDING:
            raise
        except SluiceError as error:
            stopped = PartitionStoppedError(
                f"it is recorded what a person decided, but the partition could not be taken over "
                f"after that: {error}",
                "Start the driver again; it goes on from what was decided.",
            )
            self._apply(StopPartition(source, stopped) for source in sources)
            raise stopped from None
        for source in sources:
            _logger.warning(
                "%s goes on as a person decided: %d", source, self._states[source].settled
            )
