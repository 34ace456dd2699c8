"""Bad messages among many: found by searches, judged as if each were alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sluice.core.load_spec import Column
from sluice.decode.messages import buffer as buffers
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from sluice.decode.text import isolate
from sluice.decode.text.decoder import Decoder
from sluice.decode.text.plan import Plan
from tests.decode.support import FIRST_OFFSET, decode, fill, rows, table
from tests.decode.test_tolerant import Searching

ID, SMALL, UUID = Column("id", "UInt64"), Column("n", "UInt8"), Column("u", "UUID")
BAD = (
    b'{"id":1,"n":300}',
    b'{"id":"x","n":1}',
    b'{"id":1,"u":"x"}',
    b'{"id":1}}',
    b'{"id":1',
    b'{"id":null}',
    b' {"n":\n"y"}',
    b'{"id":' + b"1" * 90 + b"}",
)


def good(number: int) -> bytes:
    """A message, in one of several shapes."""
    shapes = (b'{"id":%d,"n":1}', b' { "id" :\n%d}', b'{"id":%d,"z":{"q":["}"]}}', b'{"id":"%d"}')
    return shapes[number % 4] % number


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(table(ID, SMALL, UUID))


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every seam between pieces and parts, in blocks of a few hundred messages."""
    monkeypatch.setattr(buffers, "_PIECE_BYTES", 150)
    monkeypatch.setattr(isolate, "_JUDGED_BYTES", 500)


def assert_judged_alone(decoder: Decoder, values: list[bytes], bad: dict[int, bytes]) -> None:
    """Each bad message has the verdict it has alone, each other one its row and offset."""
    decoded = decode(decoder, values)
    alone = {value: decode(decoder, [value]).bad for value in set(bad.values())}
    expected = []
    for index, value in sorted(bad.items()):
        (one,) = alone[value]
        expected.append((index, one.reason, one.error, one.column))
    found = [(one.index, one.reason, one.error, one.column) for one in decoded.bad]
    assert found == expected
    kept = [number for number in range(len(values)) if number not in bad]
    assert [int(row[0]) for row in rows(decoded)] == kept
    assert ((decoded.offsets - FIRST_OFFSET) // 2).tolist() == kept


@pytest.mark.parametrize("share", [1, 7])
def test_seconds_beyond_64_bits_are_found_without_halving(
    share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a producer that counts in nanoseconds: each stops a query, and may be one of many."""
    monkeypatch.setattr(isolate, "halves", pytest.fail)
    moments = (
        Column("at", "DateTime64(3)"),
        Column("seen", "Map(String, Nullable(DateTime64(9)))"),
        Column("pair", "Tuple(UInt8, DateTime)"),
        Column("points", "Array(Tuple(n UInt8, at DateTime64(6)))"),
    )
    decoder = Decoder(table(ID, *moments))
    large = (
        b'{"id":1,"at":1700000000000000000}',
        b'{"id":1,"seen":{"a":null,"b":-1e30}}',
        b'{"id":1,"pair":[1,9223372036854775808]}',
        b'{"id":1,"points":[{"n":1,"at":5},{"n":1,"at":1.7e15}]}',
    )
    values = [b'{"id":%d,"at":1700000000}' % number for number in range(210)]
    bad = {index: large[index % 4] for index in range(0, 210, share)}
    for index, value in bad.items():
        values[index] = value
    assert_judged_alone(decoder, values, bad)
    decoded = decode(decoder, values)
    assert {one.reason for one in decoded.bad} == {"out-of-range"}
    assert "are these parts of a second?" in decoded.bad[0].error


PLACES: tuple[Callable[[int], bool], ...] = (
    lambda n: n == 0,
    lambda n: n == 399,
    lambda n: n in (31, 32, 33, 64),
    lambda n: n % 50 == 7,
    lambda n: n % 5 == 0,
    lambda n: n < 30,
)


@pytest.mark.parametrize("value", BAD)
def test_a_bad_message_among_many_is_judged_as_alone(decoder: Decoder, value: bytes) -> None:
    for is_bad in PLACES:
        bad = {n: value for n in range(400) if is_bad(n)}
        values = [bad.get(n, good(n)) for n in range(400)]
        assert_judged_alone(decoder, values, bad)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("is_bad", PLACES)
def test_seams_hide_nothing(decoder: Decoder, is_bad: Callable[[int], bool]) -> None:
    bad = {n: BAD[n % len(BAD)] for n in range(400) if is_bad(n)}
    values = [bad.get(n, good(n)) for n in range(400)]
    assert_judged_alone(decoder, values, bad)


STRANGE = (
    *BAD,
    b'{"id":"x","u":"y","n":1}',
    b'{"u":"y","id":"x"}',
    b'{"id":1,"strange":1}',
    b'{"id":1,"id":"x"}',
    b'{"id":1,"at":-5}',
    b'{"id":1,"at":"x"}',
    b'{"id":1,"at":"x","n":"y"}',
    b'{"id":1,"at":99999999999999999999999999}',
    b'{"id":"x","at":99999999999999999999999999}',
    b'{"id":"nothing","d":null}',
    b'{"id":1 "n":2}',
)


@pytest.mark.parametrize("unknown", ["ignore", "refuse"])
def test_the_words_do_not_depend_on_the_way_to_them(unknown: str) -> None:
    columns = (ID, SMALL, UUID, Column("at", "DateTime"))
    text = table(*columns, unknown_fields=unknown)
    tolerant, searching = Decoder(text), Searching(text)
    stopping = [one for one in STRANGE if b"999" in one or b"null" in one]
    others = [one for one in STRANGE if one not in stopping]
    for kinds in (STRANGE, others, *([one] for one in stopping)):
        values = [kinds[n // 3 % len(kinds)] if n % 3 == 0 else good(n) for n in range(60)]
        assert decode(tolerant, values).bad == decode(searching, values).bad, kinds


def test_nothing_is_asked_about_a_word_for_a_number(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [b'{"id":"x","n":1}' if n % 50 == 7 else b'{"id":%d,"n":1}' % n for n in range(400)]

    def refuse(*_: object) -> str:
        raise AssertionError("asked about what shows without it")

    for query in ("fault_kinds", "readable_rows"):
        monkeypatch.setattr(Plan, query, refuse)
    assert [bad.index for bad in decode(decoder, values).bad] == list(range(7, 400, 50))


@pytest.mark.parametrize("value", BAD)
def test_all_bad(decoder: Decoder, value: bytes) -> None:
    decoded = decode(decoder, [value] * 90)
    (alone,) = decode(decoder, [value]).bad
    assert decoded.rows == 0
    assert [bad.index for bad in decoded.bad] == list(range(90))
    assert {(bad.reason, bad.error, bad.column) for bad in decoded.bad} == {
        (alone.reason, alone.error, alone.column)
    }


def test_the_buffer_is_as_it_was_after_a_decode_with_bad_messages(decoder: Decoder) -> None:
    values = [BAD[n % len(BAD)] if n % 3 == 0 else good(n) for n in range(300)]
    with MessageBuffer() as buffer:
        fill(buffer, values)
        first = decoder.decode(buffer, alone("orders", 3))
        assert list(buffer.iterate(np.arange(300))) == values
        again = decoder.decode(buffer, alone("orders", 3))
    assert (again.native, again.bad) == (first.native, first.bad)


def test_a_field_that_messages_name_is_not_the_mark(decoder: Decoder) -> None:
    values = [b'{"id":%d,"_sluice_index":7,"_sluice_index_":"8"}' % n for n in range(100)]
    values[50] = b'{"id":"x","_sluice_index":50}'
    assert_judged_alone(decoder, values, {50: values[50]})
