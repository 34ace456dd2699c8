"""Bugs on purpose about what is looked for in ClickHouse; see `planted`."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.clickhouse import probe, vanishing
from sluice.core.ledger import Background, LedgerView
from sluice.driver import dispatching, monitor, probing, report_handler
from sluice.driver.state import Answered, AsRecorded
from sluice.kafka import ledger, recorder
from sluice.testbed.simulate.patches import patched
from sluice.worker import inserting
from sluice.worker.assignment import Assignment


def _probe_before_lease_end() -> AbstractContextManager[None]:
    """A probe is believed while tasks may still insert (R11)."""
    return patched((dispatching, "has_expired", lambda *_: True))


def _same_probe_not_recorded() -> AbstractContextManager[None]:
    """A probe that finds what an earlier one found is not recorded again."""
    real = report_handler.ReportHandler._take_probe

    def take_probe(self: Any, found: Any) -> Any:
        state = self._states[found.source]
        before = state.background.rest
        effects = real(self, found)
        if state.record.rest and before == found.rest:
            state.stage = AsRecorded()
        return effects

    return patched((report_handler.ReportHandler, "_take_probe", take_probe))


def _rest_is_forgotten() -> AbstractContextManager[None]:
    """A successor loads the whole range where a probe had found a part missing."""
    real = LedgerView.background

    def background(self: Any, source: Any) -> Background:
        return replace(real(self, source), rest={})

    return patched((LedgerView, "background", background))


def _stored_rows_are_loaded_again() -> AbstractContextManager[None]:
    """Of a message of which a probe found some rows, all rows are loaded."""

    def assignment(**parts: Any) -> Any:
        return Assignment(**{**parts, "stored": {}})

    return patched((dispatching, "Assignment", assignment))


def _some_rows_are_all() -> AbstractContextManager[None]:
    """A message of which the table has a row counts as loaded."""
    return patched((probing, "stored_rows", lambda *_: []))


def _schemas_are_judged_without_a_look() -> AbstractContextManager[None]:
    """What a registry does not know becomes dead letters at once, although an earlier attempt may
    have made rows of it."""
    real = report_handler.ReportHandler._unknown_schemas

    def unknown_schemas(self: Any, state: Any, *more: Any) -> Any:
        effects = real(self, state, *more)
        if state.has_to_be_probed:
            state.stage = Answered(state.outdated)
        return effects

    return patched((report_handler.ReportHandler, "_unknown_schemas", unknown_schemas))


def _probe_counts_everybodys_rows() -> AbstractContextManager[None]:
    """Rows of the same offsets that another pipeline loaded count as loaded."""
    real = probe.present_offsets

    def present_offsets(server: Any, *parts: Any) -> Any:
        asked = server.query

        def query(sql: str, *more: Any) -> Any:
            return asked(re.sub("AND _source = '[^']+'", "", sql), *more)

        server.query = query
        return real(server, *parts)

    return patched((probing, "present_offsets", present_offsets))


def _merged_rows_are_counted() -> AbstractContextManager[None]:
    """What a merging engine merged away counts as missing."""
    return patched((vanishing, "why_rows_go", lambda *_: None))


def _windows_of_views_do_not_count() -> AbstractContextManager[None]:
    """Only the table's own window is looked at, not those of the tables that its views write to."""

    def own_only(facts: Any) -> Any:
        return iter([("", facts)])

    return patched(
        (monitor, "tables_with_windows", own_only), (inserting, "tables_with_windows", own_only)
    )


def _ledger_is_read_to_its_stable_end() -> AbstractContextManager[None]:
    """What lies behind an open transaction of another producer is not read."""

    def make_unstable_reader(*parts: Any) -> Any:
        return recorder.make_consumer(*parts)  # type: ignore[attr-defined]

    return patched((ledger, "make_unstable_reader", make_unstable_reader))


PROBE_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "probe-before-lease-end": _probe_before_lease_end,
    "same-probe-not-recorded": _same_probe_not_recorded,
    "rest-is-forgotten": _rest_is_forgotten,
    "stored-rows-are-loaded-again": _stored_rows_are_loaded_again,
    "some-rows-are-all": _some_rows_are_all,
    "schemas-are-judged-without-a-look": _schemas_are_judged_without_a_look,
    "merged-rows-are-counted": _merged_rows_are_counted,
    "windows-of-views-do-not-count": _windows_of_views_do_not_count,
    "probe-counts-everybodys-rows": _probe_counts_everybodys_rows,
    "ledger-is-read-to-its-stable-end": _ledger_is_read_to_its_stable_end,
}
