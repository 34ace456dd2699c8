"""Bugs on purpose about tables that are parked; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.core.load_spec import TableSpec
from sluice.core.ranges import Range
from sluice.core.receipts import Failed
from sluice.driver.probing import ClickHouseProber
from sluice.driver.report_handler import ReportHandler
from sluice.testbed.simulate.patches import patched


def _stored_is_parked() -> AbstractContextManager[None]:
    """All of a range is parked although rows of it may be stored."""
    real = ClickHouseProber._missing

    def missing(self: Any, block_range: Range, table: TableSpec, found_in: Any) -> Any:
        if table.parked:
            return ((block_range.begin, block_range.end),), ()
        return real(self, block_range, table, found_in)

    return patched((ClickHouseProber, "_missing", missing))


def _refusal_is_certain() -> AbstractContextManager[None]:
    """Whatever refuses a block is thought to have stored nothing of it."""
    real = ReportHandler._refused

    def refused(self: Any, state: Any, failed: Failed, now_ms: int) -> Any:
        return real(self, state, replace(failed, is_unstored=bool(failed.entry)), now_ms)

    return patched((ReportHandler, "_refused", refused))


PARKING_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "stored-is-parked": _stored_is_parked,
    "refusal-is-certain": _refusal_is_certain,
}
