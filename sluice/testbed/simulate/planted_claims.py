"""Bugs on purpose about claims (R20); see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np

from sluice.claims.owners import OWNER
from sluice.claims.port import StoreAwayError
from sluice.core.claims import CLAIMS, REPEATED_SECONDS_MAX
from sluice.driver import claims, connector, remembering
from sluice.driver.claims import RebuildNow
from sluice.driver.record_updates import RecordPlanner
from sluice.testbed.simulate.patches import patched
from sluice.testbed.simulate.store import SimulatedStore
from sluice.worker import claiming, loading
from sluice.worker.bundle import Bundle


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


def _owned_by_range() -> AbstractContextManager[None]:
    """The range that claims a key owns it, not the message."""

    def change(bundle: Bundle, fields: Any) -> None:
        fields["offset"], fields["row"] = bundle.first.begin, 0

    return _owned_by(change)


def _owned_by_attempt() -> AbstractContextManager[None]:
    """Each attempt owns what it claims, as if it were another generation."""

    def change(bundle: Bundle, fields: Any) -> None:
        fields["loader"] += bundle.members[0].record.attempt

    return _owned_by(change)


def _repeated_under_another_run() -> AbstractContextManager[None]:
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


def _claimed_before_validation() -> AbstractContextManager[None]:
    """Messages that make no row own keys, too."""
    real = claiming.claim

    def claim(store: Any, bundle: Any, table: Any, row_keys: Any, decoded: Any, *more: Any) -> Any:
        origins, loader = more
        keys, places = row_keys.of_bad(decoded, origins)
        if len(keys):
            since_s = bundle.since_ms // 1000
            owners = bundle.owners(origins, loader, places, np.zeros(len(places), np.uint32))
            store.claim(keys, owners, since_s + table.deduplicate.window_seconds, since_s)
        return real(store, bundle, table, row_keys, decoded, *more)

    return patched((loading, "claim", claim))


def _opened_while_tasks_are_out() -> AbstractContextManager[None]:
    """A store that may lack claims is opened while blocks may come under those."""
    return patched((claims, "may_still_insert", lambda *_: False))


def _not_rebuilt() -> AbstractContextManager[None]:
    """A store that may lack claims is opened as it is."""
    return patched((connector, "rebuild", lambda *_: None))


def _rebuilt_since_now() -> AbstractContextManager[None]:
    """Only what comes from now on is claimed again, as if nothing had been lost."""
    real = claims.next_step

    def next_step(*parts: Any, now_ms: int, **named: Any) -> Any:
        step = real(*parts, now_ms=now_ms, **named)
        if isinstance(step, RebuildNow):
            return RebuildNow(dict.fromkeys(step.since_ms, now_ms))
        return step

    return patched((claims, "next_step", next_step))


def _now_is_the_clock() -> AbstractContextManager[None]:
    """Whether a claim is over is judged by the time of the attempt."""
    real = SimulatedStore.claim

    def claim(self: SimulatedStore, keys: Any, owners: Any, until_s: int, now_s: int) -> Any:
        clock_s = self._world.wall_ms() // 1000
        return real(self, keys, owners, until_s - now_s + clock_s, clock_s)

    return patched((SimulatedStore, "claim", claim))


def _tasks_do_not_compare_runs() -> AbstractContextManager[None]:
    """A task claims in whatever store it finds."""
    return patched((claiming, "require_run", lambda *_: None))


def _half_is_done() -> AbstractContextManager[None]:
    """A claim without an answer counts as done."""
    real = SimulatedStore.claim

    def claim(self: SimulatedStore, keys: Any, owners: Any, *more: Any) -> Any:
        try:
            return real(self, keys, owners, *more)
        except StoreAwayError:
            return owners

    return patched((SimulatedStore, "claim", claim))


def _decided_by_arrival() -> AbstractContextManager[None]:
    """A key that was there before makes a duplicate, whoever owns it."""
    real = SimulatedStore.claim

    def claim(self: SimulatedStore, keys: Any, owners: Any, *more: Any) -> Any:
        known = [bytes(key) in self._kept.claims for key in keys]
        found = real(self, keys, owners, *more).copy()
        found[known] = 0
        return found

    return patched((SimulatedStore, "claim", claim))


def _swept_when_over() -> AbstractContextManager[None]:
    """Claims are dropped when they are over, although a range in doubt was told of them."""
    real = SimulatedStore.sweep

    def sweep(self: SimulatedStore, now_s: int, seconds: float) -> int:
        return real(self, now_s + REPEATED_SECONDS_MAX, seconds)

    return patched((SimulatedStore, "sweep", sweep))


CLAIM_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "claims-are-owned-by-ranges": _owned_by_range,
    "claims-are-owned-by-attempts": _owned_by_attempt,
    "repeated-under-another-run": _repeated_under_another_run,
    "claimed-before-validation": _claimed_before_validation,
    "store-opened-while-tasks-are-out": _opened_while_tasks_are_out,
    "lost-claims-are-not-made-again": _not_rebuilt,
    "claims-are-made-again-since-now": _rebuilt_since_now,
    "claims-end-by-the-clock": _now_is_the_clock,
    "tasks-do-not-compare-runs": _tasks_do_not_compare_runs,
    "half-a-claim-is-done": _half_is_done,
    "duplicates-by-order-of-arrival": _decided_by_arrival,
    "claims-are-swept-when-over": _swept_when_over,
}
