"""Bugs on purpose about blocks that are staged; see `planted`."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sluice.clickhouse.moving import Claim
from sluice.clickhouse.staging import StagingTable, marker_name
from sluice.driver import staging as collecting
from sluice.testbed.simulate.patches import patched
from sluice.worker import moving, staging
from sluice.worker.bundle import Bundle


def _blocks_named_by_attempt() -> AbstractContextManager[None]:
    """Each attempt has a marker of its own, so none finds what is sealed."""
    numbers = itertools.count()

    def name(table: str, token: str) -> str:
        return marker_name(table, f"{token}/{next(numbers)}")

    return patched((staging, "marker_name", name))


def _moved_without_a_claim() -> AbstractContextManager[None]:
    """Whoever finds a stored block moves it under the name that it has."""

    def claim(self: Any, stored: StagingTable) -> str:
        return stored.name

    return patched((moving.Mover, "_claim", claim))


def _what_is_still_there_was_not_moved() -> AbstractContextManager[None]:
    """A stored block is believed, whatever became of its server meanwhile (H25)."""
    return patched((Claim, "is_clear", lambda self, run: True))


def _markers_go_with_their_range() -> AbstractContextManager[None]:
    """A marker is dropped as soon as its range is settled."""
    return patched((collecting, "has_expired", lambda *_: True), (collecting, "SEE_EVERY_MS", 0))


def _stored_blocks_of_others_go_at_once() -> AbstractContextManager[None]:
    """A driver drops what an attempt has filled and not sealed yet, and what it has sealed."""

    def to_drop(tables: Any, *_: Any) -> list[StagingTable]:
        return [table for table in tables if table.attempt]

    return patched((collecting, "to_drop", to_drop), (collecting, "SWEEP_EVERY_SECONDS", 1.0))


def _staged_token_with_rest() -> AbstractContextManager[None]:
    """After a probe of another table the block has another name, and is filled again."""
    return patched((Bundle, "staged_token", Bundle.token))


STAGING_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "staged-blocks-named-by-attempt": _blocks_named_by_attempt,
    "staged-moved-without-a-claim": _moved_without_a_claim,
    "staged-what-is-still-there-was-not-moved": _what_is_still_there_was_not_moved,
    "staged-markers-go-with-their-range": _markers_go_with_their_range,
    "staged-blocks-of-others-go-at-once": _stored_blocks_of_others_go_at_once,
    "staged-token-with-rest": _staged_token_with_rest,
}
