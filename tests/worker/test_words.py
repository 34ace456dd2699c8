"""What is said of a message that makes no row, where some values are not to be seen."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sluice.core.load_spec import Column, Mapped
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage
from sluice.decode.messages.facts import alone
from sluice.worker.asking import words_of
from tests.decode.support import fill, table

SECRET = "s3cr3t"
MASKED = frozenset({"phone"})
COLUMNS = (Column("id", "UInt8"), Column("phone", "UInt64"), Column("note", "Nullable(UInt8)"))
QUOTED = json.dumps({"id": 1, "phone": SECRET}).encode()
#: By what is special about the entry: messages that are all at fault, each with the secret.
ENTRIES: dict[str, tuple[dict[str, Any], list[bytes]]] = {
    "JSONEachRow": (
        {},
        [
            QUOTED,
            QUOTED[:-1],
            b"x" + QUOTED,
            QUOTED[:-8] + b"}",
            b'{"id":1,"phone":[{"a":"s3cr3t"}]}',
        ],
    ),
    "CSV": ({}, [b"1,s3cr3t,2", b'1,"s3cr3t', b"1,s3cr3t", b"s3cr3t"]),
    "TSKV": ({}, [b"id=1\tphone=s3cr3t", b"s3cr3t"]),
    "LineAsString": ({"options": (("columns", "phone"),)}, [b"s3cr3t", b"s3cr3t\ns3cr3t"]),
    "JSONCompactEachRow": ({}, [b'[1,"s3cr3t",2]', b'["s3cr3t"]', b"s3cr3t"]),
    "mapped": ({"mapping": (Mapped("id", "sql", "phone + 1"),), "check": ("phone > 5",)}, [QUOTED]),
    "debezium": (
        {"envelope": "debezium"},
        [b'{"op":"c","after":' + QUOTED + b"}", b'{"op":"s3cr3t"}'],
    ),
}


def bad_of(case: str) -> tuple[Any, tuple[BadMessage, ...]]:
    changes, values = ENTRIES[case]
    named = {"format": case} if case[0].isupper() else {}
    text = table(*COLUMNS, **named, **changes)
    with MessageBuffer(framing_of(text)) as buffer:
        decoded = make_decoder(text).decode(fill(buffer, values), alone("orders", 3))
    assert len(decoded.bad) == len(values)
    return text, decoded.bad


@pytest.mark.parametrize("case", ENTRIES)
def test_values_that_are_masked_are_in_no_words(case: str) -> None:
    text, found = bad_of(case)
    assert any(SECRET in words_of(text, bad) for bad in found)
    for bad in found:
        words = words_of(text, bad, MASKED)
        assert SECRET not in words and words


def test_words_about_other_columns_stay() -> None:
    text = table(*COLUMNS)
    bad = BadMessage(0, 0, "out-of-range", "300 does not fit column id UInt8", "id")
    assert words_of(text, bad, MASKED) == bad.error
    bad = BadMessage(0, 0, "check-failed", "the check id > 5 does not hold")
    assert words_of(text, bad, MASKED) == bad.error
    masked = words_of(text, BadMessage(0, 0, "cannot-parse", "x", "phone"), MASKED)
    assert masked == "a value of phone is not shown: [dead_letters] mask"
