"""Record batches to joined values: every batch that a log may hold, and hostile ones."""

from __future__ import annotations

import itertools
import random
import re
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sluice.kafka.reader as contract
from sluice.core.dead_letters import TABLE_HEADER
from sluice.core.errors import SluiceError
from sluice.core.ranges import Range
from sluice.decode.messages.buffer import MessageBuffer, has_long_run
from sluice.kafka.errors import StalledError, UnreadRangeError
from sluice.kafka.reader import Wanted
from sluice.kafka.wire import fetches, unpacking
from sluice.kafka.wire import reader as wire_reader
from sluice.kafka.wire.reader import BrokenBatchError
from tests.kafka.batches import (
    CODECS,
    Entry,
    batch,
    compiled_crc32c,
    compiled_lz4,
    crc32c,
    marker,
    record,
    sealed,
)
from tests.kafka.wire_log import SOURCE, MemoryLog, Piece, read, read_ranges, reader_of
from tests.support.examples import examples


def content(pieces: list[Piece]) -> list[tuple[int, bytes]]:
    return [pair for piece in pieces for pair in zip(piece.offsets, piece.values, strict=True)]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "STALL_SECONDS", -1.0)


def test_the_checksum_is_the_one_of_the_format() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720
    dice = random.Random(1)
    for size in [*range(20), 1000]:
        data = dice.randbytes(size)
        for by_table in (False, True):
            assert compiled_crc32c(data, by_table) == crc32c(data)


texts = st.lists(
    st.one_of(st.binary(max_size=40), st.binary(min_size=1, max_size=20).map(lambda b: b * 40)),
    max_size=12,
).map(b"".join)


@given(texts, st.integers(0, 400), st.data())
@settings(max_examples=examples(400), deadline=None)
def test_lz4_is_unpacked_as_its_library_does_or_left_to_it(
    text: bytes, spare: int, data: st.DataObject
) -> None:
    packed = bytearray(pa.compress(text, codec="lz4", asbytes=True))
    assert compiled_lz4(bytes(packed), len(text) + spare) == text
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    found = compiled_lz4(bytes(packed), len(text) + spare)
    try:
        unpacked = pa.CompressedInputStream(pa.BufferReader(bytes(packed)), "lz4").read()
    except OSError:
        return  # a checksum that only the library looks at: the batch has one of its own
    assert found is None or found == unpacked


@pytest.mark.parametrize("missing", [1, 7, 200, 250_000])
def test_lz4_that_does_not_fit_is_left_to_its_library(missing: int) -> None:
    text = b"".join(b'{"id":%d,"name":"n%d"}' % (n, n * n) for n in range(12_000))
    packed = bytes(pa.compress(text, codec="lz4", asbytes=True))
    assert compiled_lz4(packed, len(text)) == text  # several blocks
    assert compiled_lz4(packed, len(text) - missing) is None
    assert compiled_lz4(packed[:-missing], len(text)) is None


values = st.one_of(
    st.none(),
    st.binary(max_size=30),
    st.sampled_from(
        [
            b'{"a":"sluice.table"}',
            b'{"a":1}',
            b'{"a":[1]}',
            b"{}",
            b'{"a":"{"}',
            b"{\n}",
            b"}{",
            b'{"n":12}',
        ]
    ),
    st.integers(0, 25).map(lambda digits: b'{"n":%s}' % (b"7" * digits)),
    st.integers(250, 350).map(lambda size: b'{"s":"%s"}' % (b"x" * size)),
)


#: As those of a message that is for one table entry only, or is not.
headers = st.sampled_from(
    (
        *((), (), (), ((b"sluice.table", b"orders"),)),
        ((b"trace", b"ssssluice.tabl"), (b"s", None)),
        ((b"trace", None), (b"s", b"slu"), (b"sluice.table", b"")),
    )
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[MemoryLog, list[Entry]]:
    """A log with holes, transactions and every codec, and the messages that count."""
    offset = draw(st.integers(0, 5))
    batches: list[bytes] = []
    expected: list[Entry] = []
    open_transactions: dict[int, list[Entry]] = {}
    first_offsets: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    for _ in range(draw(st.integers(1, 8))):
        producer = draw(st.sampled_from([-1, 0, 7]))
        if producer >= 0 and producer in open_transactions and draw(st.booleans()):
            commits = draw(st.booleans())
            entries = open_transactions.pop(producer)
            batches.append(marker(offset, producer, commits))
            if commits:
                expected += entries
            else:
                aborted.append((producer, first_offsets[producer], offset))
            offset += 1
            continue
        base, entries = offset, []
        appended_ms = draw(st.sampled_from([-1, -1, 0, 40]))
        for _ in range(draw(st.integers(0, 6))):
            offset += draw(st.sampled_from([0, 0, 0, 1, 3]))
            key = draw(st.sampled_from([None, b"", b"key"]))
            at_ms = draw(st.integers(-1, 99)) if appended_ms < 0 else appended_ms
            entries.append(Entry(offset, draw(values), key, at_ms, draw(headers)))
            offset += 1
        offset += draw(st.sampled_from([0, 0, 2])) + (0 if entries else 1)
        codec = draw(st.sampled_from(["", *CODECS])) if entries else ""
        batches.append(batch(entries, base, offset - 1, codec, producer, appended_ms))
        if producer < 0:
            expected += entries
        else:
            open_transactions.setdefault(producer, []).extend(entries)
            first_offsets.setdefault(producer, base)
            if len(open_transactions[producer]) == len(entries):
                first_offsets[producer] = base
    for producer in list(open_transactions):
        batches.append(marker(offset, producer, True))
        expected += open_transactions.pop(producer)
        offset += 1
    return MemoryLog(batches, aborted, offset), sorted(expected, key=lambda entry: entry.offset)


@settings(max_examples=examples(300), deadline=None)
@given(logs(), st.data())
def test_any_log_is_read_as_it_is(made: tuple[MemoryLog, list[Entry]], data: st.DataObject) -> None:
    log, entries = made
    begin = data.draw(st.integers(0, log.end))
    end = data.draw(st.integers(begin, log.end))
    limit = data.draw(st.one_of(st.just(1 << 40), st.integers(0, 800)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetches, "FETCH_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(wire_reader, "TEXT_BYTES", data.draw(st.sampled_from([1, 60, 1 << 18])))
        patch.setattr(wire_reader, "WINDOW_BYTES", data.draw(st.sampled_from([1, 60, 1 << 18])))
        patch.setattr(wire_reader, "MESSAGES_MAX", data.draw(st.sampled_from([1, 3, 16_384])))
        reader = reader_of(log)
        wanted = [Wanted(Range(SOURCE, begin, end))]
        (result,), pieces = read_ranges(reader, wanted, limit)
        has_addressed = reader.has_addressed
        read_ranges(reader, [Wanted(Range(SOURCE, begin, begin))])
        assert not reader.has_addressed  # it is about what was read last
    inside = [entry for entry in entries if begin <= entry.offset < end]
    total = 0
    for count, entry in enumerate(inside):
        total += len(entry.key or b"") + len(entry.value or b"")
        if total > limit and count:
            assert result.heavy_at == entry.offset
            return
    assert result.heavy_at is None
    assert has_addressed == any(
        dict(x.headers).get(TABLE_HEADER.encode()) is not None for x in inside
    )
    expected = [(x.offset, x.value) for x in inside if x.value is not None]
    assert content(pieces) == expected
    assert (result.messages, result.bytes) == (len(inside), total)
    assert result.skipped == len(inside) - len(expected)
    assert result.oldest_ms == min((x.at_ms for x in inside if x.at_ms >= 0), default=None)
    for piece in pieces:
        assert piece.may_be_long == has_long_run(piece.text[:-1])


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(values.filter(lambda value: value is not None), min_size=1, max_size=60))
def test_both_ways_into_a_buffer_agree(texts: list[bytes]) -> None:
    log = MemoryLog([batch([Entry(n, value) for n, value in enumerate(texts)])], end=len(texts))
    with MessageBuffer() as joined, MessageBuffer() as single:
        for piece in read(log, 0, log.end)[1]:
            offsets = np.array(piece.offsets, np.uint64)
            joined.add_text(memoryview(piece.text), offsets, piece.ends, piece.may_be_long)
        single.add(texts, range(len(texts)))
        assert joined.ends.tolist() == single.ends.tolist()
        assert joined.offsets.tolist() == single.offsets.tolist()
        assert list(joined.iterate(np.arange(len(texts)))) == texts
        assert joined.long_digits == single.long_digits
        assert joined.short_numbers == single.short_numbers
        assert joined.faults == single.faults


def test_text_is_inspected_in_pieces_with_the_right_numbers() -> None:
    """One piece of text, more messages than are looked at together, odd ones at the seams."""
    odd = {0: b"[]", 499: b"{", 500: b'{"n":%s}' % (b"7" * 61), 999: b"", 1203: b"[1]"}
    texts = [odd.get(number, b'{"a":1}') for number in range(1204)]
    log = MemoryLog([batch([Entry(n, value) for n, value in enumerate(texts)])], end=len(texts))
    (piece,) = read(log, 0, log.end)[1]
    with MessageBuffer() as buffer:
        offsets = np.array(piece.offsets, np.uint64)
        buffer.add_text(memoryview(piece.text), offsets, piece.ends, True)
        assert buffer.faults == [0, 499, 999, 1203]
        assert buffer.long_digits == [500]
        assert not buffer.short_numbers


def test_the_next_fetch_is_under_way_and_asks_for_no_more_than_needed() -> None:
    value = b"x" * 10_000
    batches = [batch([Entry(n, value)]) for n in range(1000)]
    log = MemoryLog(batches, end=1000)
    read(log, 0, 1000)
    assert [offset for offset, _ in log.fetches][:2] == [0, 104]
    assert log.fetches[-1][1] < fetches.FETCH_BYTES
    log.fetches.clear()
    read(log, 0, 100)
    assert len(log.fetches) == 1  # all that is needed has come: nothing is asked for in vain


def test_text_of_a_huge_shrunken_batch_is_never_in_memory_as_a_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    value = b"x" * 300_000
    log = MemoryLog([batch([Entry(n, value) for n in range(40)], codec="zstd")], end=40)
    made: list[int] = []
    monkeypatch.setattr(
        wire_reader, "bytearray", lambda size: made.append(size) or bytearray(size), raising=False
    )
    result, pieces = read(log, 0, 40)
    assert result.bytes == 40 * len(value) and len(content(pieces)) == 40
    assert max(made) < 2 * len(value)


@pytest.mark.parametrize("error", [OSError("disk full"), StalledError("later")])
def test_what_the_taker_raises_is_not_tried_again(error: Exception) -> None:
    log = MemoryLog([batch([Entry(n, b"x" * 100) for n in range(40)])], end=40)
    calls: list[int] = []

    def deliver(values: list[bytes], _offsets: object) -> None:
        calls.append(len(values))
        raise error

    reader, wanted = reader_of(log), [Wanted(Range(SOURCE, 0, 40))]
    with pytest.raises(type(error)) as caught:
        reader.read_ranges(wanted, 1 << 40, deliver)
    assert caught.value is error and len(calls) == 1
    assert len(content(read_ranges(reader, wanted)[1])) == 40  # nothing is left of it


SOUND = batch([Entry(5, b'{"a":1}', b"key"), Entry(6, None), Entry(9, b"x" * 50)])


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (SOUND[:16] + b"\1" + SOUND[17:], "format is not version 2"),
        (SOUND[:8] + struct.pack(">i", 10) + SOUND[12:], "less than its header"),
        (SOUND[:70] + b"!" + SOUND[71:], "checksum"),
        (sealed(b"\xff" * 40, 5, 4, 1), "record"),
        (sealed(record(0, None, b"x")[:-3], 5, 4, 1), "record"),
        (sealed(record(0, None, b"x") + b"\0", 5, 4, 1), "as many records"),
        (sealed(record(0, None, b"x"), 5, 4, 2_000_000), "as many records"),
        (sealed(record(0, None, b"x"), 5, 4, -1), "as many records"),
        (sealed(record(7, None, b"x"), 5, 4, 1), "offsets"),
        (sealed(record(1, None, b"x") * 2, 5, 4, 2), "offsets"),
        (sealed(record(-1, None, b"x"), 5, 4, 1), "offsets"),
        (sealed(b"", 6, -1, 0), "offsets"),
        (sealed(record(0, None, b"x"), 5, 4, 1, 5), "unknown compression 5"),
        *((sealed(b"no " * 9, 5, 4, 1, codec), name) for name, codec in CODECS.items()),
        (sealed(b"\xff\xff\xff\xff\x0f", 5, 4, 1, CODECS["snappy"]), "snappy"),
        (sealed(b"\x82SNAPPY\0" + b"\0" * 11 + b"\x7f", 5, 4, 1, CODECS["snappy"]), "snappy"),
    ],
    ids=itertools.count(),
)
def test_a_broken_batch_is_told(impatient: None, broken: bytes, words: str) -> None:
    with pytest.raises(BrokenBatchError) as caught:
        read(MemoryLog([broken], end=10), 5, 10)
    assert words in str(caught.value)
    assert re.search(r"orders\[3\]\[5, 10\) at offset [5-7] or later", str(caught.value))
    assert "librdkafka" in caught.value.hint


@pytest.mark.parametrize("codec", CODECS)
def test_what_follows_the_last_record_is_told(impatient: None, codec: str) -> None:
    import pyarrow as pa

    records = record(0, None, b"x" * 100)
    for rest in (b"\0", record(1, None, b"y")):
        packed = bytes(pa.compress(records + rest, codec=codec, asbytes=True))
        with pytest.raises(BrokenBatchError, match="as many records"):
            read(MemoryLog([sealed(packed, 0, 4, 1, CODECS[codec])], end=5), 0, 5)


@settings(max_examples=examples(400), deadline=None)
@given(st.data())
def test_damage_is_never_a_row(data: st.DataObject) -> None:
    """Bytes of sound batches are changed, sometimes with a right checksum over them: it ends,
    and what is delivered lies within the range, ascending."""
    codec = data.draw(st.sampled_from(["", "", *CODECS]))
    entries = [Entry(n, b'{"n":%d}' % n, b"k") for n in range(12)]
    damaged = bytearray(batch(entries[:6], codec=codec) + batch(entries[6:], codec=codec))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    is_sealed = data.draw(st.booleans())
    if is_sealed:  # the damage of a broker that writes wrong things on purpose
        length = struct.unpack_from(">i", damaged, 8)[0]
        if 49 <= length <= len(damaged) - 12:
            struct.pack_into(">I", damaged, 17, crc32c(bytes(damaged[21 : 12 + length])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contract, "STALL_SECONDS", -1.0)
        patch.setattr(wire_reader, "RECORD_BYTES_MAX", 1 << 20)
        patch.setattr(unpacking, "SNAPPY_BLOCK_BYTES_MAX", 1 << 20)
        try:
            _, pieces = read(MemoryLog([bytes(damaged)], end=12), 0, 12)
        except SluiceError:
            return
    offsets = [offset for offset, _ in content(pieces)]
    assert offsets == sorted(set(offsets)) and set(offsets) <= set(range(12))


def test_a_format_without_epochs_is_not_taken_for_a_later_epoch(impatient: None) -> None:
    """Formats before version 2 have a checksum where this one has the leader's epoch."""
    old = SOUND[:12] + b"\x7f\0\0\0\1" + SOUND[17:]
    wanted = [Wanted(Range(SOURCE, 5, 10), epoch=3)]
    with pytest.raises(UnreadRangeError) as caught:
        read_ranges(reader_of(MemoryLog([old], end=10)), wanted, 1 << 40)
    assert isinstance(caught.value.reason, BrokenBatchError)
    assert "format is not version 2" in str(caught.value)
