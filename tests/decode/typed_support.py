"""Messages of typed formats, made by the engine itself, and their decoders."""

from __future__ import annotations

import json
from typing import Any

from sluice.core.load_spec import Column
from sluice.decode.engine.session import run
from sluice.decode.formats import typed_decoder as decoder_of_typed
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded, TableDecoder
from sluice.decode.messages.facts import alone
from sluice.decode.messages.framing import BYTES
from tests.decode.support import fill, rows, table

SETTINGS = "SETTINGS session_timezone='UTC', allow_suspicious_low_cardinality_types=1"

#: A table of many kinds of types, for messages that are broken on purpose.
ATTACKED_COLUMNS = (
    Column("id", "UInt64"),
    Column("n", "Int8"),
    Column("s", "String"),
    Column("t", "DateTime"),
    Column("e", "Enum8('a' = 1, 'b' = 2)"),
    Column("tags", "Array(String)"),
    Column("x", "Nullable(Float64)"),
    Column("m", "Map(String, UInt16)"),
    Column("d", "Decimal(9, 2)"),
    Column("w", "LowCardinality(String)"),
)
#: Rows for `numbers({from}, {count})`.
ATTACKED_SELECT = (
    "number + {0} AS id, toInt8(number % 100) AS n, repeat('xy', number % 30) AS s, "
    "toDateTime(number * 1000, 'UTC') AS t, CAST(number % 2 + 1 AS Enum8('a' = 1, 'b' = 2)) AS e, "
    "arrayMap(i -> toString(i), range(number % 4)) AS tags, "
    "if(number % 3 = 0, NULL, number / 7) AS x, map('k', toUInt16(number)) AS m, "
    "toDecimal32(number, 2) AS d, toLowCardinality(toString(number % 3)) AS w "
    "FROM numbers({0}, {1})"
)


def typed_decoder(format_name: str, *columns: Column, **changes: Any) -> TableDecoder:
    options = tuple(sorted(changes.pop("options", {}).items()))
    text = table(*columns, format=format_name, options=options, **changes)
    return decoder_of_typed(text)


def typed_decode(decoder: TableDecoder, values: list[bytes]) -> Decoded:
    with MessageBuffer(BYTES) as buffer:
        return decoder.decode(fill(buffer, values), alone("orders", 3))


def written(format_name: str, select: str, settings: str = "") -> bytes:
    """What the engine writes in this format."""
    query = f"SELECT {select} {SETTINGS}{settings}"
    data: bytes = run(query, format_name).bytes()
    return data


def typed_outcome(decoder: TableDecoder, value: bytes) -> str:
    """What one message becomes in a table of one column: its value, or the reason."""
    decoded = typed_decode(decoder, [value])
    if decoded.rows:
        assert not decoded.bad
        return json.dumps(rows(decoded)[0][0], ensure_ascii=False)
    assert len(decoded.bad) == 1
    return decoded.bad[0].reason
