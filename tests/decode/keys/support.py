"""Blocks of tables that know events again."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

from sluice.core.claims import Deduplicate
from sluice.core.load_spec import SOURCE, Column, TableSpec
from sluice.core.tokens import row_source
from sluice.decode.engine.session import run
from sluice.decode.formats import make_decoder
from sluice.decode.keys.hashing import Keyed, RowKeys
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded, TableDecoder
from sluice.decode.messages.facts import alone
from sluice.decode.messages.memory import memory_file
from tests.decode.support import LINEAGE, fill, table

TOPIC_ID = "Zm9vYmFyYmE"
WHO = row_source(pipeline="shop", connector="dc1", topic_id=TOPIC_ID, entry="orders", generation=2)
ALL_LINEAGE = (*LINEAGE, Column(SOURCE, "LowCardinality(String)"))


def keyed_table(
    *columns: Column,
    key: tuple[str, ...],
    scope: str = "shop/shop.orders",
    lineage: tuple[Column, ...] = ALL_LINEAGE,
    **changes: Any,
) -> TableSpec:
    names = tuple(column.name for column in lineage)
    deduplicate = Deduplicate(key, 3600, scope)
    return table(*columns, *lineage, lineage=names, deduplicate=deduplicate, **changes)


@cache
def _decoder_of(text: TableSpec) -> TableDecoder:
    return make_decoder(text)


def decoded_of(text: TableSpec, messages: list[bytes]) -> Decoded:
    with MessageBuffer() as buffer:
        decoder = _decoder_of(replace(text, deduplicate=None))
        decoded = decoder.decode(fill(buffer, messages), alone("orders", 3, WHO))
    assert not decoded.bad, decoded.bad
    return decoded


def block_of(text: TableSpec, values: list[dict[str, Any]]) -> Decoded:
    """A message for each value."""
    return decoded_of(text, [json.dumps(value).encode() for value in values])


def keys_of(text: TableSpec, decoded: Decoded) -> Keyed:
    return RowKeys(text, decoded.columns).of(decoded)


def hexes(keyed: Keyed) -> list[str]:
    return [bytes(key).hex() for key in keyed.keys]


def column(decoded: Decoded, expression: str) -> list[str]:
    """A value of each row, as text."""
    with memory_file(decoded.native) as path:
        query = f"SELECT {expression} FROM file('{path}', Native)"
        return str(run(query, "TSVRaw").bytes().decode()).split("\n")[:-1]


def stored(decoded: Decoded, select: str, more: str = "") -> memoryview:
    """What a server answers that has these rows."""
    with memory_file(decoded.native) as path:
        query = f"SELECT {select} FROM file('{path}', Native) {more}"
        return memoryview(run(query, "Native").bytes())
