"""Bugs on purpose about bundles (R19); see `planted`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.core import bundles
from sluice.core.bundles import Member
from sluice.driver import bundling, recording
from sluice.driver.state import Holds, PartitionState
from sluice.testbed.simulate.decoding import DecodedRows, VersionedDecoder, with_rows
from sluice.testbed.simulate.planting import Bugs, patched
from sluice.worker import bundle

BUNDLE_BUGS = Bugs()


@BUNDLE_BUGS.plant
def incomplete_bundle_is_sent() -> AbstractContextManager[None]:
    """What is left of a bundle is sent under its name."""
    return patched(
        (bundling, "is_whole_bundle", lambda members: True),
        (bundle, "is_whole", lambda *_: True),
    )


@BUNDLE_BUGS.plant
def rows_in_order_of_arrival() -> AbstractContextManager[None]:
    """The rows of a bundle's members stand in the order in which a broker sent them."""
    real, turn = VersionedDecoder.decode, itertools.count()

    def decode(self: VersionedDecoder, buffer: Any, origins: Any) -> DecodedRows:
        decoded = real(self, buffer, origins)
        sources = [origin.source for origin in origins.members]
        if next(turn) % 2:
            sources.reverse()
        rows = sorted(decoded.native.rows, key=lambda row: sources.index(row.source))
        return with_rows(decoded, tuple(rows), self._divisor)

    return patched((VersionedDecoder, "decode", decode))


@BUNDLE_BUGS.plant
def members_are_recorded_one_by_one() -> AbstractContextManager[None]:
    """The records of a bundle are written in several transactions."""
    return patched((recording, "bounded", lambda updates: updates[:1]))


@BUNDLE_BUGS.plant
def bundle_named_by_its_partitions() -> AbstractContextManager[None]:
    """The digest says nothing of offsets."""
    real = bundles.bundle_name

    def bundle_name(members: Iterable[Member]) -> str:
        whole = [replace(each.block_range, begin=0, end=1) for each in members]
        return real(Member(each, "", 0) for each in whole)

    return patched((bundles, "bundle_name", bundle_name), (bundling, "bundle_name", bundle_name))


@BUNDLE_BUGS.instead_of(bundling, "_dissolved")
def given_back_while_it_may_land(real: Any, members: list[PartitionState], *more: Any) -> Any:
    """A bundle that is no more is planned anew although some task may have inserted it."""
    for state in members:
        state.untouched = True
    return real(members, *more)


@BUNDLE_BUGS.instead_of(bundling, "_as_first")
def each_member_keeps_its_lease(real: Any, state: PartitionState, update: Any, attempt: int) -> Any:
    """A new attempt renews the lease of the first member only."""
    found = real(state, update, attempt)
    if state.source == update.source:
        return found
    return replace(found, record=replace(found.record, deadline_ms=state.record.deadline_ms))


@BUNDLE_BUGS.instead_of(Holds, "at")
def all_bundles_are_one_hold(
    real: Any, self: Holds, target_shard: Any, states: list[PartitionState], now_ms: int
) -> Any:
    """Of all bundles that may still be inserted one counts against the window."""
    bundled = [state for state in states if state.record.bundle]
    return real(self, target_shard, [s for s in states if s not in bundled] + bundled[:1], now_ms)
