"""Bugs on purpose about tables that keep one of equal rows; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sluice.core.ledger import Rest
from sluice.driver.changes import SchemaChanges
from sluice.driver.parking import known_rest
from sluice.driver.state import PartitionState
from sluice.testbed.simulate.patches import patched
from sluice.worker.worker_cache import WorkerCache


def _window_swallows_repeats() -> AbstractContextManager[None]:
    """Blocks go through the window, which may know a block whose rows the table does not have."""
    real = WorkerCache.profile

    def profile(self: Any, *parts: Any, deduplicates: bool) -> Any:
        return real(self, *parts, deduplicates=True)

    return patched((WorkerCache, "profile", profile))


def _what_may_come_again_is_there() -> AbstractContextManager[None]:
    """What a probe need not look for counts as loaded, instead of as missing."""
    real = SchemaChanges.known_rest

    def known(self: Any, state: PartitionState) -> Rest:
        return dict.fromkeys(real(self, state), ())

    return patched((SchemaChanges, "known_rest", known))


def _sent_again_under_any_spec() -> AbstractContextManager[None]:
    """All of a range is sent again, although another load spec may make other rows of it."""

    def known(self: Any, state: PartitionState) -> Rest:
        spec = self._specs.get(state.record.spec)
        return {} if spec is None else known_rest(spec, state.block_range, state.background.rest)

    return patched((SchemaChanges, "known_rest", known))


REPLACING_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "window-swallows-repeats": _window_swallows_repeats,
    "what-may-come-again-is-there": _what_may_come_again_is_there,
    "sent-again-under-any-spec": _sent_again_under_any_spec,
}
