"""Bugs on purpose about what ClickHouse's tables hold: what a probe looks for, columns that change
while drivers run, tables that are parked, other replicas, blocks that are staged; see `planted`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from sluice.clickhouse import comparing, moving, vanishing
from sluice.clickhouse.moving import Claim
from sluice.clickhouse.sql import qualified
from sluice.clickhouse.staging import COLUMN_EXISTS, StagingTable, done_statement, marker_name
from sluice.core.ledger import LedgerView, Rest
from sluice.core.load_spec import TableSpec
from sluice.core.ranges import Range
from sluice.core.receipts import Failed
from sluice.core.routing import Looked, looked
from sluice.decode.routing import Routes
from sluice.driver import dispatching, monitor, probing, report_handler, schema_decision
from sluice.driver import staging as collecting
from sluice.driver.changes import SchemaChanges
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.parking import known_rest
from sluice.driver.probing import ClickHouseProber
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.report_handler import ReportHandler
from sluice.driver.schema_decision import Facts
from sluice.driver.state import Answered, AsRecorded, PartitionState
from sluice.kafka import recorder, tail
from sluice.testbed.simulate.planting import Bugs, patched
from sluice.worker import filling, inserting, loading, sealed, staging
from sluice.worker.assignment import Assignment
from sluice.worker.bundle import Bundle
from sluice.worker.worker_cache import WorkerCache

TABLE_BUGS = Bugs()
REPLACING_BUGS = Bugs()


@TABLE_BUGS.plant
def probe_before_lease_end() -> AbstractContextManager[None]:
    """A probe is believed while tasks may still insert (R11)."""
    return patched((dispatching, "has_expired", lambda *_: True))


@TABLE_BUGS.instead_of(report_handler.ReportHandler, "_take_probe")
def same_probe_not_recorded(real: Any, self: Any, found: Any) -> Any:
    """A probe that finds what an earlier one found is not recorded again."""
    state = self._states[found.source]
    before = state.background.rest
    effects = real(self, found)
    if state.record.rest and before == found.rest:
        state.stage = AsRecorded()
    return effects


@TABLE_BUGS.instead_of(LedgerView, "background")
def rest_is_forgotten(real: Any, self: Any, source: Any) -> Any:
    """A successor loads the whole range where a probe had found a part missing."""
    return replace(real(self, source), rest={})


@TABLE_BUGS.instead_of(dispatching, "Assignment")
def stored_rows_are_loaded_again(_: Any, **parts: Any) -> Any:
    """Of a message of which a probe found some rows, all rows are loaded."""
    return Assignment(**{**parts, "background": replace(parts["background"], stored={})})


@TABLE_BUGS.plant
def some_rows_are_all() -> AbstractContextManager[None]:
    """A message of which the table has a row counts as loaded."""
    return patched((probing, "stored_rows", lambda *_: []))


@TABLE_BUGS.instead_of(report_handler.ReportHandler, "_unknown_schemas")
def schemas_are_judged_without_a_look(real: Any, self: Any, state: Any, *more: Any) -> Any:
    """What a registry does not know becomes dead letters at once, although an earlier attempt may
    have made rows of it."""
    effects = real(self, state, *more)
    if state.has_to_be_probed:
        state.stage = Answered(state.outdated)
    return effects


class _Blind(Routes):
    """To it a message has neither key nor headers, and its value names no table."""

    def read(self, values: Sequence[bytes | None]) -> list[Looked]:
        return [looked(None, (), None) for _ in values]


@TABLE_BUGS.plant
def probe_does_not_read_what_routes_go_by() -> AbstractContextManager[None]:
    """A probe does not see which messages a route takes, so that none of them is missing."""
    return patched((probing, "Routes", _Blind))


@TABLE_BUGS.instead_of(probing, "present_offsets")
def probe_counts_everybodys_rows(real: Any, server: Any, *parts: Any) -> Any:
    """Rows of the same offsets that another pipeline loaded count as loaded."""
    asked = server.query

    def query(sql: str, *more: Any) -> Any:
        return asked(re.sub("AND _source = '[^']+'", "", sql), *more)

    server.query = query
    return real(server, *parts)


@TABLE_BUGS.plant
def merged_rows_are_counted() -> AbstractContextManager[None]:
    """What a merging engine merged away counts as missing."""
    return patched((vanishing, "why_rows_go", lambda *_: None))


@TABLE_BUGS.plant
def windows_of_views_do_not_count() -> AbstractContextManager[None]:
    """Only the table's own window is looked at, not those of the tables that its views write to."""

    def own_only(facts: Any) -> Any:
        return iter([("", facts)])

    return patched(
        (monitor, "tables_with_windows", own_only), (inserting, "tables_with_windows", own_only)
    )


@TABLE_BUGS.instead_of(tail, "make_unstable_reader")
def ledger_is_read_to_its_stable_end(_: Any, *parts: Any) -> Any:
    """What lies behind an open transaction of another producer is not read."""
    return recorder.make_consumer(*parts)  # type: ignore[attr-defined]


@TABLE_BUGS.instead_of(RecordPlanner, "renew")
def repeat_under_todays_spec(real: Any, self: RecordPlanner, *parts: Any, **named: Any) -> Any:
    """A range in doubt is repeated under the load spec of now instead of its own (R8)."""
    step = real(self, *parts, **named)
    return replace(step, record=replace(step.record, spec=self.digest))


@TABLE_BUGS.plant
def hashes_without_columns() -> AbstractContextManager[None]:
    """A server that hashes what it stores is thought to know a block again whatever columns
    were added meanwhile."""
    return patched(
        (comparing, "why_other_hash", lambda *_: None),
        (inserting, "require_same_table", lambda *_, **__: None),
    )


@TABLE_BUGS.plant
def tasks_do_not_look() -> AbstractContextManager[None]:
    """Only the driver looks at the columns, before it sends a range again: a task that sleeps
    inserts into a table that has more columns by then."""
    return patched((inserting, "require_same_table", lambda *_, **__: None))


@TABLE_BUGS.plant
def spec_is_not_recorded() -> AbstractContextManager[None]:
    """The ledger never learns of a load spec that came up while the driver ran."""
    return patched((LoadSpecs, "entries", lambda *_: ()))


@TABLE_BUGS.instead_of(schema_decision, "may_change_spec")
def spec_changed_after_insert(real: Any, facts: Facts, _: object) -> bool:
    """A range in doubt gets the load spec of now although tasks were sent it before."""
    return facts.record.spec != facts.current_digest


@TABLE_BUGS.instead_of(loading._Loading, "decode_first")
def only_first_attempts_ask_for_columns(real: Any, self: Any, *parts: Any) -> Any:
    """A repeated attempt takes new fields for unknown ones: whether they are dead letters depends
    on which attempt it is (R14)."""
    end = real(self, *parts)
    if not self.assignment.is_first:
        self.fields.clear()
    return end


@TABLE_BUGS.instead_of(ClickHouseProber, "_missing")
def stored_is_parked(
    real: Any, self: Any, block_range: Range, table: TableSpec, found_in: Any
) -> Any:
    """All of a range is parked although rows of it may be stored."""
    if table.parked:
        return ((block_range.begin, block_range.end),), ()
    return real(self, block_range, table, found_in)


@TABLE_BUGS.instead_of(ReportHandler, "_refused")
def refusal_is_certain(real: Any, self: Any, state: Any, failed: Failed, now_ms: int) -> Any:
    """Whatever refuses a block is thought to have stored nothing of it."""
    return real(self, state, replace(failed, is_unstored=bool(failed.entry)), now_ms)


@TABLE_BUGS.instead_of(inserting, "_insert_into")
def failover_with_another_token(
    real: Any, block: Any, url: str, token: str, attempt: Any, mine: Any
) -> Any:
    """The next replica is offered the block under a token of its own."""
    own = f"{token}/{len(attempt.failures)}" if attempt.failures else token
    return real(block, url, own, attempt, mine)


@REPLACING_BUGS.instead_of(WorkerCache, "profile")
def window_swallows_repeats(real: Any, self: Any, *parts: Any, deduplicates: bool) -> Any:
    """Blocks go through the window, which may know a block whose rows the table does not have."""
    return real(self, *parts, deduplicates=True)


@REPLACING_BUGS.instead_of(SchemaChanges, "known_rest")
def what_may_come_again_is_there(real: Any, self: Any, state: PartitionState) -> Rest:
    """What a probe need not look for counts as loaded, instead of as missing."""
    return dict.fromkeys(real(self, state), ())


@REPLACING_BUGS.instead_of(SchemaChanges, "known_rest")
def sent_again_under_any_spec(_: Any, self: Any, state: PartitionState) -> Rest:
    """All of a range is sent again, although another load spec may make other rows of it."""
    spec = self._specs.get(state.record.spec)
    return {} if spec is None else known_rest(spec, state.block_range, state.background.rest)


@REPLACING_BUGS.instead_of(ClickHouseProber, "_is_looked_at")
def parked_without_a_look(real: Any, self: Any, table: TableSpec, _: Any) -> bool:
    """What may be sent again is parked although its table has it: whoever replays it doubles it."""
    return bool(real(self, table, ()))


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
    return replace(read(self), is_done=True)


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
