"""Table entries that take nothing for now, so that the others of their topics go on (R13).

Whether an entry is parked is part of the load spec. So what a range does with the
entry's messages is recorded before it is done, like everything else that decides about rows.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from sluice.core.budget import TargetShard, own_target_shards
from sluice.core.errors import SluiceError
from sluice.core.ledger import Rest, Stored
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import Limits
from sluice.core.ranges import Range

_logger = logging.getLogger("sluice.loop")

#: A range with a parked entry is small: its messages go through the driver, whole.
MESSAGES_MAX = 20_000
BYTES_MAX = 4 * 1024 * 1024

_HOW_BACK = (
    "Fix the table, then `sluice reload CONFIG --why TEXT`, or start the driver again; `sluice "
    "dead-letters replay CONFIG --parked` brings the messages back"
)


class Parking:
    """Which table entries of one connector are parked, and why.

    :param allowed: entries with `on_error = "park"`.
    """

    def __init__(self, allowed: Collection[str] = ()) -> None:
        self._allowed = frozenset(allowed)
        #: What the server refused, until somebody says that it may be tried again.
        self._refused: dict[str, SluiceError] = {}
        #: Tables that are not what their blocks are made for, as long as they are so.
        self._altered: Mapping[str, SluiceError] = {}

    def allow(self, entries: Collection[str]) -> None:
        """Only these entries may be parked from now on."""
        self._allowed = frozenset(entries)
        self._refused = {e: why for e, why in self._refused.items() if e in self._allowed}
        self._altered = {e: why for e, why in self._altered.items() if e in self._allowed}

    @property
    def entries(self) -> frozenset[str]:
        """What is parked."""
        return frozenset(self._refused) | frozenset(self._altered)

    @property
    def parked(self) -> Mapping[str, bool]:
        """Whether each entry that may be parked is; may be called from any thread."""
        entries = self.entries
        return {entry: entry in entries for entry in sorted(self._allowed)}

    def target_shards(self, spec: LoadSpec) -> list[TargetShard]:
        """Where entries insert that may be parked, and are not."""
        return [
            target_shard
            for table in spec.tables
            if table.entry in self._allowed and not table.parked
            for target_shard in own_target_shards(table)
        ]

    def allows(self, entry: str) -> bool:
        """Whether an entry may be parked."""
        return entry in self._allowed

    def refuse(self, entry: str, why: SluiceError) -> None:
        """Park an entry that may be parked, and whose block can never be stored."""
        assert self.allows(entry), entry
        if entry not in self.entries:
            _logger.error(
                "table entry %s is parked, the others go on: %s. Try: %s %s",
                entry,
                why,
                why.hint,
                _HOW_BACK,
            )
        self._refused[entry] = why

    def take(self, altered: Mapping[str, SluiceError], *, asked: bool) -> None:
        """Take a reading of the tables in.

        :param altered: by entry, why its table does not take its blocks.
        :param asked: a person said that what was refused may be tried again.
        """
        before = self.entries
        for entry in sorted(altered.keys() - before):
            _logger.error("table entry %s is parked, the others go on. %s", entry, _HOW_BACK)
        self._altered = {entry: altered[entry] for entry in altered}
        if asked:
            self._refused.clear()
        for entry in sorted(before - self.entries):
            _logger.warning("table entry %s is not parked any more; it is tried again", entry)

    def applied(self, spec: LoadSpec) -> LoadSpec:
        """The load spec with exactly these entries parked; the same object if it is so already."""
        if all(table.parked == (table.entry in self.entries) for table in spec.tables):
            return spec
        tables = (replace(table, parked=table.entry in self.entries) for table in spec.tables)
        return replace(spec, tables=tuple(tables))

    def was_unparked(self, spec: LoadSpec, topic: str) -> bool:
        """Whether a load spec inserts what must not be inserted now."""
        if not (self._refused or self._altered):
            return False
        return any(t.entry in self.entries and not t.parked for t in spec.tables_of(topic))


def known_rest(spec: LoadSpec, block_range: Range, rest: Rest) -> Rest:
    """What is to be loaded of entries that a probe does not look for under the load spec of the
    range's record: of those that nobody inserted under it, since their tables may not even be
    there; and of those of which everything may be sent again (R22).

    :param spec: that the record names.
    :param rest: what an earlier probe found missing, if the record is of one. What it did not, is
        there, and may be rows of another load spec, which this one does not make again.
    """
    whole = ((block_range.begin, block_range.end),)
    tables = spec.tables_of(block_range.source.topic)
    return {t.entry: rest.get(t.entry, whole) for t in tables if t.parked or t.is_replacing}


def parked_in(spec: LoadSpec, topic: str) -> list[str]:
    """The entries of a topic that a load spec parks."""
    return [table.entry for table in spec.tables_of(topic) if table.parked]


def why_not_parked(spec: LoadSpec, block_range: Range, stored: Stored) -> str | None:
    """Why messages of a range cannot be parked under a load spec; None if they can.

    Who replays a parked message loads all of its rows: those that are in the table already would be
    doubled. So the range waits until its table takes blocks again.

    :param stored: rows of messages of several rows that a probe has found.
    """
    for entry in parked_in(spec, block_range.source.topic):
        offsets = sorted({offset for offset, _, _ in stored.get(entry, ())})
        if offsets:
            return (
                f"{block_range} waits: table entry {entry} is parked, and its table has rows of "
                f"{len(offsets)} messages of the range, the first at offset {offsets[0]}, maybe "
                f"not all of them. {_HOW_BACK}"
            )
    return None


def limits_of(spec: LoadSpec, topic: str, limits: Limits) -> Limits:
    """How large a new range of this topic may be."""
    if not parked_in(spec, topic):
        return limits
    return replace(
        limits,
        messages_max=min(limits.messages_max, MESSAGES_MAX),
        bytes_max=min(limits.bytes_max, BYTES_MAX),
    )
