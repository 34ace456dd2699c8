"""The record: its text in Kafka, and which may follow which."""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ranges import EPOCH_UNKNOWN
from sluice.core.records import (
    RECORD_BYTES_MAX,
    InvalidRecordError,
    Kind,
    Record,
    decode,
    encode,
    may_follow,
)

WORDS = st.text("ABCabc019_.-", max_size=20)
NUMBERS = st.integers(0, 2**40)


@st.composite
def records(draw: st.DrawFn) -> Record:
    kind = draw(st.sampled_from(Kind))
    begin = draw(NUMBERS)
    return Record(
        kind=kind,
        batch=draw(NUMBERS),
        attempt=draw(st.integers(0, 10**6)),
        begin=begin,
        end=begin if kind is Kind.SETTLE else begin + draw(st.integers(1, 10**7)),
        owner=draw(WORDS),
        generation=draw(st.integers(0, 999)),
        topic_id=draw(st.text("ABCabc019_-", min_size=11, max_size=11)),
        spec=draw(st.text("0123456789abcdef", min_size=16, max_size=16)),
        reservation=draw(st.integers(0, 10**5)),
        deadline_ms=draw(st.integers(0, 2**42)),
        rest=draw(st.text("0123456789abcdef", max_size=12)),
        epoch=draw(st.integers(-1, 2**31 - 1)),
    )


def a_record(kind: Kind = Kind.INTEND, begin: int = 10, end: int = 20, **changes: object) -> Record:
    record = Record(
        kind=kind,
        batch=7,
        attempt=1,
        begin=begin,
        end=end,
        owner="driver-0a1b2c3d",
        generation=0,
        topic_id="abcdefghijk",
        spec="0123456789abcdef",
        reservation=4,
        deadline_ms=1_800_000_000_000,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def settled(at: int, **changes: object) -> Record:
    return a_record(Kind.SETTLE, at, at, **changes)


@given(records())
def test_a_record_comes_back(record: Record) -> None:
    assert decode(record.begin, encode(record)) == record


def test_the_worst_record_fits() -> None:
    worst = a_record(
        begin=2**62,
        end=2**63 - 1,
        batch=2**40,
        attempt=10**6,
        owner="o" * 24,
        generation=99_999,
        reservation=100_000,
        deadline_ms=2**43,
        rest="f" * 12,
    )
    line = encode(worst)
    assert len(line) < RECORD_BYTES_MAX
    assert line.isascii() and line.isprintable()


def test_a_record_from_before_there_were_epochs_is_read_and_written_as_it_was() -> None:
    record = a_record()
    assert record.epoch == EPOCH_UNKNOWN and encode(record).count("|") == 13
    assert decode(record.begin, encode(record)) == record
    told = replace(record, epoch=0)
    assert encode(told).count("|") == 14 and decode(told.begin, encode(told)) == told


def test_a_record_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="200 allowed"):
        encode(a_record(owner="o" * 130))


@given(records(), st.data())
def test_every_damaged_byte_is_noticed(record: Record, data: st.DataObject) -> None:
    line = encode(record)
    at = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(min_codepoint=32, max_codepoint=126))
    for damaged in (line[:at] + other + line[at + 1 :], line[:at] + line[at + 1 :], line[:at]):
        if damaged != line:
            with pytest.raises(InvalidRecordError):
                decode(record.begin, damaged)


@pytest.mark.parametrize("metadata", [None, "", "from a console", "S1|i", "S2" + "|0" * 13])
def test_what_is_not_ours_is_refused(metadata: str | None) -> None:
    with pytest.raises(InvalidRecordError) as caught:
        decode(5, metadata)
    assert "offset 5" in str(caught.value)
    assert "sluice adopt" in caught.value.hint


def test_a_record_under_another_offset_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="offset 11 carries a record that begins at 10"):
        decode(11, encode(a_record()))


def test_impossible_records_cannot_be_made() -> None:
    for changes in (
        {"begin": -1, "end": 3},
        {"begin": 5, "end": 4},
        {"begin": 5, "end": 5},
        {"kind": Kind.SETTLE},
        {"owner": "a|b"},
        {"rest": "a b"},
    ):
        with pytest.raises(ValueError):
            a_record(**changes)  # type: ignore[arg-type]


INTENT = a_record()
PROBED = a_record(Kind.PROBE, rest="aaaaaaaaaaaa")
CHANGE_SPEC = a_record(Kind.CHANGE_SPEC, attempt=2, spec="f" * 16)
ADD_COLUMNS = a_record(Kind.ADD_COLUMNS, attempt=2, spec="f" * 16)

ALLOWED = {
    "first settle": (None, settled(0)),
    "intend after a settle": (settled(10), INTENT),
    "intend settles the one before": (INTENT, a_record(begin=20, end=30)),
    "intend settles a probed one": (PROBED, a_record(begin=20, end=30)),
    "settle loaded": (INTENT, settled(20)),
    "give back what nobody inserted": (replace(INTENT, bundle="0123456789abcdef.2"), settled(10)),
    "give back one that nobody inserted, and that was alone": (INTENT, settled(10)),
    "settle again": (settled(10), settled(10)),
    "renew": (INTENT, a_record(Kind.RENEW, attempt=2)),
    "renew a probe": (PROBED, a_record(Kind.RENEW, rest=PROBED.rest)),
    "probe": (INTENT, PROBED),
    "probe again": (PROBED, replace(PROBED, rest="bbbbbbbbbbbb")),
    "shorten": (INTENT, a_record(Kind.SHORTEN, end=15)),
    "shorten a renewed one": (a_record(Kind.RENEW), a_record(Kind.SHORTEN, end=11)),
    "shorten a probed one: nobody inserted it": (PROBED, a_record(Kind.SHORTEN, end=15)),
    "another load spec for what the first task refused": (INTENT, CHANGE_SPEC),
    "renew under it": (CHANGE_SPEC, replace(CHANGE_SPEC, kind=Kind.RENEW, attempt=3)),
    "settle it": (CHANGE_SPEC, settled(20)),
    "columns for a first attempt's fields": (INTENT, ADD_COLUMNS),
    "columns for a repeated one's": (
        a_record(Kind.RENEW, attempt=4),
        replace(ADD_COLUMNS, attempt=5),
    ),
    "columns for what is left of a shortened one": (a_record(Kind.SHORTEN), ADD_COLUMNS),
    "columns for what a probe left": (PROBED, replace(ADD_COLUMNS, rest=PROBED.rest)),
    "more columns": (ADD_COLUMNS, replace(ADD_COLUMNS, spec="e" * 16, attempt=3)),
    "renew with columns": (ADD_COLUMNS, replace(ADD_COLUMNS, kind=Kind.RENEW, attempt=3)),
    "settle of a new generation": (INTENT, settled(3, generation=1)),
}

REFUSED = {
    "first intend": (None, INTENT),
    "gap": (settled(9), INTENT),
    "overlap": (settled(11), INTENT),
    "skip a range in doubt": (INTENT, a_record(begin=25, end=30)),
    "settle in the middle": (INTENT, settled(15)),
    "settle beyond": (settled(10), settled(11)),
    "give back what a probe left": (PROBED, settled(10)),
    "renew a settled one": (settled(10), a_record(Kind.RENEW)),
    "renew longer": (INTENT, a_record(Kind.RENEW, end=21)),
    "renew shorter": (INTENT, a_record(Kind.RENEW, end=19)),
    "renew forgets the rest": (PROBED, a_record(Kind.RENEW)),
    "renew invents a rest": (INTENT, a_record(Kind.RENEW, rest="aaaaaaaaaaaa")),
    "probe without a rest": (INTENT, a_record(Kind.PROBE)),
    "probe a settled one": (settled(10), PROBED),
    "probe another range": (INTENT, replace(PROBED, end=21)),
    "shorten to the same": (INTENT, a_record(Kind.SHORTEN)),
    "lengthen": (INTENT, a_record(Kind.SHORTEN, end=21)),
    "shorten keeps a rest": (PROBED, a_record(Kind.SHORTEN, end=15, rest=PROBED.rest)),
    "shorten a settled one": (settled(10), a_record(Kind.SHORTEN, end=15)),
    "another load spec for a second attempt": (a_record(attempt=2), CHANGE_SPEC),
    "another load spec for a renewed one": (a_record(Kind.RENEW), CHANGE_SPEC),
    "another load spec for a probed one": (PROBED, CHANGE_SPEC),
    "another load spec that is the same": (INTENT, a_record(Kind.CHANGE_SPEC, attempt=2)),
    "another load spec and another end": (INTENT, replace(CHANGE_SPEC, end=19)),
    "another load spec invents a rest": (INTENT, replace(CHANGE_SPEC, rest="aaaaaaaaaaaa")),
    "columns for a settled one": (settled(10), ADD_COLUMNS),
    "columns, and the same load spec": (INTENT, a_record(Kind.ADD_COLUMNS, attempt=2)),
    "columns and another end": (INTENT, replace(ADD_COLUMNS, end=19)),
    "columns forget what a probe left": (PROBED, ADD_COLUMNS),
    "columns invent a rest": (INTENT, replace(ADD_COLUMNS, rest="aaaaaaaaaaaa")),
    "new generation, but loading at once": (INTENT, a_record(begin=20, end=30, generation=1)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_chain_allows(name: str) -> None:
    assert may_follow(*ALLOWED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_the_chain_refuses(name: str) -> None:
    assert not may_follow(*REFUSED[name])


@given(st.lists(records(), min_size=1, max_size=1), records())
def test_no_step_loses_offsets(previous: list[Record], following: Record) -> None:
    """Within a generation, a step keeps the begin or goes on at the end; never elsewhere."""
    before = previous[0]
    after = replace(following, generation=before.generation)
    if may_follow(before, after):
        assert after.begin in (before.begin, before.end)


def test_a_record_of_another_format_is_refused_although_it_is_whole() -> None:
    """A later release may say other things in the same fields."""
    body = encode(a_record()).rpartition("|")[0]
    assert body.startswith("S1|")
    other = body.replace("S1|", "S9|", 1)
    with pytest.raises(InvalidRecordError):
        decode(10, f"{other}|{zlib.crc32(other.encode()):08x}")
    assert decode(10, f"{body}|{zlib.crc32(body.encode()):08x}") == a_record()
