"""What a person has frozen: what a loop may not do for it, and the thread that hears of it (R23).

A partition that is frozen gets no new range, and of a range in doubt nothing is sent, looked for or
decided. What is out comes back, and what is loaded is settled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from sluice.core.errors import SluiceError
from sluice.core.freezes import Frozen, Standing, holding
from sluice.driver.changes import SchemaChanges
from sluice.driver.ports import FreezesRead
from sluice.driver.record_updates import RecordPlanner, RecordUpdate, refresh
from sluice.driver.state import PartitionState, Probed
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.decisions import DecisionReader

_logger = logging.getLogger("sluice.loop")

POLL_SECONDS = 1.0
RETRY_SECONDS = 5.0


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
        if not self.is_any:
            return ()
        recorded = self._schema.spec_of(state).tables_of(state.source.topic)
        today = self._planner.group_of(state.source.topic).entries
        return self.hold((*today, *(table.entry for table in recorded)))

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


class FreezeWatch:
    """Follows the decisions of one connector in a thread of its own.

    :param changed: takes what is frozen, from that thread, whenever it has changed.
    """

    def __init__(
        self, access: KafkaAccess, topic: str, changed: Callable[[FreezesRead], None]
    ) -> None:
        self._access, self._topic, self._changed = access, topic, changed
        self._reader: DecisionReader | None = None
        self._standing: Standing = ()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decisions", daemon=True)

    def start(self) -> Standing:
        """Begin; gives what is frozen by now.

        :raises SluiceError: it cannot be read; nobody may go on without knowing.
        """
        self._reader = DecisionReader(self._access, self._topic)
        try:
            self._standing = self._reader.read_all()
        except BaseException:
            self._close()
            raise
        self._thread.start()
        return self._standing

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                if self._reader is None:
                    self._reader = DecisionReader(self._access, self._topic, self._standing)
                if self._reader.poll(POLL_SECONDS):
                    self._standing = self._reader.standing
                    self._changed(FreezesRead(self._standing))
            except SluiceError as error:
                _logger.warning("decisions cannot be read: %s. Try: %s", error, error.hint)
                self._close()
                self._ended.wait(RETRY_SECONDS)
        self._close()

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
