"""What the native reader reads again of messages that become dead letters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.ranges import Range
from sluice.core.receipts import DeadLetterReason
from sluice.kafka.reader import Wanted
from sluice.kafka.wire import fetches
from sluice.kafka.wire import reader as wire_reader
from sluice.kafka.wire.reader import BrokenBatchError
from tests.kafka.batches import Entry, record, sealed
from tests.kafka.test_wire_batches import logs
from tests.kafka.wire_log import SOURCE, MemoryLog, read_ranges, reader_of
from tests.support.examples import examples

NO_LIMIT = 1 << 40
FAULT = DeadLetterReason("orders", "syntax", "not an object", "id")
OTHER = DeadLetterReason("clicks", "value", "no")


@settings(max_examples=examples(300), deadline=None)
@given(logs(), st.data())
def test_exactly_those_that_are_wanted_come_whole(
    made: tuple[MemoryLog, list[Entry]], data: st.DataObject
) -> None:
    """Whatever transactions, codecs and holes are between them, and however small the pieces."""
    log, entries = made
    by_offset = {entry.offset: entry for entry in entries}
    if not by_offset:
        return
    chosen = data.draw(st.lists(st.sampled_from(sorted(by_offset)), min_size=1, unique=True))
    faults = {n: data.draw(st.sampled_from([(FAULT,), (FAULT, OTHER)])) for n in chosen}
    whole = Wanted(Range(SOURCE, 0, log.end))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetches, "FETCH_BYTES", data.draw(st.sampled_from([1, 200, 1 << 20])))
        patch.setattr(wire_reader, "TEXT_BYTES", data.draw(st.sampled_from([1, 60, 1 << 18])))
        patch.setattr(wire_reader, "WINDOW_BYTES", data.draw(st.sampled_from([1, 60, 1 << 18])))
        patch.setattr(wire_reader, "MESSAGES_MAX", data.draw(st.sampled_from([1, 3, 16_384])))
        reader = reader_of(log)
        letters = reader.dead_letters(whole, faults, {}, NO_LIMIT)
        (after,), _ = read_ranges(reader, [whole])
    found = [
        (x.offset, x.timestamp_ms, x.key, x.value, x.headers, x.reason, x.table) for x in letters
    ]
    assert found == [
        (
            offset,
            entry.at_ms if entry.at_ms >= 0 else None,
            entry.key,
            entry.value,
            tuple((name.decode(), value) for name, value in entry.headers),
            fault.reason,
            fault.entry,
        )
        for offset in sorted(faults)
        for entry in (by_offset[offset],)
        for fault in faults[offset]
    ]
    assert after.messages == len(entries), "the next reading wants all again"


def test_headers_that_are_none_are_told() -> None:
    """No broker takes such a record; one that is damaged may have it."""
    log = MemoryLog([sealed(record(0, None, b"x", headers=b"\x04\x02a"), 0, 0, 1)], end=1)
    with pytest.raises(BrokenBatchError, match=r"orders.*0.*ends too early"):
        reader_of(log).dead_letters(Wanted(Range(SOURCE, 0, 1)), {0: (FAULT,)}, {}, NO_LIMIT)
