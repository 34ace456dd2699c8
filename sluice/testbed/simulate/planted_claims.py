"""Bugs on purpose about claims (R20); see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from sluice.claims.owners import OWNER
from sluice.claims.port import StoreAwayError
from sluice.core.claim_notes import RebuildNow
from sluice.core.claims import CLAIMS, REPEATED_SECONDS_MAX
from sluice.driver import claims, connector, remembering
from sluice.driver.record_updates import RecordPlanner
from sluice.testbed.simulate.planting import Bugs, patched
from sluice.testbed.simulate.store import SimulatedStore
from sluice.worker import claiming, loading
from sluice.worker.bundle import Bundle

CLAIM_BUGS = Bugs()


def _owned_by(change: Callable[[Bundle, Any], None]) -> AbstractContextManager[None]:
    """Others own a key than places do.

    :param change: is given the fields of the owners.
    """
    real = Bundle.owners

    def owners(self: Bundle, *parts: Any) -> Any:
        lines = real(self, *parts)
        change(self, lines.view(OWNER).reshape(-1))
        return lines

    return patched((Bundle, "owners", owners))


@CLAIM_BUGS.plant
def claims_are_owned_by_ranges() -> AbstractContextManager[None]:
    """The range that claims a key owns it, not the message."""

    def change(bundle: Bundle, fields: Any) -> None:
        fields["offset"], fields["row"] = bundle.first.begin, 0

    return _owned_by(change)


@CLAIM_BUGS.plant
def claims_are_owned_by_attempts() -> AbstractContextManager[None]:
    """Each attempt owns what it claims, as if it were another generation."""

    def change(bundle: Bundle, fields: Any) -> None:
        fields["loader"] += bundle.members[0].record.attempt

    return _owned_by(change)


@CLAIM_BUGS.plant
def repeated_under_another_run() -> AbstractContextManager[None]:
    """A range in doubt is repeated whatever became of the store since; its record says that it was
    always this one."""
    real, see_real = RecordPlanner.renew, RecordPlanner.see_windows
    runs: dict[str, str] = {}

    def see_windows(self: RecordPlanner, windows: Any) -> None:
        see_real(self, windows)
        runs.update({of.shard: w.server for of, w in windows.items() if of.shard == CLAIMS})

    def renew(self: RecordPlanner, *parts: Any, **named: Any) -> Any:
        step = real(self, *parts, **named)
        background = step.background
        servers = {**background.servers, **(runs if CLAIMS in background.servers else {})}
        return replace(step, background=replace(background, servers=servers))

    return patched(
        (RecordPlanner, "see_windows", see_windows),
        (RecordPlanner, "renew", renew),
        (remembering, "_why_not_claimed", lambda *_: ""),
    )


@CLAIM_BUGS.instead_of(loading, "claim")
def claimed_before_validation(
    real: Any, store: Any, bundle: Any, table: Any, row_keys: Any, decoded: Any, *more: Any
) -> Any:
    """Messages that make no row own keys, too."""
    origins, loader = more
    keys, places = row_keys.of_bad(decoded, origins)
    if len(keys):
        since_s = bundle.background.since_ms // 1000
        owners = bundle.owners(origins, loader, places, np.zeros(len(places), np.uint32))
        store.claim(keys, owners, since_s + table.deduplicate.window_seconds, since_s)
    return real(store, bundle, table, row_keys, decoded, *more)


@CLAIM_BUGS.plant
def store_opened_while_tasks_are_out() -> AbstractContextManager[None]:
    """A store that may lack claims is opened while blocks may come under those."""
    return patched((claims, "may_still_insert", lambda *_: False))


@CLAIM_BUGS.plant
def lost_claims_are_not_made_again() -> AbstractContextManager[None]:
    """A store that may lack claims is opened as it is."""
    return patched((connector, "rebuild", lambda *_: None))


@CLAIM_BUGS.instead_of(claims, "next_step")
def claims_are_made_again_since_now(real: Any, *parts: Any, now_ms: int, **named: Any) -> Any:
    """Only what comes from now on is claimed again, as if nothing had been lost."""
    step = real(*parts, now_ms=now_ms, **named)
    if isinstance(step, RebuildNow):
        return RebuildNow(dict.fromkeys(step.since_ms, now_ms))
    return step


@CLAIM_BUGS.instead_of(SimulatedStore, "claim")
def claims_end_by_the_clock(
    real: Any, self: SimulatedStore, keys: Any, owners: Any, until_s: int, now_s: int
) -> Any:
    """Whether a claim is over is judged by the time of the attempt."""
    clock_s = self._world.wall_ms() // 1000
    return real(self, keys, owners, until_s - now_s + clock_s, clock_s)


@CLAIM_BUGS.plant
def tasks_do_not_compare_runs() -> AbstractContextManager[None]:
    """A task claims in whatever store it finds."""
    return patched((claiming, "require_run", lambda *_: None))


@CLAIM_BUGS.instead_of(SimulatedStore, "claim")
def half_a_claim_is_done(
    real: Any, self: SimulatedStore, keys: Any, owners: Any, *more: Any
) -> Any:
    """A claim without an answer counts as done."""
    try:
        return real(self, keys, owners, *more)
    except StoreAwayError:
        return owners


@CLAIM_BUGS.instead_of(SimulatedStore, "claim")
def duplicates_by_order_of_arrival(
    real: Any, self: SimulatedStore, keys: Any, owners: Any, *more: Any
) -> Any:
    """A key that was there before makes a duplicate, whoever owns it."""
    known = [bytes(key) in self._kept.claims for key in keys]
    found = real(self, keys, owners, *more).copy()
    found[known] = 0
    return found


@CLAIM_BUGS.instead_of(SimulatedStore, "sweep")
def claims_are_swept_when_over(real: Any, self: SimulatedStore, now_s: int, seconds: float) -> Any:
    """Claims are dropped when they are over, although a range in doubt was told of them."""
    return real(self, now_s + REPEATED_SECONDS_MAX, seconds)
