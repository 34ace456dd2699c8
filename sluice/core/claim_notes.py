"""What writers note in a store of claims for each other, and what follows from that (R20, H24).

Every claim that was answered before a note was written is there if the note is. Each second a
writer notes the time, and what the store still has of that says since when claims may be missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import NamedTuple

from sluice.core.claims import key_space
from sluice.core.lease import CLOCK_SKEW_MS_MAX, has_expired
from sluice.core.load_spec import TableSpec
from sluice.core.moments import shown_time

#: A server says to the second when a part came, by a clock of its own.
SINCE_MARGIN_MS = 2 * CLOCK_SKEW_MS_MAX + 2_000

#: A store elsewhere is polled by all who claim there, who notice a new run so soon; one that writes
#: its log each second loses no more notes. A local one cannot be another one unnoticed.
SETTLE_MS = 3_000
#: What nobody has noted for so long was not kept up: rows may have come without claims.
STALE_MS = 60_000
#: A driver that has not told of itself for so long is not coming back.
FORGOTTEN_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Writer:
    """What a driver says of a connector of its own, beside the claims.

    :param connector: with its pipeline.
    :param run: of the store that it knows; `is_quiet`: nothing can be inserted any more under
        claims of a run before.
    :param lease_ms: nothing that it sent is inserted later than this after `at_ms`.
    :param waits: by scope, why it loads nothing into tables that deduplicate in it, in words.
    """

    connector: str
    run: str
    is_quiet: bool
    at_ms: int
    lease_ms: int
    parts: tuple[str, ...]
    waits: Mapping[str, str] = field(default_factory=dict)

    def written(self) -> str:
        """As it stands in the store."""
        return json.dumps(astuple(self), separators=(",", ":"))

    @staticmethod
    def read(text: str) -> Writer:
        """What was written."""
        connector, run, is_quiet, at_ms, lease_ms, parts, waits = json.loads(text)
        return Writer(connector, run, is_quiet, at_ms, lease_ms, tuple(parts), waits)


@dataclass(frozen=True, slots=True)
class Me:
    """Which writer this is.

    :param connector: with its pipeline.
    :param owner: as in records, another one for each driver process.
    :param since_ms: when it started.
    """

    connector: str
    owner: str
    since_ms: int

    @property
    def name(self) -> str:
        """Among all writers."""
        return f"{self.connector} {self.owner}"

    def took_over(self, other: Writer) -> bool:
        """Whether what another one has sent is in doubt here: it was this connector's driver, and
        has not told of itself since this one started."""
        return other.connector == self.connector and other.at_ms < self.since_ms


@dataclass(frozen=True, slots=True)
class Space:
    """What is known of the claims of one part (`Part`).

    :param run: all claims of it are there, in this run; "": they never were.
    :param alive_ms: claims that were answered before are there, in any run that has this note.
    """

    run: str = ""
    alive_ms: int = 0

    def written(self) -> str:
        """As it stands in the store."""
        return json.dumps([self.run, self.alive_ms], separators=(",", ":"))

    @staticmethod
    def read(text: str) -> Space:
        """What was written; "": nothing was."""
        return Space(*json.loads(text)) if text else Space()


WRITER, SPACE = "writer ", "space "


def scope_of(space: str) -> str:
    """The scope of a key space, see `core.claims.key_space`."""
    return space.rpartition("/")[0]


class Part(NamedTuple):
    """Claims that can be made again from one table: those of a key space for rows of a table, for
    so long. Several tables may share a key space, and each is read by who loads it.

    :param space: see `core.claims.key_space`.
    :param target: database.table.
    :param seconds: the window.
    """

    space: str
    target: str
    seconds: int

    @property
    def name(self) -> str:
        """In the store."""
        return "\t".join(map(str, self))

    @property
    def scope(self) -> str:
        """See `core.claims.Deduplicate`."""
        return scope_of(self.space)

    @staticmethod
    def of(name: str) -> Part:
        """The part of a name."""
        space, target, seconds = name.split("\t")
        return Part(space, target, int(seconds))

    @staticmethod
    def of_table(table: TableSpec) -> Part:
        """The part of an entry that deduplicates."""
        assert table.deduplicate is not None
        space = key_space(table.deduplicate, table.columns)
        return Part(space, table.target, table.deduplicate.window_seconds)


@dataclass(frozen=True, slots=True)
class Open:
    """All claims are there."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing is sent; why, in words."""

    why: str


@dataclass(frozen=True, slots=True)
class RebuildNow:
    """Nobody can insert any more under claims that may be lost: what came since is claimed.

    :param since_ms: by part.
    """

    since_ms: Mapping[Part, int]


Step = Open | Closed | RebuildNow


#: Other writers of one key space, by name, each with its parts of it.
Others = Mapping[str, tuple[Writer, list[Part]]]


def next_step(
    notes: Mapping[str, str],
    others: Others,
    run: str,
    parts: Collection[Part],
    *,
    is_quiet: bool,
    has_settled: bool,
    was_open: bool,
    noted_ms: int,
    unknown_until_ms: int,
    new: Collection[Part] = (),
    begun: Collection[Part] = (),
    now_ms: int,
) -> Step:
    """What a writer does about a key space of a store. Pure.

    :param notes: all that the store has.
    :param others: see `others_of`.
    :param run: of the store, read before the notes.
    :param parts: of the key space, that the writer's entries claim in.
    :param is_quiet: nothing of this writer can be inserted any more under another run's claims.
    :param has_settled: the run is known for long enough that each live writer has told of itself.
    :param was_open: this writer has found the store open in this run.
    :param noted_ms: what this writer noted last in the run before, while it looked at it without a
        pause; 0: it did not. Where that is lost, what another one said of itself may be, too, and
        that one may be asleep.
    :param unknown_until_ms: until then others may insert under claims of the run before.
    :param new: parts whose tables are empty: nobody has claimed there.
    :param begun: parts that this writer has only begun to claim: whatever others note, its own rows
        may have come without claims.
    """
    known = {part: Space.read(notes.get(SPACE + part.name, "")) for part in parts}
    lacking = {
        part: space
        for part, space in known.items()
        if part in begun or space.run != run or now_ms - space.alive_ms > STALE_MS
    }
    if not lacking:
        for name, (_, theirs) in others.items() if not was_open else ():
            if any(Space.read(notes.get(SPACE + part.name, "")).run != run for part in theirs):
                return Closed(f"{name} has yet to claim the rows of its tables again")
        return Open()
    if not is_quiet:
        return Closed("blocks that were sent before may still be inserted")
    if not has_settled:
        return Closed("others who claim there may not have noticed yet")
    is_lost = any(
        part not in new and space.run != run and not 0 < noted_ms <= space.alive_ms
        for part, space in lacking.items()
    )
    if is_lost and not has_expired(unknown_until_ms, now_ms):
        until_ms = unknown_until_ms + 2 * CLOCK_SKEW_MS_MAX
        return Closed(
            "it is new, or was emptied, and does not know who else may still insert: nothing is "
            f"loaded until {shown_time(until_ms)}"
        )
    for name, (writer, _) in others.items():
        if not (writer.run == run and writer.is_quiet):
            return Closed(f"{name} claims there, too, and may still insert")
    return RebuildNow(
        {
            # What came before would be over by now, or its claims are there.
            part: max(0 if part in begun else space.alive_ms, now_ms - 1000 * part.seconds)
            - SINCE_MARGIN_MS
            for part, space in lacking.items()
        }
    )


def others_of(notes: Mapping[str, str], me: Me, now_ms: int) -> dict[str, Others]:
    """The other writers that may still insert, by key space. Pure.

    :param notes: all that the store has.
    """
    found: dict[str, dict[str, tuple[Writer, list[Part]]]] = {}
    for name, text in sorted(notes.items()):
        if not name.startswith(WRITER) or name == WRITER + me.name:
            continue
        writer = Writer.read(text)
        if has_expired(writer.at_ms + writer.lease_ms, now_ms) or me.took_over(writer):
            continue
        for part in map(Part.of, writer.parts):
            of_space = found.setdefault(part.space, {})
            of_space.setdefault(name.removeprefix(WRITER), (writer, []))[1].append(part)
    return dict(found)


def other_leases(
    notes: Mapping[str, str], lease_ms: int, scopes: Collection[str], now_ms: int
) -> dict[str, int]:
    """The connectors that claim in these scopes with another lease, and theirs. Pure.

    :param notes: all that the store has.
    """
    return {
        writer.connector: writer.lease_ms - SETTLE_MS
        for writer in _live_writers(notes, now_ms)
        if writer.lease_ms != lease_ms + SETTLE_MS
        and any(Part.of(name).scope in scopes for name in writer.parts)
    }


def waiting_for(
    notes: Mapping[str, str], run: str, scopes: Iterable[str], now_ms: int
) -> dict[str, str]:
    """Why entries that claim in each of these scopes may not load now; "": they may. Pure.

    :param notes: all that the store has.
    :param run: of the store, read before the notes.
    """
    found = {}
    live = _live_writers(notes, now_ms)
    for scope in scopes:
        known = [space for part, space in _spaces(notes).items() if part.scope == scope]
        latest = max(known, key=lambda space: space.alive_ms, default=Space())
        waiting = [
            f"{writer.connector} says: {writer.waits[scope]}"
            for writer in live
            if scope in writer.waits
        ]
        why = ""
        if waiting:
            why = "; ".join(waiting)
        elif not latest.run:
            why = "nobody has claimed in it yet"
        elif latest.run != run:
            why = "the store was started again, and not all claims are made again yet"
        elif now_ms - latest.alive_ms > STALE_MS:
            why = f"no driver keeps it up, for {(now_ms - latest.alive_ms) // 1000} s now"
        found[scope] = why
    return found


def not_made_again(
    notes: Mapping[str, str], run: str, scopes: Iterable[str], now_ms: int
) -> dict[str, list[str]]:
    """By scope, tables whose rows may have no claims any more, and that nobody loads who could make
    them again: an event that only such a table has is loaded once more. Pure.

    :param notes: all that the store has.
    :param run: of the store, read before the notes.
    """
    wanted, found = set(scopes), dict[str, set[str]]()
    loaded = {name for writer in _live_writers(notes, now_ms) for name in writer.parts}
    for part, space in _spaces(notes).items():
        is_over = now_ms - space.alive_ms > 1000 * part.seconds
        if part.scope in wanted and part.name not in loaded and space.run != run and not is_over:
            found.setdefault(part.scope, set()).add(part.target)
    return {scope: sorted(targets) for scope, targets in found.items()}


def _spaces(notes: Mapping[str, str]) -> dict[Part, Space]:
    return {
        Part.of(name.removeprefix(SPACE)): Space.read(text)
        for name, text in notes.items()
        if name.startswith(SPACE)
    }


def _live_writers(notes: Mapping[str, str], now_ms: int) -> list[Writer]:
    """Those of which something may still be inserted."""
    writers = (Writer.read(text) for name, text in notes.items() if name.startswith(WRITER))
    return [each for each in writers if not has_expired(each.at_ms + each.lease_ms, now_ms)]


def gone(notes: Mapping[str, str], now_ms: int) -> list[str]:
    """The notes of writers that are not coming back."""
    writers = {n: Writer.read(text) for n, text in notes.items() if n.startswith(WRITER)}
    return [n for n, w in writers.items() if now_ms - w.at_ms - w.lease_ms > FORGOTTEN_MS]
