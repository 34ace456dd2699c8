"""Which functions make another value of the same row on a repetition (H11)."""

from __future__ import annotations

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.decode.engine.expressions import (
    computed_volatile,
    nondeterministic_functions,
    referenced_columns,
)

COLUMNS = (
    Column("id", "UInt64"),
    Column("at", "DateTime", "DEFAULT", "now()"),
    Column("day", "Date", "MATERIALIZED", "toDate(at)"),
    Column("month", "UInt32", "ALIAS", "toYYYYMM(day)"),
    Column("odd name", "UInt8", "DEFAULT", "rand() % 10"),
    Column("fine", "UInt64", "DEFAULT", "cityHash64(id, 'now()')"),
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("", ()),
        ("tuple()", ()),
        ("id", ()),
        ("cityHash64(id, 'rand()')", ()),
        ("(fine, toYYYYMM(toDateTime(id)))", ()),
        ("toYYYYMM(now())", ("now",)),
        ("NOW()", ("NOW",)),
        ("at", ("now",)),
        ("month", ("now",)),
        ("(id, `odd name`)", ("rand",)),
        ("(month, `odd name`, today())", ("now", "rand", "today")),
        ("generateUUIDv4()", ("generateUUIDv4",)),
        ("dictGet('d', 'a', id)", ("dictGet",)),
        ("hostName()", ("hostName",)),
        ("arrayMap(x -> x + rand64(), [id])", ("rand64",)),
        ("id IN (SELECT 1)", ("subquery",)),
        ("arrayMap((x, y) -> x + y, [id], [1])[1]::UInt8 = CASE id WHEN 1 THEN 2 END", ()),
        ("(id IS NULL, id NOT IN (1, 2), NOT id, -id, id ? 1 : 2, toDate('2026-01-02') + 1)", ()),
        ("toYear(parseDateTime(toString(id), '%Y')) + INTERVAL 1 DAY", ()),
        ("parseDateTimeBestEffort(toString(id))", ("parseDateTimeBestEffort",)),
        ("parseDateTime64BestEffortUSOrNull('x')", ("parseDateTime64BestEffortUSOrNull",)),
        ("parseDateTime32BestEffort('x')", ("parseDateTime32BestEffort",)),
        (
            "(yesterday(), UTCTimestamp(), nowInBlock())",
            ("UTCTimestamp", "nowInBlock", "yesterday"),
        ),
        ("(tid(), getSetting('x'), currentProfiles())", ("currentProfiles", "getSetting", "tid")),
        ("(joinGet('t', 'a', id), file('x'))", ("file", "joinGet")),
        ("regionToName(id)", ("regionToName",)),
        ("runningDifference(id)", ("runningDifference",)),
        ("sum(id)", ("sum",)),
        ("row_number() OVER (ORDER BY id)", ("row_number",)),
        ("somebodys_own(id)", ("somebodys_own",)),
    ],
)
def test_nondeterministic_functions(expression: str, expected: tuple[str, ...]) -> None:
    assert nondeterministic_functions(expression, COLUMNS) == expected


#: Functions that answer from the clock, chance, the host, or data outside of the row.
VOLATILE = """
    now now64 nowinblock nowinblock64 today yesterday current_timestamp current_date curdate
    utctimestamp utc_timestamp localtime localtimestamp timezone servertimezone hostname
    fqdn uptime version serveruuid currentdatabase currentuser user getmacro getsetting
    rownumberinblock rownumberinallblocks blocknumber blocksize runningdifference
    runningaccumulate neighbor rand rand32 rand64 randconstant canonicalrand randuniform
    generateuuidv4 generateuuidv7 generateulid generatesnowflakeid joinget
    filesystemavailable filesystemcapacity tcpport queryid initialqueryid connectionid tid
    dictget dicthas dictisin generatesnowflakeidtothread
"""


def test_the_engine_calls_none_of_these_deterministic() -> None:
    """No list of Sluice's names them."""
    for name in VOLATILE.split():
        assert nondeterministic_functions(f"{name}()", COLUMNS) == (name,)


def test_referenced_columns() -> None:
    names = [column.name for column in referenced_columns("id + length(`odd name`)", COLUMNS)]
    assert names == ["id", "odd name"]


def test_what_cannot_be_parsed_is_terminal() -> None:
    with pytest.raises(TerminalError, match="cannot be parsed"):
        nondeterministic_functions("toYYYYMM(", COLUMNS)


def test_columns_that_are_computed_otherwise_on_a_repetition() -> None:
    found = computed_volatile((*COLUMNS, Column("later", "Date", "MATERIALIZED", "day + 1")))
    assert found == {"at": ("now",), "day": ("now",), "odd name": ("rand",), "later": ("now",)}
