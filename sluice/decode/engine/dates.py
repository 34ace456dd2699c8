"""Whether a text of a date and time says one that there is, and that it can only mean.

The engine's best-effort reader takes more: `12/31/2026` is the 31st of December and `01/02/2026`
the 1st of February, so a column of dates with the month in front would be half wrong; the 61st
minute, the 25th hour and the day 00 become others; `31 12 2026` is 12 o'clock [measured, ClickHouse
26.9]. Digits of a second that a column does not keep are cut.

The verdict here follows from the text alone, for texts that the engine takes; what it refuses is
refused anyway. Python and SQL use the same expressions.

Nor may its year be missing. The best-effort reader completes `12`, `10:30` or `5 Jan` with the year
in which it reads them, so the same message would be another row in another year. A year written
0000 counts as none there. For every text that the engine takes, the verdict is whether the year of
the value, or the seconds since 1970, stand in it [measured, ClickHouse 26.9:
tests/decode/test_years.py].
"""

from __future__ import annotations

import re

from sluice.decode.engine.session import literal

#: A year, alone or with month, day and time behind it, or seconds since 1970; the month is not
#: known yet, else six digits are a time of day.
_YEAR = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY_MONTH = "[0-9]{1,2}[-/.](?:[0-9]{1,2}|[A-Za-z]{3,9})"
_SAID = (
    f"{_YEAR}(?:[0-9]{{4}}|[0-9]{{10}})?|[0-9]{{9,10}}|[0-9]{{13}}|[0-9]{{16}}|[0-9]{{19}}"
    f"|{_DAY_MONTH}[-/.](?:{_YEAR}|[0-9]{{2}})"
)
_YEAR_MONTH = f"{_YEAR}[0-9]{{2}}"
#: What may stand before it: words that are no month, days, times of day, offsets of time zones.
#: Behind digits stands no digit, or they would be others.
_GAP = "[ ,]|Z"
_WORD = "(?i:mon|tue|wed|thu|fri|sat|sun|utc|gmt|msk|msd|am|pm)[A-Za-z]*"
_MONTH = "(?i:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[A-Za-z]*"
_OFFSET = "[0-9]{1,4}(?::[0-9]{1,2})?"
_OFFSETS = f"(?:[-+]{_OFFSET})*"
_TIME = "[0-9]{1,2}:[0-9]{1,2}(?::[0-9]{1,2})?(?:[.][0-9]{0,18})?"
_DAY = "[0-9]{1,2}"
#: Behind a day, a hyphen is part of the date.
_OFFSETS_OF_DAY = f"(?:[+]{_OFFSET}{_OFFSETS})?"


def _digits(times: str, days: str) -> str:
    return f"(?:(?:{times}){_OFFSETS}|(?:{days}){_OFFSETS_OF_DAY}|[-+]{_OFFSET}{_OFFSETS})"


def _before(times: str, days: str, word: str) -> str:
    """Any number of these, each with something between it and the next."""
    return f"(?:{_GAP}|{word}|{_digits(times, days)}(?:{_GAP}|{word}))*"


_ANY_WORD = f"{_WORD}|{_MONTH}"
_FIRST_MONTH = (
    f"(?:{_digits(_TIME, _DAY)}?{_MONTH}|{_DAY_MONTH}{_OFFSETS_OF_DAY}(?:{_GAP}|{_ANY_WORD}))"
)
_MORE = _before(f"{_TIME}|[0-9]{{6}}", f"{_DAY}|{_DAY_MONTH}", _ANY_WORD)
PATTERN = (
    f"^{_before(_TIME, _DAY, _WORD)}"
    f"(?:{_SAID}|{_YEAR_MONTH}|{_FIRST_MONTH}{_MORE}(?:{_SAID}))(?:[^0-9]|$)"
)
_says_year = re.compile(PATTERN).match
#: Longer texts, and those of more letters, than a date and time that is written out: words of a
#: date that follow each other without a gap may be divided in more ways than Python can try.
_TEXT_MAX, _LETTERS_MAX = 64, 24
_letters = re.compile("[A-Za-z]").findall
#: A word that no date begins with: the engine refuses such a text in words of its own.
_FOREIGN = re.compile(
    "(?![z])(?!(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec|mon|tue|wed|thu|fri|sat|sun"
    "|utc|gmt|msk|msd)|[a-z]m(?![a-z]))[a-z]",
    re.IGNORECASE,
)
#: What nothing but dates is made of.
_DATE = re.compile(
    "(?:[-+0-9 ,.:/TZ]|(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?"
    "|aug(?:ust)?|sep(?:tember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?|mon(?:day)?|tue(?:sday)?"
    "|wed(?:nesday)?|thu(?:rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?|utc|gmt|msk|msd|am|pm))*",
    re.IGNORECASE,
)


def says_year(text: str) -> bool:
    """Of a text that the engine reads as a DateTime or DateTime64."""
    if len(text) > _TEXT_MAX or len(_letters(text)) > _LETTERS_MAX:
        return _says_year_somewhere(text)
    return _says_year(text) is not None


def _says_year_somewhere(text: str) -> bool:
    """The same by RE2, as in SQL: its time grows with the text and no faster. 0.6 ms."""
    import pyarrow
    from pyarrow import compute

    value = pyarrow.scalar(text.encode(errors="replace"), pyarrow.binary())
    return bool(compute.match_substring_regex(value, PATTERN).as_py())


def lacks_year(text: str) -> bool:
    """Whether the engine might complete the text."""
    return not says_year(text) and _FOREIGN.match(text) is None


def may_be_date(text: str) -> bool:
    """Whether the engine might take the text for a date; false only if it does not."""
    return _DATE.fullmatch(text) is not None


def without_year(value: str) -> str:
    """The same as SQL, of a String; true where no year stands."""
    return f"NOT match({value}, {literal(PATTERN)})"


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
_NO_TIME = "(?:2[4-9]|[3-9][0-9])[0-9]{4}|[0-9]{2}[6-9][0-9]{3}|[0-9]{4}[6-9][0-9]"
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
        f"(?:^|[^.0-9])[0-9]{{8}}[ T]?(?:{_NO_TIME}){_END}",
        f"[ T](?:{_NO_TIME}){_END}",
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
        without_year(value),
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
