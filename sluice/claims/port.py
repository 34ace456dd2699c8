"""A store of claims (I11): what a loader asks of it. See `core.claims` for keys and owners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from sluice.claims.owners import Keys, Owners
from sluice.core.errors import TerminalError, TransientError


class StoreAwayError(TransientError):
    """The store of claims does not answer. Nothing was inserted."""

    hint = "Look at the store that [deduplication] names; ranges are sent again until it answers."


class StoreRefusedError(TerminalError):
    """The store of claims cannot be used as it is. Nothing was inserted."""

    hint = "Correct the store's configuration; docs/EVENTS.md says what it has to be."


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """How a store is doing.

    :param run: see `ClaimStore.run`.
    :param keys: about how many claims it holds; None: it does not count them.
    :param used_bytes: of memory or disk.
    :param max_bytes: of which it takes no more; None: no limit.
    :param loses: what a power failure, or a failover, costs, in words; "": nothing.
    """

    run: str
    keys: int | None
    used_bytes: int
    max_bytes: int | None
    loses: str = ""


class ClaimStore(Protocol):
    """Claims by key. Several processes use one store at once; an object of this is one thread's.

    Whatever a call was told is kept as long as the store's run goes on: a crash of any process
    that uses it takes nothing back. After a call that raises nobody knows what of it was done;
    it may be repeated.
    """

    def run(self) -> str:
        """One life of the store, as in `core.server_runs`: another one may lack claims.

        :raises StoreAwayError: it does not answer.
        :raises StoreRefusedError: it may lose claims while it runs, as one that evicts keys.
        """

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        """Claim each key that nobody has, in the order given: the first of equal keys gets it.

        :param keys: n lines of KEY_BYTES, contiguous; `owners`: n lines of OWNER_BYTES. Keys that
            differ in their last two bytes only may be one to a store.
        :param until_s: seconds since 1970 until when a new claim holds.
        :param now_s: claims that held until before now are as if they were not there.
        :returns: n lines: who has each key now. A claim that is there keeps its end, unless the
            same owner claims it for longer.
        """

    def release(self, keys: Keys, owners: Owners) -> None:
        """Take claims back that these owners have; those of others stay."""

    def keep(self, notes: Mapping[str, str], run: str) -> None:
        """Write facts that are kept beside the claims, by name, or take them away with "". Claims
        that were answered before a note was written are there if the note is, whatever the store
        has lost.

        :param run: only in this one; what was told of another one is not true of it.
        :raises StoreAwayError: it is another one.
        """

    def notes(self) -> dict[str, str]:
        """All of them, by name."""

    def sweep(self, now_s: int, seconds: float) -> int:
        """Drop claims that held until before now, for about so long; a next call goes on where this
        one stopped. They cost memory, and nothing else.

        :returns: how many, as far as it counts them.
        """

    def facts(self) -> StoreFacts:
        """How it is doing."""

    def close(self) -> None:
        """Let it go. Harmless when repeated."""
