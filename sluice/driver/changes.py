"""What a lane does when its tables were altered while it runs (R8).

New ranges are intended under the text of now. A range in doubt is repeated under the text that
its record names, while its blocks still are the same blocks; else it is probed. Where a block
does not fit any more, its topics stop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sluice.clickhouse.comparing import Today, why_not_executable
from sluice.core.budget import Site
from sluice.core.dynamic import answer_to
from sluice.core.errors import SluiceError
from sluice.core.ledger import LedgerEntry, Rest, text_entry
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind
from sluice.core.text import ConfigurationText, TableText
from sluice.driver.growing import Wanted
from sluice.driver.parking import Parking, known_rest
from sluice.driver.ports import SchemaRead
from sluice.driver.state import PartitionState
from sluice.driver.steps import LOOK_AGE_MS_MAX, Planner, Step

_logger = logging.getLogger("sluice.lane")

#: After a look that found nothing new, fields that no column has are dead letters at once: one
#: range in this time is held back for a look, not each of them.
LOOK_FOR_FIELDS_MS = 60_000
#: Texts that ranges were widened to last.
_WIDENED_MAX = 8
#: Columns that are still missing are asked for again.
WANT_AGAIN_MS = 1_000


class SchemaChanges:
    """Takes readings of the tables in for one lane.

    :param states: the lane's own mapping; partitions may join it later.
    :param texts: the texts that can be executed, by digest; the lane's own mapping, too.
    :param request: asks for a reading; None where nobody reads, and nothing waits for one.
    :param stop: called for a partition that cannot go on.
    :param parking: which entries may be parked.
    :param want: asks for columns of new fields; None where nobody adds any.
    """

    def __init__(
        self,
        states: Mapping[TopicPartition, PartitionState],
        planner: Planner,
        texts: dict[str, ConfigurationText],
        request: Callable[[], None] | None,
        stop: Callable[[PartitionState, SluiceError], None],
        parking: Parking | None = None,
        want: Callable[[Wanted], None] | None = None,
    ) -> None:
        self._parking = parking or Parking()
        self._barred: Mapping[str, SluiceError] = {}
        self._states = states
        self._planner = planner
        self._texts = texts
        self._request = request
        self._stop = stop
        self._read_ms = 0
        #: Whether a block is known again by its token alone; not before it is known.
        self._has_tokens = False
        self._today: Today | None = None
        self._unrepeatable: set[tuple[str, str]] = set()
        self._unrecorded: dict[str, str] = {}
        self._widened_to: deque[str] = deque(maxlen=_WIDENED_MAX)
        self._looks_at_ms = 0
        self._want = want
        self._want_again_ms: dict[TopicPartition, int] = {}

    # Readings

    def take(self, read: SchemaRead, canonical: Mapping[str, str]) -> Mapping[str, str]:
        """Take a reading in; gives the canonical texts that tasks may need from now on.

        :param canonical: the canonical texts that they needed until now.
        """
        self._read_ms = read.started_ms
        self._barred = read.barred
        self._parking.take(read.altered, asked=read.asked)
        if read.today is None:
            return self._change(self._parking.applied(read.text), canonical)
        self._today, self._has_tokens = read.today, read.today.tokens
        canonical = self._change(self._parking.applied(read.text), canonical)
        self._unrepeatable.clear()
        for state in self._states.values():
            text = self._texts.get(state.record.text)
            topic = state.source.topic
            if text is None or not state.record.in_doubt or self.why_barred(topic) is not None:
                continue
            inserted = [table for table in text.tables_of(topic) if not table.parked]
            if any(table.target not in read.today.tables for table in inserted):
                continue  # Its window cannot be read either: it waits for that.
            why = why_not_executable(text, read.today, topic)
            if why is not None:
                self._unrepeatable.add((state.record.text, topic))
        return self._needed(canonical)

    def parkable_sites(self) -> list[Site]:
        """Where new ranges insert into entries that may be parked."""
        return self._parking.sites(self._planner.text)

    def park(
        self, entry: str, why: SluiceError, canonical: Mapping[str, str]
    ) -> Mapping[str, str] | None:
        """Park an entry; gives the texts as `take` does, None if it must not be parked."""
        if not self._parking.refuse(entry, why):
            return None
        return self._change(self._parking.applied(self._planner.text), canonical)

    def _change(self, text: ConfigurationText, canonical: Mapping[str, str]) -> Mapping[str, str]:
        """New ranges are intended under this text from now on; gives the texts with it."""
        digest = text.digest()
        if digest != self._planner.digest:
            self._planner.change(text)
            self._texts[digest] = text
            self._unrecorded[digest] = text.canonical()
            self._looks_at_ms = 0
        return self._needed({**canonical, **self._unrecorded})

    def _needed(self, canonical: Mapping[str, str]) -> Mapping[str, str]:
        """Texts that no record names any more are let go."""
        named = {state.record.text for state in self._states.values()} | {self._planner.digest}
        named |= set(self._widened_to)
        for digest in self._texts.keys() - named:
            del self._texts[digest]
        return {digest: text for digest, text in canonical.items() if digest in self._texts}

    def entries(self, named: Iterable[str]) -> tuple[LedgerEntry, ...]:
        """Ledger entries of texts that are not recorded yet: they stand in the transaction of the
        first record that names them, or before it."""
        wanted = set(named)
        return tuple(
            text_entry(digest, text)
            for digest, text in self._unrecorded.items()
            if digest in wanted
        )

    def recorded(self, named: Iterable[str]) -> None:
        """These texts are in the ledger now."""
        for digest in named:
            self._unrecorded.pop(digest, None)

    # What follows for partitions

    def stop_barred(self) -> None:
        """Stop partitions whose tables do not take their blocks any more. What is out may come
        back loaded, and what is loaded is settled first."""
        if not self._barred:
            return
        for state in self._states.values():
            is_idle = state.stopped is None and not state.out and state.loaded is None
            why = self.why_barred(state.source.topic) if is_idle else None
            if why is not None:
                self._stop(state, why)

    def why_barred(self, topic: str) -> SluiceError | None:
        """Why nothing of a topic can be loaded any more; None if it can."""
        if not self._barred:
            return None
        entries = (table.entry for table in self._planner.text.tables_of(topic))
        return next((self._barred[entry] for entry in entries if entry in self._barred), None)

    def is_known(self, state: PartitionState, now_ms: int) -> bool:
        """Whether the tables are known well enough to repeat this range; asks for a reading if
        not.

        A server that hashes what it stores does not know a block again once a column was added,
        so there a repeat needs a fresh look at the tables, as it does at their windows.
        """
        if self._request is None:
            return True
        waiting = self._unanswered(state)
        if waiting:
            again_ms = self._want_again_ms.get(state.source, 0)
            is_due = not 0 < again_ms - now_ms <= WANT_AGAIN_MS
            if self._want is not None and is_due and not self._would_be_disturbed():
                self._want_again_ms[state.source] = now_ms + WANT_AGAIN_MS
                self._want(waiting)
            return False
        if not self._has_tokens and self._are_columns_coming():
            return False
        since_ms = 0
        is_columns = state.outdated is not None and not state.outdated.schemas
        if is_columns or state.refusals:
            since_ms = state.back_at_ms
        if not self._has_tokens:
            since_ms = max(state.back_at_ms, now_ms - LOOK_AGE_MS_MAX)
        if self._read_ms >= since_ms:
            return True
        self._request()
        return False

    def is_unrepeatable(self, state: PartitionState) -> bool:
        """Whether the same text would not make the same blocks, or not be known as such."""
        topic = state.source.topic
        if (state.record.text, topic) in self._unrepeatable:
            return True
        text = self._texts.get(state.record.text)
        return text is not None and self._parking.was_unparked(text, topic)

    def known_rest(self, state: PartitionState) -> Rest:
        """See `parking.known_rest`."""
        text = self._texts.get(state.record.text)
        return {} if text is None else known_rest(text, state.block_range, state.background.rest)

    def in_parts(self, state: PartitionState) -> frozenset[str]:
        """See `ports.Prober`."""
        text = self._texts.get(state.record.text)
        tables = (text or self.text_of(state)).tables_of(state.source.topic)
        found = {table.entry for table in tables if table.partition_key or text is None}
        return frozenset(found | state.background.stored.keys())

    def text_of(self, state: PartitionState) -> ConfigurationText:
        """The recorded text if it can be executed; else today's, under a probe. One that says which
        schemas there are, where the registry does not know those of the range."""
        if state.outdated is not None and state.outdated.schemas:
            widened = self._executable(state)
            if widened is not None:
                return self._texts[self._adopted(widened)]
        if self.is_unrepeatable(state):
            return self._planner.text
        return self._texts.get(state.record.text, self._planner.text)

    def may_change_text(self, state: PartitionState) -> bool:
        """Whether a range whose first task refused its text may be loaded under today's.

        What that task inserted before it refused has to be the same under both.
        """
        record, outdated = state.record, state.outdated
        if outdated is not None and outdated.schemas:
            return state.untouched and self._executable(state) is not None
        if outdated is not None and outdated.fields:
            return self._executable(state) is not None
        if outdated is None or record.kind is not Kind.INTEND or record.attempt != 1:
            return False
        before = self._texts.get(record.text)
        if before is None or record.text == self._planner.digest:
            return False
        topic = state.source.topic
        then = {table.entry: table for table in before.tables_of(topic)}
        now = {table.entry: table for table in self._planner.text.tables_of(topic)}
        return then.keys() == now.keys() and all(
            then[entry] == now[entry] for entry in outdated.inserted
        )

    def again(self, state: PartitionState, now_ms: int) -> Step:
        """The same range again, with a new lease; under today's text if it may be."""
        widened = self._executable(state)
        if widened is not None:
            return self._planner.widen(state, self._adopted(widened), now_ms)
        if self.may_change_text(state):
            return self._planner.retext(state, now_ms)
        if state.outdated is not None:
            self._looks_at_ms = now_ms + LOOK_FOR_FIELDS_MS
        return self._planner.renew(state, now_ms)

    def _adopted(self, text: ConfigurationText) -> str:
        """Have a text that a range is widened to; gives its digest. The last ones are kept, since
        the next ranges may need them, too."""
        digest = text.digest()
        if digest not in self._texts:
            self._texts[digest] = text
            self._unrecorded[digest] = text.canonical()
        if digest not in self._widened_to:
            self._widened_to.append(digest)
        return digest

    def _widened(self, state: PartitionState) -> ConfigurationText | None:
        """The recorded text, with the entries that refused the range as they have to be: for its
        fields as they are today, for its schemas with those that there are. None if there is
        nothing new.

        All else stays: what was inserted of other entries before is the same under both.
        """
        before, outdated = self._texts.get(state.record.text), state.outdated
        if before is None or outdated is None:
            return None
        now = {table.entry: table for table in self._planner.text.tables}
        tables = tuple(
            _adapted(table, now.get(table.entry)) if table.entry in outdated.fields else table
            for table in before.tables
        )
        tables = tuple(
            replace(table, schemas=outdated.schemas[table.entry].known)
            if table.entry in outdated.schemas
            else table
            for table in tables
        )
        widened = replace(before, tables=tables)
        return None if widened == before else widened

    def _executable(self, state: PartitionState) -> ConfigurationText | None:
        """The same, if it can be executed. Where rows are hashed, another table of the topic may
        have more columns by now, too: then the range is probed."""
        widened = self._widened(state)
        if widened is None or self._today is None:
            return widened
        why = why_not_executable(widened, self._today, state.source.topic)
        return widened if why is None else None

    def _unanswered(self, state: PartitionState) -> Wanted:
        """Fields for which today's text would refuse the range, too."""
        text = self._widened(state) or self._texts.get(state.record.text)
        if text is None or state.outdated is None:
            return {}
        waiting = {}
        for table in text.tables:
            fields = state.outdated.fields.get(table.entry, ())
            if table.dynamic is None or table.parked:
                continue
            names = frozenset(column.name for column in table.columns)
            open_ = tuple(f for f in fields if answer_to(table.dynamic, names, f.name))
            if open_:
                waiting[table.entry] = open_
        return waiting

    def _would_be_disturbed(self) -> bool:
        """Whether a repeat is out that a new column could make another block of: where rows are
        hashed, Sluice itself adds none between such a task's look at the columns and its insert."""
        return not self._has_tokens and any(s.out and s.repeated for s in self._states.values())

    def _are_columns_coming(self) -> bool:
        """Whether columns were asked for that are not there yet."""
        for source in list(self._want_again_ms):
            state = self._states.get(source)
            if state is not None and state.stopped is None and self._unanswered(state):
                return True
            del self._want_again_ms[source]
        return False

    def with_unrecorded(self, canonical: Mapping[str, str]) -> Mapping[str, str]:
        """The canonical texts, with those that ranges were widened to."""
        missing = self._unrecorded.keys() - canonical.keys()
        return {**canonical, **{d: self._unrecorded[d] for d in missing}} if missing else canonical

    def looks_for_fields(self, now_ms: int) -> bool:
        """Whether a field that no column has is worth a look at the table."""
        return self._request is not None and now_ms >= self._looks_at_ms


def _adapted(table: TableText, now: TableText | None) -> TableText:
    """A recorded entry over its table of today. Where the entry loads another one, or nothing any
    more, nobody adds columns to this one: its new fields are as `unknown_fields` says."""
    if now is None or now.target != table.target:
        return replace(table, dynamic=None)
    return replace(
        table,
        columns=now.columns,
        sorting_key=now.sorting_key,
        time_zone=now.time_zone,
        parked=now.parked,
        dynamic=now.dynamic,
    )
