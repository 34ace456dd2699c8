"""Bugs on purpose about tables that are altered while drivers run; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.clickhouse import comparing
from sluice.driver import changes, schema_decision
from sluice.driver.record_updates import RecordPlanner, RecordUpdate
from sluice.driver.schema_decision import Facts
from sluice.testbed.simulate.patches import patched
from sluice.worker import inserting, loading


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


SCHEMA_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "repeat-under-todays-spec": _repeat_under_todays_spec,
    "hashes-without-columns": _hashes_without_columns,
    "tasks-do-not-look": _tasks_do_not_look,
    "spec-is-not-recorded": _spec_is_not_recorded,
    "spec-changed-after-insert": _spec_changed_after_insert,
    "only-first-attempts-ask-for-columns": _only_first_attempts_ask,
}
