"""Whether a text of a date and time says its year.

The engine's best-effort reader completes `12`, `10:30` or `5 Jan` with the year in which it
reads them, so the same message would be another row in another year. A year written 0000 counts
as none there. The verdict here follows from the text alone: for every text that the engine takes,
it is whether the year of the value, or the seconds since 1970, stand in it [measured, ClickHouse
26.9: tests/decode/test_years.py]. What the engine refuses is refused by the engine.
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
    return _says_year(text) is not None


def lacks_year(text: str) -> bool:
    """Whether the engine might complete the text."""
    return not says_year(text) and _FOREIGN.match(text) is None


def may_be_date(text: str) -> bool:
    """Whether the engine might take the text for a date; false only if it does not."""
    return _DATE.fullmatch(text) is not None


def without_year(value: str) -> str:
    """The same as SQL, of a String; true where no year stands. Most texts begin with four digits
    and a hyphen, which takes a look at eight bytes."""
    head = f"reinterpretAsUInt64({value})"
    digits = f"bitAnd({head}, 0xfff0f0f0f0) = 0x2d30303030"
    decimal = f"bitAnd({head} + 0x06060606, 0xf0f0f0f0) = 0x30303030"
    zero = f"bitAnd({head}, 0xffffffff) != 0x30303030"
    return f"NOT ({digits} AND {decimal} AND {zero} OR match({value}, {literal(PATTERN)}))"
