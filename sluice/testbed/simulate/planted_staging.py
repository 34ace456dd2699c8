"""Bugs on purpose about blocks that are staged; see `planted`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sluice.clickhouse import moving
from sluice.clickhouse.moving import Claim
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import COLUMN_EXISTS, StagingTable, done_statement, marker_name
from sluice.driver import staging as collecting
from sluice.testbed.simulate.planting import Bugs, patched
from sluice.worker import filling, loading, sealed, staging
from sluice.worker.bundle import Bundle

STAGING_BUGS = Bugs()


@STAGING_BUGS.plant
def staged_blocks_named_by_attempt() -> AbstractContextManager[None]:
    """Each attempt has a marker of its own, so none finds what is sealed."""
    numbers = itertools.count()

    def name(table: str, token: str) -> str:
        return marker_name(table, f"{token}/{next(numbers)}")

    return patched((staging, "marker_name", name))


@STAGING_BUGS.plant
def staged_moved_without_a_claim() -> AbstractContextManager[None]:
    """Whoever finds a stored block moves it under the name that it has."""

    move = moving.Mover.move

    def unclaimed(self: Any, name: str, claim: Claim | None) -> str | None:
        return move(self, name, None)

    return patched(
        (moving.Mover, "move", unclaimed),
        (moving.Mover, "_own", lambda *_: SimpleNamespace(suffix="")),
        (moving, "rename", lambda *_: True),
    )


@STAGING_BUGS.plant
def staged_what_is_still_there_was_not_moved() -> AbstractContextManager[None]:
    """A stored block is believed, whatever became of its server meanwhile (H25)."""
    return patched((Claim, "is_clear", lambda self, run: True))


@STAGING_BUGS.plant
def staged_markers_go_with_their_range() -> AbstractContextManager[None]:
    """A marker is dropped as soon as its range is settled."""
    return patched((collecting, "has_expired", lambda *_: True), (collecting, "SEE_EVERY_MS", 0))


@STAGING_BUGS.plant
def staged_blocks_of_others_go_at_once() -> AbstractContextManager[None]:
    """A driver drops what an attempt has filled and not sealed yet, and what it has sealed."""

    return patched((collecting, "to_drop", _stored_ones), (collecting, "SWEEP_EVERY_SECONDS", 1.0))


def _stored_ones(tables: Any, *_: Any) -> list[StagingTable]:
    return [table for table in tables if table.attempt]


@STAGING_BUGS.plant
def staged_token_with_rest() -> AbstractContextManager[None]:
    """After a probe of another table the block has another name, and is filled again."""
    return patched((Bundle, "staged_token", Bundle.token))


@STAGING_BUGS.instead_of(staging.StagedBlock, "_move_all")
def staged_done_before_moved(move_all: Any, self: Any) -> Any:
    """The marker says that a block is moved before it is."""
    if not self._marker.is_done:
        self._run(done_statement(self._table.database, self._marker_name), COLUMN_EXISTS)
    return move_all(self)


@STAGING_BUGS.instead_of(moving.Mover, "move")
def staged_dropped_before_done(move: Any, self: Any, name: str, claim: Claim | None) -> Any:
    """What is moved is dropped before the marker says so: nobody can tell it from what is lost."""
    held = move(self, name, claim)
    if held is not None:
        self.statements.run(f"DROP TABLE {qualified(self.statements.database, held)}")
    return held


@STAGING_BUGS.instead_of(sealed.Sealed, "marker")
def staged_gone_is_moved(read: Any, self: Any) -> Any:
    """A stored block that is not there counts as moved."""
    return replace(read(self), rows_behind=None)


@STAGING_BUGS.plant
def staged_claimed_by_another_is_moved() -> AbstractContextManager[None]:
    """A table that another attempt has claimed since has nothing left to move."""
    return patched((moving.Mover, "_require_claimed", lambda self, name: None))


@STAGING_BUGS.plant
def staged_views_are_not_moved() -> AbstractContextManager[None]:
    """Only what is for the target is moved, and not what views made of it."""

    def tables(self: Any) -> list[StagingTable]:
        return stored(self)[:1]

    stored = filling.Filling.stored
    return patched((filling.Filling, "stored", tables))


@STAGING_BUGS.instead_of(loading, "seal_blocks")
def staged_moved_before_all_are_sealed(seal: Any, *told: Any) -> Iterator[Any]:
    """Each table of a range is moved as soon as its block is sealed."""
    for block in seal(*told):
        block.move()
        yield block
