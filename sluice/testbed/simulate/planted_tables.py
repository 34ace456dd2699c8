"""Bugs on purpose about what ClickHouse's tables hold: what a probe looks for, columns that change
while drivers run, tables that are parked, other replicas; see `planted`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.clickhouse import comparing, probe, vanishing
from sluice.core.ledger import Background, LedgerView, Rest
from sluice.core.load_spec import TableSpec
from sluice.core.ranges import Range
from sluice.core.receipts import Failed, Receipt
from sluice.driver import changes, dispatching, monitor, probing, report_handler, schema_decision
from sluice.driver.changes import SchemaChanges
from sluice.driver.parking import known_rest
from sluice.driver.probing import ClickHouseProber
from sluice.driver.record_updates import RecordPlanner, RecordUpdate
from sluice.driver.report_handler import ReportHandler
from sluice.driver.schema_decision import Facts
from sluice.driver.state import Answered, AsRecorded, PartitionState
from sluice.kafka import ledger, recorder
from sluice.testbed.simulate.patches import patched
from sluice.worker import inserting, loading
from sluice.worker.assignment import Assignment
from sluice.worker.worker_cache import WorkerCache


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


def _repeat_under_todays_spec() -> AbstractContextManager[None]:
    """A range in doubt is repeated under the load spec of now instead of its own (R8)."""
    real = RecordPlanner.renew

    def renew(self: RecordPlanner, *parts: Any, **named: Any) -> RecordUpdate:
        step = real(self, *parts, **named)
        return replace(step, record=replace(step.record, spec=self.digest))

    return patched((RecordPlanner, "renew", renew))


def _hashes_without_columns() -> AbstractContextManager[None]:
    """A server that hashes what it stores is thought to know a block again whatever columns
    were added meanwhile."""
    return patched(
        (comparing, "why_other_hash", lambda *_: None),
        (inserting, "require_same_table", lambda *_, **__: None),
    )


def _tasks_do_not_look() -> AbstractContextManager[None]:
    """Only the driver looks at the columns, before it sends a range again: a task that sleeps
    inserts into a table that has more columns by then."""
    return patched((inserting, "require_same_table", lambda *_, **__: None))


def _spec_is_not_recorded() -> AbstractContextManager[None]:
    """The ledger never learns of a load spec that came up while the driver ran."""
    return patched((changes.SchemaChanges, "entries", lambda *_: ()))


def _spec_changed_after_insert() -> AbstractContextManager[None]:
    """A range in doubt gets the load spec of now although tasks were sent it before."""

    def may_change_spec(facts: Facts, _: object) -> bool:
        return facts.record.spec != facts.current_digest

    return patched((schema_decision, "may_change_spec", may_change_spec))


def _only_first_attempts_ask() -> AbstractContextManager[None]:
    """A repeated attempt takes new fields for unknown ones: whether they are dead letters depends
    on which attempt it is (R14)."""
    real = loading._Loading.decode_first

    def decode_first(self: Any, *parts: Any) -> Any:
        end = real(self, *parts)
        if not self.assignment.is_first:
            self.fields.clear()
        return end

    return patched((loading._Loading, "decode_first", decode_first))


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


def _failover_with_another_token() -> AbstractContextManager[None]:
    """The next replica is offered the block under a token of its own."""
    real: Callable[..., Receipt] = inserting._insert_into

    def insert_into(*parts: Any) -> Receipt:
        *before, token, lease, attempt, mine = parts
        own = f"{token}/{len(attempt.failures)}" if attempt.failures else token
        return real(*before, own, lease, attempt, mine)

    return patched((inserting, "_insert_into", insert_into))


TABLE_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
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
    "repeat-under-todays-spec": _repeat_under_todays_spec,
    "hashes-without-columns": _hashes_without_columns,
    "tasks-do-not-look": _tasks_do_not_look,
    "spec-is-not-recorded": _spec_is_not_recorded,
    "spec-changed-after-insert": _spec_changed_after_insert,
    "only-first-attempts-ask-for-columns": _only_first_attempts_ask,
    "stored-is-parked": _stored_is_parked,
    "refusal-is-certain": _refusal_is_certain,
    "failover-with-another-token": _failover_with_another_token,
}


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
