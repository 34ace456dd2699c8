"""The window budget (rule 10): a block must still be remembered when it is repeated.

A repeat of block T stores nothing iff fewer than W entries were created on that table and
shard since T's own. Entries are counted by marks, numbers that the server raises by at
least one for each entry of any writer, and by grants, what was allowed but may not have
landed yet. Everything that may still be repeated is a claim on the window.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: Claims stay below this share of a window; the rest is for what cannot be counted.
WINDOW_SHARE = 2


@dataclass(frozen=True, slots=True)
class Site:
    """A table in one shard: where a deduplication window is.

    :param entry: name of the table entry.
    """

    entry: str
    shard: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Something that may still insert into a site, or that may be repeated.

    :param mark: the site's mark before the claim's first insert could begin.
    :param grant: entries that it may yet create.
    """

    mark: int
    grant: int


@dataclass(frozen=True, slots=True)
class WindowState:
    """A site's window as read from the server.

    :param blocks: W, the smallest over the table and its views' targets.
    :param mark: the mark now.
    :param table: name of the table whose window it is; may be a view's target.
    """

    blocks: int
    mark: int
    table: str = ""

    @property
    def usable(self) -> int:
        """Entries that may lie between a block and its repeat."""
        return self.blocks // WINDOW_SHARE


def room(window: WindowState, claims: Iterable[Claim], ended: int = 0) -> int:
    """How many entries may be granted now; negative when the budget is overdrawn.

    The entries since the oldest claim are what the server counted, plus every grant that
    may still land.

    :param ended: grants of claims that ended after the mark was read; their entries may be
        missing in it.
    """
    held = list(claims)
    created = window.mark - min((claim.mark for claim in held), default=window.mark)
    if created < 0:
        # A mark that fell (parts were dropped) no longer counts; nothing may be assumed.
        return -1 if held else window.usable
    return window.usable - created - ended - sum(claim.grant for claim in held)


def still_remembered(window: WindowState, mark: int) -> bool:
    """Whether a block that was inserted after `mark` is surely within the window."""
    return 0 <= window.mark - mark <= window.usable
