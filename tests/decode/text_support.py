"""Decoders of text formats for tests."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from tests.decode.support import LINEAGE, LINEAGE_NAMES, fill, rows, table

ID, TEXT = Column("id", "UInt64"), Column("s", "String")


def text_of(table_format: str, *columns: Column, **changes: Any) -> TableSpec:
    return table(*(columns or (ID, TEXT)), format=table_format, **changes)


def with_lineage(table_format: str, *columns: Column, **changes: Any) -> TableSpec:
    facts = {"lineage": LINEAGE_NAMES} | changes
    return text_of(table_format, *(columns or (ID, TEXT)), *LINEAGE, **facts)


def decoder_of(text: TableSpec) -> Any:
    """Any, so that a test may look inside."""
    return make_decoder(text)


#: As a worker keeps one for its ranges: to compile another takes as long as to decode a few
#: messages.
_kept_decoder = lru_cache(maxsize=1)(make_decoder)


def decode_text(text: TableSpec, values: list[bytes], poll: int = 500) -> Decoded:
    decoder = _kept_decoder(text)
    with MessageBuffer(framing_of(text)) as buffer:
        return decoder.decode(fill(buffer, values, poll), alone("orders", 3))


def made(text: TableSpec, *values: bytes) -> list[Any]:
    """For each message: its row, or the reason why it has none."""
    decoded = decode_text(text, list(values))
    found = iter(rows(decoded))
    reasons = {bad.index: bad.reason for bad in decoded.bad}
    return [reasons[i] if i in reasons else next(found) for i in range(len(values))]
