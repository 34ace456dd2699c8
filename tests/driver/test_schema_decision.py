"""What becomes of a range in doubt whose tables may have changed: every case, by its facts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.comparing import Today
from sluice.core.dynamic import DynamicColumns, NewField
from sluice.core.load_spec import Column, LoadSpec, TableSpec
from sluice.core.receipts import Outdated, UnknownSchemas
from sluice.core.records import Kind, Record
from sluice.driver.schema_decision import Change, Decision, Facts, Keep, Probe, Wait, decide
from tests.driver.loop_world import table_spec
from tests.driver.test_specs import facts_of

RULES = DynamicColumns(allow=("x.*",))
GROWING = replace(table_spec("t", ("a",)), dynamic=RULES)


def spec_of(*tables: TableSpec) -> LoadSpec:
    return LoadSpec("p", "c", "chdb 1", 1 << 20, tables)


RECORDED = spec_of(GROWING, table_spec("u", ("a",)))
GROWN = spec_of(replace(GROWING, columns=(Column("x", "String"),)), table_spec("u", ("a",)))
OTHER_U = spec_of(GROWING, table_spec("u", ("a",), "day"))
ONLY_T = spec_of(GROWING)
KNOWING = spec_of(replace(GROWING, schemas=(1, 2)), table_spec("u", ("a",)))

PARKING = replace(
    RECORDED, tables=tuple(replace(each, parked=each.entry == "u") for each in RECORDED.tables)
)

FIELDS = Outdated("t", "fields", (), fields={"t": (NewField("x", "string"),)})
SCHEMAS = Outdated("t", "schemas", (), schemas={"t": UnknownSchemas((3,), (1, 2), 1, 10)})
REFUSED = Outdated("t", "other columns", ())
REFUSED_LATE = Outdated("t", "other columns", ("u",))


def hashing(spec: LoadSpec) -> Today:
    """Tables as a load spec says that they are, on a server that hashes what it stores."""
    facts = {
        table.target: replace(
            facts_of(table.columns, table.table), database="d", partition_key=table.partition_key
        )
        for table in spec.tables
    }
    return Today("chdb 1", "UTC", frozenset({"s1"}), facts, False)


def facts(
    outdated: Outdated | None = None,
    *,
    now: LoadSpec = RECORDED,
    recorded: LoadSpec | None = RECORDED,
    kind: Kind = Kind.INTEND,
    attempt: int = 1,
    altered: bool = False,
    untouched: bool = True,
    tables: Today | None = None,
) -> Facts:
    record = Record(kind, 1, attempt, 0, 10, "me", 0, "id", RECORDED.digest(), 1, 0)
    return Facts(
        topic="a",
        record=record,
        recorded=recorded,
        current=now,
        current_digest=now.digest(),
        tables=tables,
        outdated=outdated,
        untouched=untouched,
        is_altered=altered,
    )


CASES: dict[str, tuple[Facts, Decision]] = {
    "nothing has changed": (facts(), Keep()),
    "today's load spec does not matter to who was not refused": (facts(now=GROWN), Keep()),
    "a table was altered": (facts(altered=True), Probe()),
    "its load spec is not executable any more": (facts(recorded=None, altered=True), Probe()),
    "a refused first attempt": (facts(REFUSED, now=GROWN), Change(Kind.CHANGE_SPEC, GROWN)),
    "an entry that is parked no more has no insert counter in this range": (
        facts(REFUSED, now=GROWN, recorded=PARKING),
        Keep(),
    ),
    "although its table was altered": (
        facts(REFUSED, now=GROWN, altered=True),
        Change(Kind.CHANGE_SPEC, GROWN),
    ),
    "what was inserted is the same under both": (
        facts(REFUSED_LATE, now=GROWN),
        Change(Kind.CHANGE_SPEC, GROWN),
    ),
    "what was inserted is not the same": (facts(REFUSED_LATE, now=OTHER_U), Keep()),
    "nor its table": (facts(REFUSED_LATE, now=OTHER_U, altered=True), Probe()),
    "an entry is gone": (facts(REFUSED, now=ONLY_T, altered=True), Probe()),
    "there is no other load spec": (facts(REFUSED), Keep()),
    "a refused second attempt": (facts(REFUSED, now=GROWN, attempt=2, altered=True), Probe()),
    "a refused repeat": (facts(REFUSED, now=GROWN, kind=Kind.RENEW), Keep()),
    "a refused load spec that is unknown": (facts(REFUSED, recorded=None, altered=True), Probe()),
    "fields that have no column": (facts(FIELDS), Wait(columns=FIELDS.fields)),
    "fields that have one by now": (facts(FIELDS, now=GROWN), Change(Kind.ADD_COLUMNS, GROWN)),
    "in whatever attempt": (
        facts(FIELDS, now=GROWN, kind=Kind.RENEW, attempt=5, untouched=False, altered=True),
        Change(Kind.ADD_COLUMNS, GROWN),
    ),
    "fields, and another entry's table has other columns": (
        facts(FIELDS, now=GROWN, altered=True, tables=hashing(OTHER_U)),
        Probe(),
    ),
    "fields of an entry that nobody gives columns any more": (
        facts(FIELDS, now=spec_of(table_spec("u", ("a",)))),
        Change(Kind.ADD_COLUMNS, spec_of(replace(GROWING, dynamic=None), table_spec("u", ("a",)))),
    ),
    "schemas that the registry does not know": (facts(SCHEMAS), Change(Kind.ADD_COLUMNS, KNOWING)),
    "and somebody may have inserted": (facts(SCHEMAS, untouched=False, altered=True), Probe()),
}


@pytest.mark.parametrize("case", CASES)
def test_each_case_has_its_decision(case: str) -> None:
    given, expected = CASES[case]
    assert decide(given) == expected


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_decided_by_tables_that_were_read_too_long_ago(case: str) -> None:
    given, expected = CASES[case]
    stale, coming = replace(given, is_fresh=False), replace(given, are_columns_coming=True)
    waits_for_columns = isinstance(expected, Wait)
    assert decide(stale) == (expected if waits_for_columns else Wait(reading=True))
    assert decide(coming) == (expected if waits_for_columns else Wait())
    assert decide(replace(coming, is_fresh=False)) == decide(coming), "a reading would be too early"


@pytest.mark.parametrize("case", CASES)
def test_where_nobody_reads_the_tables_nothing_waits(case: str) -> None:
    given, _ = CASES[case]
    assert not isinstance(decide(replace(given, is_read=False, is_fresh=False)), Wait)
