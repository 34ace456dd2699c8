"""What a person has frozen: what a loop may not do for it (R23).

A partition that is frozen gets no new range, and of a range in doubt nothing is sent, looked for or
decided. What is out comes back, and what is loaded is settled.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sluice.core.decided import Frozen, Standing, holding
from sluice.driver.changes import SchemaChanges
from sluice.driver.effects import Effect
from sluice.driver.record_updates import RecordPlanner, RecordUpdate, refresh
from sluice.driver.schema_decision import Wait
from sluice.driver.state import PartitionState, Probed

_logger = logging.getLogger("sluice.loop")


class Freezing:
    """What is frozen in one loop. Read by other threads, too.

    :param standing: what is frozen at its start.
    :param planner: knows today's table entries of each topic; `schema` those of a range in doubt.
    :param is_read: somebody reads the tables: what is resumed waits for a look at them, since a
        person may have changed them, and what was read meanwhile may have been half of it.
    """

    def __init__(
        self, standing: Standing, planner: RecordPlanner, schema: SchemaChanges, *, is_read: bool
    ) -> None:
        self.standing = standing
        self._planner, self._schema = planner, schema
        self._is_read = is_read
        self._resumed: dict[Frozen, int] = {}
        for each in standing:
            _logger.warning("%s", each.line())

    def take(self, standing: Standing, now_ms: int) -> bool:
        """A person has frozen or resumed something; gives whether the tables have to be read."""
        for each in standing:
            if each not in self.standing:
                _logger.warning("%s. What is out is settled, then it stands still", each.line())
        subjects = {each.subject for each in standing}
        for each in self.standing:
            if each.subject not in subjects:
                _logger.warning("%s is resumed", each.subject)
                if self._is_read:
                    self._resumed[each] = now_ms
        self.standing = standing
        return bool(self._resumed)

    def saw_tables(self, started_ms: int) -> bool:
        """The tables were read; gives whether something goes on now."""
        before = len(self._resumed)
        self._resumed = {each: at for each, at in self._resumed.items() if at > started_ms}
        return len(self._resumed) < before

    def clock_went_back(self, now_ms: int) -> None:
        """What was resumed counts as resumed now at the latest."""
        self._resumed = {each: min(at, now_ms) for each, at in self._resumed.items()}

    @property
    def is_any(self) -> bool:
        """Whether anything is held."""
        return bool(self.standing or self._resumed)

    def of(self, state: PartitionState) -> Standing:
        """What keeps a partition from being given a range, and its range from being sent."""
        return self.hold(self._entries(state)) if self.is_any else ()

    def _entries(self, state: PartitionState) -> tuple[str, ...]:
        """Where its messages go, today and by the record of its range."""
        recorded = self._schema.spec_of(state).tables_of(state.source.topic)
        today = self._planner.group_of(state.source.topic).entries
        return (*today, *(table.entry for table in recorded))

    def asks(self, members: list[PartitionState], now_ms: int) -> list[Effect]:
        """What a range that is held may ask for. What is resumed waits for a look at the tables,
        which cannot be had while some shards have a column and others do not have it yet; and only
        the range that needs the column asks for it.
        """
        if holding(self.standing, self._entries(members[0])):
            return []
        decisions = [(state, self._schema.decide(state, now_ms)) for state in members]
        return [
            effect
            for state, decision in decisions
            if isinstance(decision, Wait) and decision.columns
            for effect in self._schema.asks(state, decision, now_ms)
        ]

    def hold(self, entries: Iterable[str]) -> Standing:
        """What keeps partitions from going on whose messages go to these table entries."""
        if not self.is_any:
            return ()
        return holding((*self.standing, *self._resumed), entries)


def stand_still(members: list[PartitionState]) -> list[RecordUpdate]:
    """Nothing is done of a range in doubt, or of a bundle. What a probe has found is looked for
    anew later: a person may be at the tables."""
    for state in members:
        if isinstance(state.stage, Probed):
            state.probe()
    return [refresh(state) for state in members if state.is_unrecorded]
