"""Short numbers are read faster, and mean the same."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.messages.buffer import MessageBuffer, has_long_run, shorten_digits
from sluice.decode.text.decoder import Decoder
from tests.decode.support import fill, table

TOKENS = (
    *("0", "-0", "7", "+7", "007", "-007", "-1", "- 1", "7.0", "7.5", "1e3", "1E3", "0x10", "-"),
    *("127", "128", "255", "256", "65535", "65536", "-129", "2147483648", "4294967296", "1_0"),
    *("9" * 18, "-" + "9" * 18, "0" * 18, "true", "false", "null", "[7]", "{}", "nan", "inf", ""),
)
PLACES = (
    "{}",
    "Nullable({})",
    "LowCardinality({})",
    "Array({})",
    "Array(Nullable({}))",
    "Map(String, {})",
    "Map({}, String)",
    "Tuple(a {}, b String)",
    "SimpleAggregateFunction(any, {})",
)


@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([b"", b"-", b" ", b"\n", b"abc"]))))
def test_a_run_of_19_digits_is_found_wherever_it_stands(parts: list[tuple[int, bytes]]) -> None:
    chunk = b"".join(b"7" * digits + other for digits, other in parts)
    assert has_long_run(chunk) == (re.search(rb"[0-9]{19}", chunk) is not None)


@pytest.mark.parametrize("digits", [18, 19, 20, 26])
@pytest.mark.parametrize("shift", range(17))
def test_edges_of_a_chunk(digits: int, shift: int) -> None:
    run = b"7" * digits
    assert has_long_run(b"x" * shift + run) == (digits > 18)
    assert has_long_run(run + b"x" * shift) == (digits > 18)
    assert has_long_run(b"x" * shift + run + b"x" + run) == (digits > 18)


def test_bytes_beside_the_digits_are_no_digits() -> None:
    assert not has_long_run(b"/" * 30 + b":" * 30 + b";;<<==>>??" * 3)


def test_shortened_digits() -> None:
    assert shorten_digits(b'{"a":-' + b"1" * 61 + b"}") == b'{"a":-' + b"9" * 60 + b"}"
    assert shorten_digits(b'{"a":12}') == b'{"a":12}'


@pytest.mark.parametrize(
    ("integer", "place"),
    [
        *(("Int8", place) for place in PLACES),
        *((integer, PLACES[0]) for integer in ("UInt32", "UInt64")),
        *(
            pytest.param(integer, place, marks=pytest.mark.long)
            for integer in ("UInt32", "UInt64")
            for place in PLACES[1:]
        ),
    ],
)
def test_both_ways_to_read_give_the_same_block(integer: str, place: str) -> None:
    type_text = place.format(integer)
    decoder = Decoder(table(Column("a", type_text)))
    for token in TOKENS:
        for written in (token, f'"{token}"'):
            value = _message(place, written)
            with fill(MessageBuffer(), [value]) as buffer:
                assert buffer.short_numbers
                if buffer.faults:
                    assert not written  # no JSON, which nobody reads
                    continue
                short = _block(decoder, buffer, True)
                assert short == _block(decoder, buffer, False), value


def _block(decoder: Decoder, buffer: MessageBuffer, short: bool) -> bytes | None:
    body = decoder._run(decoder._short_plan if short else decoder._plan, buffer, buffer.messages)
    if body is None:
        return None
    return Path(body.path).read_bytes()


def _message(place: str, written: str) -> bytes:
    if place.startswith("Array"):
        return f'{{"a":[1,{written}]}}'.encode()
    if place.startswith("Map(String"):
        return f'{{"a":{{"k":{written}}}}}'.encode()
    if place.startswith("Map"):
        return f'{{"a":{{{written}:"k"}}}}'.encode()
    if place.startswith("Tuple"):
        return f'{{"a":{{"a":{written}}}}}'.encode()
    return f'{{"a":{written}}}'.encode()
