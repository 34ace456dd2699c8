"""The structure test against a plain scanner, and the holes that cheaper proofs leave (H17)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.decode.messages.brackets import ARRAYS, OBJECTS, bracket_faults, line_ends
from tests.decode.slow_brackets import is_one_row
from tests.support.examples import examples

PAIRS = {"}": "{", "]": "["}


def is_one_object(value: bytes) -> bool:
    """The definition, byte by byte."""
    text = value.strip(b" \t\r\n").decode("latin-1")
    if not text.startswith("{"):
        return False
    open_brackets: list[str] = []
    in_string = escaped = False
    before = ""
    for position, symbol in enumerate(text):
        if in_string:
            if symbol == "\n":
                return False
            if escaped:
                escaped = False
            elif symbol == "\\":
                escaped = True
            elif symbol == '"':
                in_string = False
            continue
        if symbol in " \t\r\n":
            continue
        if before + symbol in (":,", ":}", ":]", "[,") or (
            before + symbol in (",,", ",]") and open_brackets[-1:] == ["["]
        ):
            return False
        before = symbol
        if symbol == "\\":
            return False
        if symbol == '"':
            in_string = True
        elif symbol in "{[":
            open_brackets.append(symbol)
        elif symbol in "}]":
            if not open_brackets or open_brackets.pop() != PAIRS[symbol]:
                return False
            if not open_brackets:
                return position == len(text) - 1
    return False


def faults_of(values: list[bytes], kind: bytes = OBJECTS) -> list[bool]:
    """The compiled test, which the one in Python agrees with."""
    lengths = np.array([len(value) for value in values], np.int64)
    ends = np.cumsum(lengths + 1) - 1
    text = b"\n".join(values)
    found: list[bool] = bracket_faults(text, ends - lengths, ends, kind).tolist()
    assert found == [not is_one_row(value, kind) for value in values]
    has_newline = any(b"\n" in value for value in values)
    lines = line_ends(text, len(values))
    assert lines is None if has_newline else lines is not None and lines.tolist() == ends.tolist()
    return found


ONE = [
    b"{}",
    b' {"a":1}\r\n\t',
    b'{"a":"}{"}',
    b'{"a":"\\"}"}',
    b'{"a":"\\\\"}',
    b'{"a":[{},[]],\n"b":{}}',
    b'{"a":"\xff\xfe"}',
    b'{"a":"\\\\\\""}',
    b'{"a":[ ],"b":{ },"c":[[]]}',
    b'{"a":",,","b":":}","c":"[,","d":"\\",}"}',
    b'{"a" :\t1 ,\r"b":2 }',
]
NOT_ONE = [
    b"",
    b" ",
    b"[]",
    b"5",
    b'"x"',
    b"null",
    b'{"a":1',
    b'{"a":1}}',
    b'{"a":1},',
    b'{"a":1} x',
    b'{"a":1}{"b":2}',
    b"[{}]",
    b"{[}]",
    b'{"a":[}]',
    b'{"a":"b',
    b'{"a":"b\\"}',
    b'{"a":"\n"}',
    b'{"a":\\"}"}',
    b"\xef\xbb\xbf{}",
    b"x{}",
    b"\x0b{}",
    b"}{",
    b'{"a":}',
    b'{"a": }',
    b'{"a":\t\r }',
    b'{"a":,"b":1}',
    b'{"a":[,1]}',
    b'{"a":[1,]}',
    b'{"a":[1, ,2]}',
    b'{"a":{"b":}}',
    b"\\",
]


@pytest.mark.parametrize("value", ONE)
def test_one_object(value: bytes) -> None:
    assert is_one_object(value)
    assert faults_of([value]) == [False]


@pytest.mark.parametrize("value", NOT_ONE)
def test_not_one_object(value: bytes) -> None:
    assert not is_one_object(value)
    assert faults_of([value]) == [True]


PIECES = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b'"', b"\\", b"a", b":", b",", b" ", b"\n", b"-", b"+"]
    ),
    max_size=12,
).map(b"".join)
NEAR = st.builds(
    lambda inner, tail: b"{" + inner + b"}" + tail, PIECES, st.sampled_from([b"", b" "])
)


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(st.one_of(PIECES, NEAR, st.sampled_from(ONE + NOT_ONE)), min_size=1, max_size=8))
def test_all_messages_of_a_chunk_are_judged_as_alone(values: list[bytes]) -> None:
    assert faults_of(values) == [not is_one_object(value) for value in values]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.one_of(PIECES, NEAR.map(lambda near: b"[%b]" % near)), min_size=1, max_size=8))
def test_arrays_are_judged_alike_by_both(values: list[bytes]) -> None:
    faults_of(values, ARRAYS)


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 66, 1000])
def test_depth_is_no_fault(depth: int) -> None:
    deep = b'{"a":' * depth + b"[]" + b"}" * depth
    crossed = b'{"a":' * depth + b"[}" + b"]" + b"}" * (depth - 1)
    assert faults_of([b"{}", deep, deep + b"}", deep[:-1], crossed]) == [
        *(False, False, True, True, True)
    ]
