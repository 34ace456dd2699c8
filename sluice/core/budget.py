"""The window budget (R10): a block must still be remembered when it is repeated.

A repeat of block T stores nothing iff fewer than W entries were created on that table and
shard since T's own. Entries are counted by insert counters, numbers that the server raises by at
least one for each entry of any writer, and by reservations, what was allowed but may not have
landed yet. Everything that may still be repeated is a hold on the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from sluice.core.fleet.floors import Share
from sluice.core.lease import CLOCK_SKEW_MS_MAX
from sluice.core.load_spec import TableSpec
from sluice.core.values import value

#: Holds stay below this share of a window; the rest is for what cannot be counted.
WINDOW_SHARE = 2

#: What an insert counter grows by when a part of what it counts is gone: more than a window keeps.
HISTORY_GONE = 1 << 40

#: Between a table entry's window and the table that a view writes to; in no name of an entry.
_TO_TARGET = ">"
#: Before what has no window; in no name of an entry.
_WINDOWLESS = "~"


@dataclass(frozen=True, slots=True)
class TargetShard:
    """A deduplication window that the blocks of a table entry take entries of, in one shard: that
    of the entry's own table, or that of a table that a materialized view behind it writes to.

    :param entry: name of the table entry.
    :param target: database.table that a view writes to, however deep; "": the entry's own table.
    :param has_window: False: blocks are sent there past all windows (R22). So it is another one
        than the same table's window.
    """

    entry: str
    shard: str
    target: str = ""
    has_window: bool = True

    @property
    def own(self) -> TargetShard:
        """The window of the entry's own table."""
        return replace(self, target="") if self.target else self

    @property
    def name(self) -> str:
        """Whose window it is, for people."""
        return f"{self.entry} -> {self.target}" if self.target else self.entry

    @property
    def key(self) -> str:
        """How it is called in the ledger's insert counters."""
        own = f"{'' if self.has_window else _WINDOWLESS}{self.entry}/{self.shard}"
        return f"{own}{_TO_TARGET}{self.target}" if self.target else own

    @staticmethod
    def of(key: str) -> TargetShard:
        """The target shard of a key."""
        own, _, target = key.removeprefix(_WINDOWLESS).partition(_TO_TARGET)
        entry, _, shard = own.rpartition("/")
        return TargetShard(entry, shard, target, not key.startswith(_WINDOWLESS))


def own_target_shards(table: TableSpec) -> list[TargetShard]:
    """The table of an entry in each of its shards; none where its blocks are staged (R21)."""
    if table.is_staged:
        return []
    return [
        TargetShard(table.entry, shard, has_window=not table.is_replacing) for shard in table.shards
    ]


@value
class Hold:
    """Something that may still insert into a target shard, or that may be repeated.

    :param insert_counter: the target shard's insert counter before the hold's first insert could
        begin.
    :param reservation: entries that it may yet create.
    """

    insert_counter: int
    reservation: int


#: Of a window that blocks cannot push others out of: the claims of a table (R20), and the tables
#: of a benchmark that cannot deduplicate.
BOUNDLESS = 1 << 40


@dataclass(frozen=True, slots=True)
class WindowState:
    """A target shard's window as read from the server.

    :param blocks: W.
    :param insert_counter: the insert counter now.
    :param table: name of the table whose window it is.
    :param share: what a fleet leaves of it; None: there is no other member.
    """

    blocks: int
    insert_counter: int
    table: str = ""
    share: Share | None = None

    @property
    def usable(self) -> int:
        """Entries that may lie between a block and its repeat."""
        return self.blocks // WINDOW_SHARE

    @property
    def most(self) -> int:
        """The most entries that may ever be reserved."""
        return self.usable if self.share is None else self.share.most(self.blocks)


def room(window: WindowState, holds: Iterable[Hold], ended: int = 0) -> int:
    """How many entries may be reserved now; negative when the budget is overdrawn.

    The entries since the oldest hold are what the server counted, plus every reservation that
    may still land.

    :param ended: reservations of holds that ended after the insert counter was read; their entries
        may be missing in it.
    """
    held = list(holds)
    oldest = min((hold.insert_counter for hold in held), default=window.insert_counter)
    reserved = ended + sum(hold.reservation for hold in held)
    created = window.insert_counter - oldest
    if created < 0:
        # An insert counter that fell (parts were dropped) no longer counts; nothing may be assumed.
        return -1 if held else window.usable
    left = window.usable - created - reserved
    if window.share is not None:
        of_fleet = window.share.left(window.blocks, window.insert_counter, oldest, reserved)
        return min(left, of_fleet)
    return left


def still_remembered(window: WindowState, insert_counter: int) -> bool:
    """Whether a block that was inserted after `insert_counter` is surely within the window."""
    return 0 <= window.insert_counter - insert_counter <= window.usable


def created_since(window: WindowState, insert_counter: int) -> str:
    """How many entries came to a window since an insert counter, for people."""
    created = window.insert_counter - insert_counter
    return str(created) if 0 <= created < HISTORY_GONE else "an unknown number of"


def still_young(window_seconds: int | None, since_ms: int, now_ms: int) -> bool:
    """Whether a block is surely younger than what a window forgets by time.

    The server counts a block's age up to the newest one, which is no younger than now. A range
    that begins in the future was recorded by a clock that was ahead, or this one was set back:
    then nobody knows its age.

    :param window_seconds: None: the window does not forget by time.
    :param since_ms: before the block could first be inserted.
    """
    if window_seconds is None:
        return True
    age_ms = now_ms - since_ms
    return -CLOCK_SKEW_MS_MAX <= age_ms <= 1000 * window_seconds // WINDOW_SHARE


def why_block_forgotten(
    window: WindowState,
    insert_counter: int,
    since_ms: int,
    now_ms: int,
    *,
    seconds: int | None,
    lost_until_ms: int,
) -> str:
    """Why a block may be unknown to a window that was inserted into a table since; "" if it is
    surely known. Whether the server has what it knows, is asked apart (`core.server_runs`).

    :param insert_counter: the window's, before the block could first be inserted.
    :param since_ms: the time of that.
    :param seconds: see `still_young`.
    :param lost_until_ms: what was sent before may be forgotten whatever came after it
        (`clickhouse.vanishing.tokens_went_until_ms`).
    """
    if not still_remembered(window, insert_counter):
        return (
            f"{created_since(window, insert_counter)} blocks came to {window.table} since, of "
            f"which its deduplication window keeps {window.blocks}"
        )
    if not still_young(seconds, since_ms, now_ms):
        return f"the deduplication window of {window.table} keeps blocks for {seconds} s"
    if since_ms < lost_until_ms:
        return (
            f"{window.table} may have lost what its window knows: parts that merge to no row are "
            "removed, or may have been before the table was last altered (remove_empty_parts)"
        )
    return ""
