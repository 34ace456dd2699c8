"""A date without a year is one of the year in which it is read: its message is bad, everywhere.

The engine's clock cannot be set here. So the verdict is compared with what shows the clock: of
texts whose years are all far away, the engine makes a value of this year or the last one if, and
only if, it took the year from its clock.
"""

from __future__ import annotations

import json
import random
import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.decode.engine.dates import says_year, without_year
from sluice.decode.engine.session import literal, run
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.memory import memory_file
from sluice.decode.messages.quick_look import QuickLook
from sluice.decode.messages.views import buffer_of
from sluice.decode.text.misread import MisreadObjects
from tests.support.examples import examples

PARSE = "cannot-parse"
TOKENS = (
    *("12", "5", "1", "0", "00", "0000", "1987", "2203"),
    *(
        "0150",
        "198705",
        "000005",
        "103000",
        "19870506",
        "00000506",
        "19870506103000",
        "00000506103000",
    ),
    *("537840000", "1537840000", "1537840000123", "1537840000123456", "123", "Jan", "March", "Fri"),
    *("Friday", "UTC", "MSK", "AM", "pm", "Z", "T", "-"),
    *("/", ".", ":", ",", "+", "-0300", "+3", "+03:00"),
    *(
        "10:30",
        "10:30:15",
        "10:30:15.123456",
        "10:30:15.1234567890",
        "02/01",
        "02-Jan",
        "02/01/87",
        "02-01-1987",
    ),
    *("87", "02-01-0000", "1987-05-06", "0000-05-06", "1987/5"),
)
SEPARATORS = ("", " ", ", ", "-", "T")


def texts_of(seed: int, count: int) -> list[str]:
    """Every token, every pair of them, and longer ones."""
    chance = random.Random(seed)
    texts = {*TOKENS, *(a + s + b for a in TOKENS for b in TOKENS for s in SEPARATORS)}
    while len(texts) < count:
        text = chance.choice(TOKENS)
        for _ in range(chance.choice((2, 3, 4))):
            text += chance.choice((" ", " ", " ", " ", *SEPARATORS)) + chance.choice(TOKENS)
        texts.add(text)
    return sorted(texts)


def judged(texts: list[str]) -> list[tuple[bool | None, bool]]:
    """Of each text: whether the engine asked its clock; None where it does not take the text.
    And whether SQL says that it has no year."""
    value = "parseDateTime64BestEffortOrNull(t, 3, 'UTC')"
    query = f"SELECT toUnixTimestamp64Second({value}), {without_year('t')}"
    with memory_file("\n".join(texts).encode()) as path:
        query += f" FROM file({literal(path)}, TSV, 't String')"
        query += " SETTINGS max_threads = 1, input_format_parallel_parsing = 0"
        lines = run(query, "TSV").bytes().decode().splitlines()
    year = datetime.now(UTC).year
    found: list[tuple[bool | None, bool]] = []
    for line in lines:
        seconds, verdict = line.split("\t")
        if seconds == "\\N":
            found.append((None, verdict == "1"))
            continue
        # An offset of a time zone moves the first and the last day of a year.
        near = {1970 + (int(seconds) + day * 86400) / (365.2425 * 86400) for day in (-3, 0, 3)}
        found.append((bool({year - 1, year} & {int(one // 1) for one in near}), verdict == "1"))
    return found


def test_the_verdict_is_whether_the_engine_asks_its_clock() -> None:
    texts = texts_of(1, 60_000)
    accepted = completed = 0
    for text, (asks, has_none) in zip(texts, judged(texts), strict=True):
        assert has_none is not says_year(text), text
        if asks is None:
            continue
        accepted += 1
        completed += asks
        if says_year(text):
            assert not asks, text
        elif not asks:
            # Refused although it has a year: only behind a year 0000, or a point without digits.
            assert re.search("0000|[.](?![0-9])", text), text
    assert accepted > 5000
    assert 1000 < completed < accepted - 1000


@pytest.mark.parametrize(
    "text",
    [
        *("2026-01-02 03:04:05", "2026-01-02T03:04:05.678Z", "2026-01-02", "2026", "2026-01"),
        *("20260102", "20260102T030405", "20260102030405", "202601", "1767323045", "767323045"),
        *("1767323045123", "1767323045.5", "02/01/2026", "2.1.26", "2026-1-2 3:4:5"),
        *("Fri, 02 Jan 2026 03:04:05 +0100", "2 January 2026", "Jan 2, 2026 10 PM", "2-Jan-2026"),
        *("10:30 2 Jan 2026", "0001-01-01"),
    ],
)
def test_a_year_is_found(text: str) -> None:
    assert says_year(text)


def test_the_quick_look_lets_no_date_without_a_year_pass() -> None:
    texts = texts_of(2, 30_000)
    asked = [asks is True for asks, _ in judged(texts)]
    in_json = [json.dumps(text).encode() for text in texts]
    fields = QuickLook({"a": 9})
    for messages in (
        [b'{"b":7,"a":%b}' % one for one in in_json],
        [b'{"a":[1,{"x":%b}]}' % one for one in in_json],
    ):
        ends = np.cumsum([len(message) + 1 for message in messages]) - 1
        unclear = set(fields.unclear(b"\n".join(messages), ends).tolist())
        passed = [texts[i] for i, asks in enumerate(asked) if asks and i not in unclear]
        assert not passed
        assert len(unclear) < len(texts)


ORDINARY = [
    *("2026-01-02 03:04:05", "2026-01-02T03:04:05.678Z", "2026-01-02", "2026-01-02T03:04+05:30"),
    *("1767323045", "1767323045123", "1767323045.5", "20260102", "20260102030405.25", "2026"),
]


def test_ordinary_dates_are_not_looked_at_twice() -> None:
    for message in (
        '{{"id":1,"note":"a \\" b","at":"{0}","x":{{"at":"12"}}}}',
        '{{"id":1,"at" : ["{0}",12],"note":"12"}}',
    ):
        values = [message.format(text).encode() for text in ORDINARY]
        ends = np.cumsum([len(value) + 1 for value in values]) - 1
        found = QuickLook({"at": 3}).unclear(b"\n".join(values), ends)
        assert not len(found), [values[i] for i in found.tolist()]


SAID = st.sampled_from(
    ["12", "10:30", "5 Jan", "2026-01-02", "0000-01-02", "2 Jan 2026", "May", ""]
)
SCALARS = (
    SAID | st.integers(0, 99) | st.none() | st.sampled_from(['"at":"12"', "\\", "{", "é", "at"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["at", "b", "12", "é"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TYPES = {
    "at": "DateTime",
    "é": "Array(Nullable(DateTime64(3)))",
    "m": "Map(String, DateTime)",
    "t": "Tuple(at DateTime, b String)",
    "k": "Map(DateTime, UInt8)",
    "b": "String",
}


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    names = draw(st.permutations([*TYPES, "x"]))
    document = {name: draw(VALUES) for name in names[: draw(st.integers(0, len(names)))]}
    text = json.dumps(document, ensure_ascii=draw(st.booleans()))
    if draw(st.booleans()):
        text = text.replace('": ', '" :')
    return text.replace('"at"', '"\\u0061t"').encode() if draw(st.booleans()) else text.encode()


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(objects(), min_size=1, max_size=8))
def test_quick_and_slow_agree(values: list[bytes]) -> None:
    """Among others, alone, looked at on arrival or afterwards, and where nothing is quick."""
    years = MisreadObjects(TYPES)
    slow = {i: fault for i, value in enumerate(values) if (fault := years._judge(value))}
    with buffer_of(values) as buffer, MessageBuffer() as watched:
        assert years.faults(buffer) == slow
        assert years.look is not None
        watched.watch(years.look)
        watched.add(values, range(len(values)))
        assert years.faults(watched) == slow
