"""What a loop gives to the other drivers of its fleet, and when it looks for what is to be its own
(R25)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

from sluice.core.fleet.placement import Homes
from sluice.core.fleet.view import View, what_changed
from sluice.core.ranges import TopicPartition
from sluice.core.records import Record
from sluice.driver.effects import Effect, LetGo
from sluice.driver.freezing import Freezing
from sluice.driver.inheriting import SharesRead
from sluice.driver.ports import LoopParts
from sluice.driver.state import Holds, PartitionState

_logger = logging.getLogger("sluice.loop")

#: How often all partitions are looked at: what came, and who is silent. For a while after members
#: came, went or changed, partitions come, and stand until they are found.
LOOK_EVERY_MS, LOOK_SOON_MS = 2_000, 500
SOON_FOR_MS = 20_000
#: Who could not take in for so long what others hand to it hands over nothing: what fails there
#: fails in other members, too, and there the partitions would stand still.
BLIND_MS = 10_000
#: What came stays for so long, and is loaded: for some seconds after members come and go each sees
#: others, and a partition would go from one to the other and back.
KEPT_MS = 6_000


class Sharing:
    """Of one loop; it does nothing where there is no fleet.

    :param name: of the connector.
    :param states: the loop's own mapping; partitions join it and leave it.
    :param file: called with each state that is to be handed over from now on, or is not any more.
    """

    def __init__(
        self,
        name: str,
        parts: LoopParts,
        states: Mapping[TopicPartition, PartitionState],
        freezing: Freezing,
        file: Callable[[PartitionState], None],
    ) -> None:
        self._name = name
        self._fleet, self._shares = parts.fleet, parts.shares
        self._log, self._initialised = parts.log, parts.log.initialised
        self._states, self._freezing, self._file = states, freezing, file
        self._answer = parts.inbox.put
        self._view: View | None = None
        self._homes: Homes | None = None
        #: Why partitions are to go, as far as anything has changed.
        self._why = ""
        self._sources: Collection[TopicPartition] = ()
        #: When each partition came, and the time of the last round.
        self._came: dict[TopicPartition, int] = {}
        self._now_ms = 0
        self._changed_at_ms = 0
        self._looked_at_ms: int | None = None
        self._is_looking = False
        #: Since when looks could take nothing in, and whether that was so for long when the last
        #: one ended: who leaves looks no more.
        self._blind_since_ms: int | None = None
        self._is_blind = False

    def leave(self, now_ms: int, is_settled: bool) -> bool:
        """Mark all for those who go on; gives whether nothing is left to settle or hand over, and
        no look may bring anything."""
        if self._fleet is None or self._shares is None:
            return is_settled
        self._came.clear()
        self._why = "this member leaves"
        self._mark(Homes(self._fleet.view(), self._sources, is_leaving=True), now_ms)
        return (
            is_settled
            and not self._is_looking
            and not any(state.hands_to for state in self._states.values())
        )

    def step(self, holds: Holds, rows: int, now_ms: int, batch: int, *, stopping: bool) -> None:
        """Once a round: say how this driver does, mark what is to go, and look at all partitions
        if it is time."""
        if self._fleet is not None:
            if self._log.initialised != self._initialised:
                self._initialised = self._log.initialised
                self._fleet.begin_again()
            self._fleet.see(self._states, holds, rows, now_ms)
        if self._fleet is None or self._shares is None or stopping:
            return
        self._now_ms = now_ms
        view = self._fleet.view()
        why = what_changed(self._view, view)
        has_changed = bool(why) or self._homes is None
        if has_changed:
            self._why = why or self._why
            self._homes, self._changed_at_ms = Homes(view, self._sources), now_ms
        is_due = self._is_due(now_ms)
        if not (has_changed or is_due):
            return
        self._view = view
        if self._homes is not None and self._sources:
            self._mark(self._homes, now_ms)
        # Who may have been taken for dead takes nothing in.
        if is_due and not self._is_looking and self._fleet.is_fresh:
            self._looked_at_ms, self._is_looking = now_ms, True
            self._shares.look(self._held(), view, batch, self._answer)

    def _is_due(self, now_ms: int) -> bool:
        at_ms = self._looked_at_ms
        is_soon = now_ms - self._changed_at_ms < SOON_FOR_MS
        every_ms = LOOK_SOON_MS if is_soon else LOOK_EVERY_MS
        return at_ms is None or not 0 <= now_ms - at_ms < every_ms

    def looked(self, read: SharesRead) -> Iterator[Effect]:
        """What the last look found is about to be taken in; gives what is let go before."""
        if read.error is not None:
            raise read.error
        self._is_looking = False
        since_ms = self._blind_since_ms
        since_ms = None if read.could_adopt else since_ms or self._now_ms
        self._blind_since_ms = since_ms
        self._is_blind = since_ms is not None and self._now_ms - since_ms >= BLIND_MS
        for source in read.gone:
            yield LetGo(source)

    def took(self, read: SharesRead) -> None:
        """What the look found is taken in."""
        if self._fleet is not None:
            self._fleet.took(read)
        came = {state.source: self._now_ms for each in read.started for state in each.states}
        self._came = {s: at for s, at in (self._came | came).items() if s in self._states}
        if read.sources and read.sources != self._sources:
            self._why = "topics or partitions have come or gone" if self._sources else self._why
            self._sources, self._homes = read.sources, None

    def _mark(self, homes: Homes, now_ms: int) -> None:
        going: Counter[str] = Counter()
        may_go = homes.are_elsewhere and not self._is_blind
        for state in self._states.values():
            to = homes.of(state.source) if may_go else ""
            if to and (to == state.record.owner or self._stays(state, now_ms)):
                to = ""
            if state.hands_to != to:
                going[to] += 1
                state.hands_to = to
                self._file(state)
        del going[""]
        if going:
            to_whom = ", ".join(f"{count} to {owner}" for owner, count in sorted(going.items()))
            told = "connector %s: partitions go to other members once they are settled (%s): %s"
            _logger.info(told, self._name, to_whom, self._why)

    def _stays(self, state: PartitionState, now_ms: int) -> bool:
        """What stands still would stand still elsewhere, too; what came just now is loaded first;
        and of what may still be inserted, though it is settled, only this owner knows."""
        is_for_good = state.stopped is not None or state.retiring
        if is_for_good or 0 <= now_ms - self._came.get(state.source, -KEPT_MS) < KEPT_MS:
            return True
        return state.is_held(now_ms) or bool(self._freezing.of(state))

    def _held(self) -> dict[TopicPartition, Record | None]:
        return {
            source: state.record
            if state.stopped and not (state.out or state.is_looked_for)
            else None
            for source, state in self._states.items()
        }
