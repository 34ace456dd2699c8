"""A tolerant pass says which messages may be bad: the same rows and verdicts as without it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.messages.assemble import Body
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.views import Indices, subset
from sluice.decode.text import isolate
from sluice.decode.text.decoder import Decoder
from sluice.decode.text.isolate import find_faults
from tests.decode.support import LINEAGE, LINEAGE_NAMES, decode, fill, rows, table
from tests.decode.test_properties import BROKEN, CUT, DOCUMENTS
from tests.support.examples import examples

COLUMNS = (
    Column("id", "UInt64"),
    Column("n", "UInt8"),
    Column("s", "LowCardinality(String)"),
    Column("at", "DateTime"),
    Column("u", "UUID"),
    Column("tags", "Array(DateTime)"),
    Column("x", "Nullable(Decimal(9, 2))"),
    Column("d", "Date"),
    Column("m", "Map(String, Tuple(a UInt8, b DateTime64(3)))"),
    Column("e", "Enum8('a' = 1, 'b' = 2)"),
    Column("big", "UInt256"),
    *LINEAGE,
)
SORTED = {"sort": True, "sorting_key": "n, at", "partition_key": "intDiv(n, 100)"}
TEXTS = (
    table(*COLUMNS, lineage=LINEAGE_NAMES),
    table(*COLUMNS, lineage=LINEAGE_NAMES, on_null="default", **SORTED),
)
VALUES = {
    "id": st.sampled_from([1, "2", "x", -1, 2**64, 1e19, None, 10**80]),
    "n": st.sampled_from([0, 255, 256, "7", None, 1.5]),
    "s": st.sampled_from(["", "a", "{", "}\\", 5, None, []]),
    "at": st.sampled_from(
        ["2026-01-02 03:04:05", "2226-01-01 00:00:00", 0, -5, 2**32 - 1, 2**32, "x", "1969-12-31"]
    ),
    "u": st.sampled_from(["61f0c404-5cb3-11e7-907b-a6006ad3dba0", "1", "x" * 40]),
    "tags": st.lists(st.sampled_from(["2026-01-02 03:04:05", 0, "2226-01-01 00:00:00"])),
    "x": st.sampled_from([1.25, 1.239, None, 10**8, "x"]),
    "d": st.sampled_from(["2026-01-02", "2200-01-01", "2026-02-30", 70000]),
    "m": st.sampled_from([{"k": {"a": 1}}, {"k": {"a": 300}}, {"k": {"b": "2400-01-01"}}, 1]),
    "e": st.sampled_from(["a", 2, "c", 257]),
    "big": st.sampled_from([1, "7", 2**256, -1, 2**255]),
}
TYPED = st.fixed_dictionaries({}, optional=VALUES).map(lambda d: json.dumps(d).encode())
OTHERS = st.one_of(DOCUMENTS.map(lambda document: json.dumps(document).encode()), BROKEN, CUT)
GOOD = st.builds(
    lambda number: b'{"id":%d,"n":%d,"at":"2026-01-02 03:04:05"}' % (number, number % 256),
    st.integers(0, 10**6),
)
MESSAGES = st.lists(st.one_of(GOOD, GOOD, TYPED, TYPED, OTHERS), min_size=1, max_size=12)


class Searching(Decoder):
    """Judges all messages, and not only those that may be bad."""

    def _judged(self, buffer: MessageBuffer, left: Indices) -> dict[int, Fault]:
        return find_faults(self._judged_plan, buffer, left)


@pytest.fixture(scope="module", params=TEXTS, ids=["plain", "sorted"])
def decoders(request: pytest.FixtureRequest) -> tuple[Decoder, Decoder]:
    """What takes the tolerant pass, and what does not."""
    return Decoder(request.param), Searching(request.param)


def facts(decoded: Decoded) -> tuple[object, ...]:
    return (
        bytes(decoded.native),
        decoded.bad,
        decoded.offsets.tolist(),
        decoded.clickhouse_partitions,
    )


@settings(max_examples=examples(15), deadline=None)
@given(values=MESSAGES, poll=st.integers(1, 5))
def test_the_same_bytes_and_verdicts_whatever_came_before(
    decoders: tuple[Decoder, ...], values: list[bytes], poll: int
) -> None:
    decoder, searching = decoders
    expected = facts(decode(searching, values, poll))
    for expects_faults in (False, True):
        decoder._expects_faults = expects_faults
        assert facts(decode(decoder, values, poll=12)) == expected


def spoilt(count: int, seed: int) -> list[bytes]:
    """Good messages, a tenth of them spoilt in ways that only the engine sees."""
    dice = random.Random(seed)
    at = b'"at":"2026-01-02 03:04:05"'
    ways = (
        b'{"id":"x",%b}' % at,
        b'{"n":300,%b}' % at,
        b'{"at":"2226-01-01 00:00:00"}',
        b'{"id":null,%b}' % at,
        b'{"n":"y",%b}' % at,
    )
    good = b'{"id":%d,"n":%d,"at":"2026-01-02 03:04:05"}'
    return [
        dice.choice(ways) if dice.random() < 0.1 else good % (n, dice.randrange(256))
        for n in range(count)
    ]


def test_one_strict_pass_is_enough(
    decoders: tuple[Decoder, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    tolerant, searching = decoders
    values = spoilt(3_000, 1)
    expected = decode(searching, values)
    assert expected.rows and expected.bad
    assert facts(decode(tolerant, values)) == facts(expected)
    strict, passes = Decoder._run, []

    def counted(decoder: Decoder, *given: Any) -> Body | None:
        passes.append(given)
        return strict(decoder, *given)

    # It knows now that this topic has bad messages.
    monkeypatch.setattr(Decoder, "_run", counted)
    assert facts(decode(tolerant, values)) == facts(expected)
    assert len(passes) == 1


@pytest.mark.parametrize("more", ["UUID", "JSON", "Variant(UInt8, String)", "Array(Float32)"])
def test_no_row_is_doubted_in_vain(more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a DateTime that messages leave out, nor one of the ends of its type."""
    columns = (Column("id", "UInt64"), Column("at", "DateTime"), Column("more", more))
    decoder = Decoder(table(*columns))
    decode(decoder, [b'{"id":"x"}'])
    suspects, found = isolate._suspects, []

    def noted(*given: Any) -> tuple[Indices, Indices]:
        found.append(suspects(*given))
        return found[-1]

    monkeypatch.setattr(isolate, "_suspects", noted)
    values = [b'{"id":%d}' % n for n in range(400)]
    values[50], values[60], values[70] = b'{"id":"x"}', b'{"id":1,"at":-5}', b'{"at":4294967295}'
    decoded = decode(decoder, values)
    assert [bad.index for bad in decoded.bad] == [50, 60]
    assert decoded.rows == 398
    assert [(some.tolist(), unread.tolist()) for some, unread in found] == [([50, 60], [50])]


def test_a_good_buffer_ends_the_expectation() -> None:
    decoder = Decoder(table(Column("id", "UInt64")))
    for value, expects in ((b'{"id":"x"}', True), (b'{"id":1}', False)):
        decode(decoder, [value, b'{"id":2}'])
        assert decoder._expects_faults is expects


def test_a_reader_that_takes_the_next_message_too_is_noticed() -> None:
    """A short UUID is looked for in 36 bytes: the engine goes on behind the next message."""
    decoder = Decoder(table(Column("u", "UUID"), Column("n", "UInt8")))
    values = [b'{"u":"x"}', b'{"n":1}', b'{"n":2}']
    with MessageBuffer() as buffer:
        suspects, unread = isolate._suspects(decoder._plan, fill(buffer, values), np.arange(3))
        assert (suspects.tolist(), unread.tolist()) == ([0, 1, 2], [])
        assert list(buffer.iterate(np.arange(3))) == values
        assert [row[1] for row in rows(decoder.decode(buffer, alone("orders", 3)))] == [1, 2]


def test_a_default_may_clamp_nothing() -> None:
    """Clamping, which keeps a DateTime64 from stopping a query, must not reach expressions."""
    decoder = Decoder(
        table(
            Column("at", "DateTime"),
            Column("far", "DateTime64(3)"),
            Column("near", "DateTime", "DEFAULT", "toDateTime(far)"),
        )
    )
    values = [b'{"far":"2200-01-01 00:00:00"}', b'{"far":"2026-01-01 00:00:00"}']
    for _ in range(2):
        decoded = decode(decoder, values)
        assert ([bad.index for bad in decoded.bad], decoded.rows) == ([0], 1)


def test_counting_proves_messages_only_among_their_like() -> None:
    """The first and the last message are halves of one row; the one between has the brace
    that makes good for it. Counted together they are found out, one by one they were not."""
    values = [b'{"s":"}', b'{"s":":1}{}{"}', b'{":1}']
    decoder = Decoder(table(Column("id", "UInt64"), Column("s", "String")))
    for poll in (1, 2, 3):
        decoded = decode(decoder, values, poll)
        assert [bad.index for bad in decoded.bad] == [0, 2]
        assert rows(decoded) == [["0", ":1}{}{"]]


def test_a_subset_has_the_faults_of_its_messages() -> None:
    """As where a replayed dead letter is left out for an entry that it is not for."""
    values = [b'{"s":"}', b'{"s":":1}{}{"}', b'{":1}', b'{"id":7}']
    decoder = Decoder(table(Column("id", "UInt64"), Column("s", "String")))
    with MessageBuffer() as buffer:
        fill(buffer, values)
        with subset(buffer, np.arange(3)) as part:
            assert part.faults == buffer.faults == [0, 2]
            decoded = decoder.decode(part, alone("orders", 3))
    assert [bad.index for bad in decoded.bad] == [0, 2]
    assert rows(decoded) == [["0", ":1}{}{"]]


def test_words_do_not_depend_on_how_many_are_bad() -> None:
    """Beyond a limit the engine is not asked about single messages."""
    decoder = Decoder(
        table(Column("a", "FixedString(2)"), Column("b", "Decimal(4, 2)"), Column("c", "UInt8"))
    )
    ways = (b'{"a":"xyz"}', b'{"b":123456}', b'{"b":"x"}', b'{"c":"y"}', b'{"c":[]}')
    alone = [decode(decoder, [way]).bad[0] for way in ways]
    decoded = decode(decoder, list(ways) * 60)
    assert len(decoded.bad) == 300
    for bad in decoded.bad:
        one = alone[bad.index % len(ways)]
        assert (bad.reason, bad.error, bad.column) == (one.reason, one.error, one.column)
    assert [one.reason for one in alone] == ["out-of-range"] * 2 + ["cannot-parse"] * 3
    assert [one.column for one in alone] == ["a", "b", "b", "c", "c"]
