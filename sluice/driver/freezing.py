"""What a person has frozen: what a loop may not do for it (R23).

A partition that is frozen gets no new range, and of a range in doubt nothing is sent, looked for or
decided. What is out comes back, and what is loaded is settled. A replica that is frozen is sent no
blocks; the partitions whose blocks nobody else can take stand still.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.decided import Frozen, Standing, Subject, closed_shards, holding
from sluice.core.load_spec import TableSpec
from sluice.driver.changes import SchemaChanges
from sluice.driver.effects import Effect, ReadTables
from sluice.driver.record_updates import RecordPlanner, RecordUpdate, refresh
from sluice.driver.schema_decision import Wait
from sluice.driver.state import PartitionState, Probed, ToProbe

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
        self._shards: Mapping[str, Sequence[str]] = {}
        #: URLs of the replicas that are sent no blocks.
        self.replicas: frozenset[str] = frozenset()
        #: How often replicas came back: what was known of servers before is looked at anew.
        self.looks = 0
        self._closed: Mapping[str, frozenset[Frozen]] = {}
        self._closed_in_part: Mapping[str, frozenset[Frozen]] = {}
        for each in standing:
            _logger.warning("%s", each.line())

    def take(self, standing: Standing, now_ms: int) -> list[Effect]:
        """A person has frozen or resumed something; gives what follows."""
        for each in standing:
            if each not in self.standing:
                then = "gets no blocks" if each.hosts else "stands still"
                _logger.warning("%s. What is out is settled, then it %s", each.line(), then)
        subjects = {each.subject for each in standing}
        for each in self.standing:
            if each.subject not in subjects:
                _logger.warning("%s is resumed", each.subject)
                if self._is_read:
                    self._resumed[each] = now_ms
        self.standing = standing
        self._find_replicas()
        return [ReadTables()] if self._resumed else []

    def saw_tables(self, started_ms: int, unread: Collection[str] = ()) -> bool:
        """The tables were read; gives whether something goes on now.

        :param unread: in all shards but these, which hold back only what is there.
        """
        before = self._resumed
        self._resumed = {}
        for each, at in before.items():
            over = [each] if at > started_ms else self._unseen(each, unread)
            self._resumed |= dict.fromkeys(over, at)
        self._find_replicas()
        return self._resumed != before

    def _unseen(self, resumed: Frozen, unread: Collection[str]) -> Iterator[Frozen]:
        """What of it waits for another look."""
        if resumed.hosts:
            urls = (url for shard in unread for url in self._shards.get(shard, ()))
            if any(map(resumed.covers, urls)):
                yield resumed
            return
        subject = resumed.subject
        for table in self._planner.spec.tables if unread else ():
            is_meant = subject.what != "table" or subject.name == table.entry
            if is_meant and not {*unread}.isdisjoint(table.shards):
                yield replace(resumed, subject=Subject("table", table.entry))

    def use(self, access: ClickHouseAccess) -> ClickHouseAccess:
        """These are the replicas of each shard from now on; gives how blocks may go there."""
        self._shards = access.shards
        self._find_replicas()
        return replace(access, frozen=self.replicas, looks=self.looks)

    def _find_replicas(self) -> None:
        held = self._held
        self._closed = closed_shards(held, self._shards)
        self._closed_in_part = closed_shards(held, self._shards, in_part=True)
        before = self.replicas
        self.replicas = frozenset(
            url
            for shard, places in self._closed_in_part.items()
            for url in self._shards[shard]
            if any(each.covers(url) for each in places)
        )
        self.looks += bool(before - self.replicas)

    def clock_went_back(self, now_ms: int) -> None:
        """What was resumed counts as resumed now at the latest."""
        self._resumed = {each: min(at, now_ms) for each, at in self._resumed.items()}

    @property
    def is_any(self) -> bool:
        """Whether anything is held."""
        return bool(self.standing or self._resumed)

    @property
    def _held(self) -> Standing:
        return (*self.standing, *self._resumed)

    def of(self, state: PartitionState) -> Standing:
        """What keeps a partition from being given a range, and its range from being sent or looked
        for."""
        if not self.is_any:
            return ()
        closed = self._closed_in_part if isinstance(state.stage, ToProbe) else self._closed
        return what_holds(self._held, self._tables(state), closed)

    def stands(self, state: PartitionState) -> bool:
        """Whether nothing will happen to a partition while it is frozen."""
        is_moving = state.out or state.loaded is not None
        return not is_moving and bool(self.of(state))

    def _tables(self, state: PartitionState) -> tuple[TableSpec, ...]:
        """Where its messages go, today and by the record of its range."""
        topic = state.source.topic
        recorded, today = self._schema.spec_of(state), self._planner.spec
        return (
            *today.tables_of(topic),
            *(recorded.tables_of(topic) if recorded is not today else ()),
        )

    def why(self, url: str) -> str:
        """Why a replica is sent no blocks, in words; "" if it is sent some."""
        return next((self.line(each) for each in self._held if each.covers(url)), "")

    def line(self, held: Frozen) -> str:
        """What it waits for, in words."""
        if held in self.standing:
            return held.line()
        return (
            f"{held.subject} is resumed, and waits until its tables are read again; the log says "
            "what cannot be read"
        )

    def frozen(self, entries: Iterable[str]) -> Standing:
        """What a person keeps frozen of these table entries; what is resumed is not."""
        return tuple(each for each in self.hold(entries) if each in self.standing)

    def asks(self, members: list[PartitionState], now_ms: int) -> list[Effect]:
        """What a range that is held may ask for. What is resumed waits for a look at the tables,
        which cannot be had while some shards have a column and others do not have it yet; and only
        the range that needs the column asks for it.
        """
        closed = closed_shards(self.standing, self._shards)
        if what_holds(self.standing, self._tables(members[0]), closed):
            return []
        decisions = [(state, self._schema.decide(state, now_ms)) for state in members]
        return [
            effect
            for state, decision in decisions
            if isinstance(decision, Wait) and decision.columns
            for effect in self._schema.asks(state, decision, now_ms)
        ]

    def hold(self, entries: Iterable[str], *, is_sought: bool = False) -> Standing:
        """What keeps partitions from going on whose messages go to these table entries.

        :param is_sought: their ranges are to be looked for in all replicas.
        """
        if not self.is_any:
            return ()
        named = set(entries)
        tables = [table for table in self._planner.spec.tables if table.entry in named]
        return what_holds(self._held, tables, self._closed_in_part if is_sought else self._closed)


def what_holds(
    standing: Standing, tables: Iterable[TableSpec], closed: Mapping[str, frozenset[Frozen]]
) -> Standing:
    """What holds who sends blocks to these tables, or looks into them.

    :param closed: of shards that take none, or of which nothing may be looked for, by what.
    """
    entries, places = set[str](), set[Frozen]()
    for table in tables:
        entries.add(table.entry)
        for shard in table.shards if closed else ():
            places |= closed.get(shard, frozenset())
    return holding(standing, entries, places)


def stand_still(members: list[PartitionState]) -> list[RecordUpdate]:
    """Nothing is done of a range in doubt, or of a bundle. What a probe has found is looked for
    anew later: a person may be at the tables."""
    for state in members:
        if isinstance(state.stage, Probed):
            state.probe()
    return [refresh(state) for state in members if state.is_unrecorded]
