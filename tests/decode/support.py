"""Tables, decoders and a second reader of blocks for the tests of decoding."""

from __future__ import annotations

import json
from typing import Any

from sluice.core.load_spec import LINEAGE_TYPES, SOURCE, Column, TableSpec
from sluice.decode.engine.session import session
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.messages.memory import memory_file
from sluice.decode.text.decoder import Decoder

#: Where a message stood; `test_source.py` has who loaded it.
LINEAGE = tuple(
    Column(name, type_text) for name, type_text in LINEAGE_TYPES.items() if name != SOURCE
)
LINEAGE_NAMES = tuple(column.name for column in LINEAGE)
FIRST_OFFSET = 1000


def table(*columns: Column, **changes: Any) -> TableSpec:
    """A table text with defaults for all that a test does not care about."""
    facts: dict[str, Any] = {
        "entry": "orders",
        "database": "shop",
        "table": "orders",
        "topics": ("orders",),
        "format": "JSONEachRow",
        "columns": columns,
        "lineage": (),
        "partition_key": "",
        "sorting_key": "",
        "unknown_fields": "ignore",
        "on_null": "dead-letter",
        "time_zone": "UTC",
        "shards": ("s1",),
    }
    return TableSpec(**(facts | changes))


def fill(buffer: MessageBuffer, values: list[bytes], poll: int = 500) -> MessageBuffer:
    """Add messages as polls; message i has offset FIRST_OFFSET + 2 i (offsets have holes)."""
    for begin in range(0, len(values), poll):
        part = values[begin : begin + poll]
        first = FIRST_OFFSET + 2 * begin
        buffer.add(part, list(range(first, first + 2 * len(part), 2)))
    return buffer


def decode(decoder: Decoder, values: list[bytes], poll: int = 500) -> Decoded:
    with MessageBuffer() as buffer:
        return decoder.decode(fill(buffer, values, poll), alone("orders", 3))


def rows(decoded: Decoded) -> list[list[Any]]:
    """The block's rows, read back by the engine; numbers of 64 bits and more as text."""
    if not decoded.rows:
        assert decoded.native == b""
        return []
    with memory_file(decoded.native) as path:
        query = (
            f"SELECT * FROM file('{path}', Native)"
            " SETTINGS output_format_json_quote_64bit_integers=1,"
            " output_format_json_quote_decimals=1, output_format_json_quote_denormals=1,"
            " session_timezone='UTC', max_block_size=10000000"
        )
        text = session().query(query, "JSONCompactEachRow").bytes().decode(errors="replace")
    return [json.loads(line) for line in text.split("\n") if line]


def outcome(decoder: Decoder, value: str) -> str:
    """What one message becomes in a table of one column `a`: its value, or the reason."""
    decoded = decode(decoder, [value.encode()])
    if decoded.rows:
        assert not decoded.bad
        return json.dumps(rows(decoded)[0][0], ensure_ascii=False)
    assert len(decoded.bad) == 1
    return decoded.bad[0].reason
