"""Whether a text of a date and time says one that there is, and that it can only mean.

The engine's best-effort reader takes more: `12/31/2026` is the 31st of December and `01/02/2026`
the 1st of February, so a column of dates with the month in front would be half wrong; the 61st
minute, the 25th hour and the day 00 become others; `31 12 2026` is 12 o'clock [measured, ClickHouse
26.9]. Digits of a second that a column does not keep are cut.

The verdict here follows from the text alone, for texts that the engine takes; what it refuses is
refused anyway. Python and SQL use the same expressions.
"""

from __future__ import annotations

import re

from sluice.decode.engine.session import literal
from sluice.decode.engine.years import lacks_year
from sluice.decode.engine.years import without_year as sql_without_year

NO_YEAR = "it has no year"
EXCHANGED = "its day and month could be exchanged"
NO_MOMENT = "there is no such day or time, or none that is clear"
FRACTION = "it has more digits of a second than the column keeps"

_BEGIN, _END = "(?:^|[^-/.0-9])", "(?:[^0-9]|$)"
_YEAR_BEHIND = f"[-/.](?:[0-9]{{4}}|[0-9]{{2}}){_END}"


def _month(number: int) -> str:
    return f"0?{number}" if number < 10 else str(number)


def _other_months(number: int) -> str:
    return "|".join(_month(other) for other in range(12, 0, -1) if other != number)


#: A day and a month that could as well be a month and a day, with a stroke or a hyphen between. A
#: point stands behind the day: where it stands behind the month, the text is none of these dates.
_EXCHANGED = "|".join(
    (
        *(
            f"{_BEGIN}{_month(number)}[-/](?:{_other_months(number)}){_YEAR_BEHIND}"
            for number in range(1, 13)
        ),
        f"{_BEGIN}(?:0?[1-9]|1[0-2])[.](?:1[3-9]|[23][0-9]){_YEAR_BEHIND}",
    )
)
_TIME = "(?:2[4-9]|[3-9][0-9])[0-9]{4}|[0-9]{2}[6-9][0-9]{3}|[0-9]{4}[6-9][0-9]"
_NO_MOMENT = "|".join(
    (
        f"{_BEGIN}[0-9]{{4}}[-/.]0?0{_END}",
        f"{_BEGIN}[0-9]{{4}}[-/.][0-9]{{1,2}}[-/.]0?0{_END}",
        f"{_BEGIN}0?0[-/.](?:[0-9]{{1,2}}|[A-Za-z]+)[-/.]",
        f"{_BEGIN}[0-9]{{1,2}}[-/.]0?0[-/.]",
        "(?:^|[^0-9])00? *(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)",
        f"^[0-9]{{4}}00{_END}",
        f"(?:^|[^.0-9])[0-9]{{4}}(?:00[0-9]{{2}}|[0-9]{{2}}00)(?:[0-9]{{6}})?{_END}",
        "(?:^|[^0-9:])(?:2[4-9]|[3-9][0-9]):[0-9]",
        f":[6-9][0-9]{_END}",
        f"(?:^|[^.0-9])[0-9]{{8}}[ T]?(?:{_TIME}){_END}",
        f"[ T](?:{_TIME}){_END}",
        f"(?:^|[^0-9:])[0-9]{{1,2}}[ ,]+[0-9]{{1,2}}[ ,]+[0-9]{{4}}{_END}",
        "[0-9]{4} +[0-9]{1,2}(?: *$| +[0-9])",
    )
)
_exchanged, _no_moment = re.compile(_EXCHANGED).search, re.compile(_NO_MOMENT).search
#: So many digits behind the second are more than any type has.
CUT = 20


def problem(text: str, scale: int) -> str:
    """Why a text of a date and time is not to be read, as words; "" if nothing is wrong.

    :param scale: how many digits of a second are kept; CUT: the others are cut.
    """
    if lacks_year(text):
        return NO_YEAR
    if _exchanged(text):
        return EXCHANGED
    if _no_moment(text):
        return NO_MOMENT
    return FRACTION if cuts(text, scale) else ""


def cuts(text: str, scale: int) -> bool:
    """Whether a text has a digit of a second, not 0, that is not kept."""
    if scale == CUT:
        return False
    if len(text) in (13, 16, 19) and text.isdigit():
        return text[10 + scale :].strip("0") != ""
    return re.search(_fraction(scale), text) is not None


def _fraction(scale: int) -> str:
    return f"(?::[0-9]{{1,2}}|[0-9]{{6}})[.][0-9]{{{scale}}}[0-9]*[1-9]"


def _usual(scale: int) -> str:
    kept = f"(?:[.][0-9]{{1,{scale}}})?" if scale else ""
    return (
        "^(?:[1-9][0-9]{3})-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
        f"(?:[ T](?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9]{kept})?"
        "(?:Z|[-+](?:0[0-9]|1[0-4]):?[0-5][0-9])?)?$"
    )


def is_problem(value: str, scale: int) -> str:
    """SQL of a String: whether `problem` finds something else than a fraction. Most texts are of
    the usual form, which takes one look."""
    tests = [
        sql_without_year(value),
        f"match({value}, {literal(_EXCHANGED)})",
        f"match({value}, {literal(_NO_MOMENT)})",
    ]
    return f"(NOT match({value}, {literal(_usual(min(scale, 9)))}) AND ({' OR '.join(tests)}))"


def is_cut(value: str, scale: int) -> str:
    """SQL of a String: whether `cuts` says so."""
    if scale == CUT:
        return "0"
    number = f"length({value}) IN (13, 16, 19) AND match({value}, '^[0-9]+$')"
    return (
        f"if({number}, match(substring({value}, {11 + scale}), '[1-9]'), "
        f"match({value}, {literal(_fraction(scale))}))"
    )
