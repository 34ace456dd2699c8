"""Kafka's keys, decoded by a format of their own."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from sluice.core.load_spec import Column, KeyFormat, Mapped, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import MessageFacts, alone, facts_named
from sluice.decode.schema.registry import UnknownSchemasError
from tests.decode.avro_support import SCHEMAS, URL, body, framed, record
from tests.decode.support import fill, rows, table

COLUMNS = (Column("id", "UInt32"), Column("part", "String"), Column("name", "String"))
MAPPING = (Mapped("id", "key", "id"), Mapped("part", "key", "part"))
AVRO_KEY = record(("id", "long"), ("part", "string"), name="Key")
REGISTERED = (("registry", URL),)


def keyed(key: KeyFormat, *columns: Column, **changes: Any) -> TableSpec:
    return table(*(columns or COLUMNS), **({"key": key, "mapping": MAPPING} | changes))


def decode(
    text: TableSpec, keys: list[bytes | None], values: list[bytes], dead: tuple[int, ...] = ()
) -> Decoded:
    count = len(values)
    with MessageBuffer(framing_of(text)) as buffer:
        fill(buffer, values)
        buffer.facts = MessageFacts(
            alone("orders", 3), keys, [0] * count, [()] * count, [i in dead for i in range(count)]
        )
        return make_decoder(text).decode(buffer, alone("orders", 3))


def said(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(one.index, one.reason, one.column) for one in decoded.bad]


def test_keys_of_a_format_of_their_own_fill_columns() -> None:
    number = SCHEMAS.add(AVRO_KEY)
    good = [framed(number, body(AVRO_KEY, {"id": n, "part": f"p{n}"})) for n in range(4)]
    wide = framed(number, body(AVRO_KEY, {"id": 2**40, "part": "x"}))
    formats: dict[str, tuple[KeyFormat, list[bytes], bytes]] = {
        "avro": (KeyFormat("AvroConfluent", REGISTERED), good, wide),
        "json": (
            KeyFormat("JSONEachRow"),
            [json.dumps({"id": n, "part": f"p{n}"}).encode() for n in range(4)],
            b'{"id":1099511627776,"part":"x"}',
        ),
        "csv": (
            KeyFormat("CSV", (("columns", "part, id"),)),
            [f"p{n},{n}".encode() for n in range(4)],
            b"x,1099511627776",
        ),
    }
    for key, keys, bad in formats.values():
        text = keyed(key)
        assert "_key" in facts_named(text)
        values = [b'{"name":"a"}', b'{"name":"b"}', b'{"name":5', b'{"name":"d"}']
        decoded = decode(text, [*keys, bad, None], [*values, values[0], values[1]])
        assert rows(decoded) == [[0, "p0", "a"], [1, "p1", "b"], [3, "p3", "d"]]
        assert said(decoded) == [
            (2, "not-one-object", ""),
            (4, "out-of-range", "id"),
            (5, "null-in-column", ""),
        ]
        assert decoded.bad[1].error.startswith("in the key: ")


@pytest.mark.parametrize(
    ("kind", "value", "type_text", "becomes"),
    [
        ("long", 7, "UInt32", 7),
        ("long", -7, "UInt32", "out-of-range"),
        ("string", "k", "String", "k"),
        ({"type": "string", "connect.name": "x"}, "k", "String", "k"),
        (["null", "string"], "k", "Nullable(String)", "k"),
        ({"type": "long", "logicalType": "time-micros"}, 5, "Time64(6)", "00:00:00.000005"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", "String", "ab"),
        ({"type": "array", "items": "long"}, [1, 2], "Array(UInt8)", [1, 2]),
    ],
)
def test_a_key_of_avro_that_is_no_record_is_the_one_field_that_is_read(
    kind: Any, value: Any, type_text: str, becomes: Any
) -> None:
    key = framed(SCHEMAS.add(kind), body(kind, value))
    columns = (Column("part", type_text), Column("name", "String"))
    text = keyed(
        KeyFormat("AvroConfluent", REGISTERED), *columns, mapping=(Mapped("part", "key", "id"),)
    )
    decoded = decode(text, [key, key[:-1]], [b'{"name":"a"}'] * 2)
    whole, cut = said(decoded)[:-1], said(decoded)[-1]
    assert (rows(decoded) or whole) in ([[becomes, "a"]], [(0, becomes, "part")])
    assert cut[:2] == (1, "cannot-parse")


def test_a_key_of_avro_that_is_no_record_has_no_several_fields() -> None:
    key = framed(SCHEMAS.add("long"), body("long", 7))
    decoded = decode(keyed(KeyFormat("AvroConfluent", REGISTERED)), [key], [b'{"name":"a"}'])
    assert [bad.reason for bad in decoded.bad] == ["cannot-parse"]
    assert decoded.bad[0].error.endswith("the Avro schema is a long, not a record")


def test_each_row_of_a_message_has_the_key_of_its_message() -> None:
    text = keyed(KeyFormat("JSONEachRow"), rows="many", check=("name != 'x'", "`_key.id` < 100"))
    keys: list[bytes | None] = [b'{"id":1,"part":"a"}', b"?", b'{"id":200,"part":"c"}', None]
    keys.append(b'{"id":5,"part":"e"}')
    values = [b'[{"name":"a"},{"name":"b"}]', b'[{"name":"c"},{"name":"d"}]', b'{"name":"e"}']
    values += [b"[]", b'[{"name":"f"},{"name":"x"}]']
    decoded = decode(text, keys, values)
    assert rows(decoded) == [[1, "a", "a"], [1, "a", "b"]]
    assert [(index, reason) for index, reason, _ in said(decoded)] == [
        (1, "not-one-object"),
        (2, "check-failed"),
        (4, "check-failed"),
    ]
    assert decoded.empty == (1006,), "a message of no rows needs no key"


def test_keys_of_messages_without_values_delete() -> None:
    columns = (Column("id", "UInt32"), Column("name", "String"), Column("gone", "UInt8"))
    mapping = (Mapped("gone", "kafka", "_tombstone"), Mapped("id", "key", "id"))
    text = keyed(
        KeyFormat("JSONEachRow"),
        *columns,
        mapping=mapping,
        delivery="replacing",
        tombstones="delete",
        envelope="debezium",
        fields=(("__op", "String"),),
    )
    keys: list[bytes | None] = [b'{"schema":{},"payload":{"id":1}}', b'{"id":2}', b"{}"]
    values = [b'{"op":"c","after":{"id":9,"name":"a"}}', b"{}", b"{}"]
    decoded = decode(text, keys, values, dead=(1, 2))
    assert rows(decoded) == [[1, "a", 0], [2, "", 1]]
    assert [(index, reason) for index, reason, _ in said(decoded)] == [(2, "no-column")]


def test_a_large_range_stays_in_one_block_and_in_order() -> None:
    count = 70_000
    keys: list[bytes | None] = [b'{"id":%d,"part":""}' % n for n in range(count)]
    keys[17] = b"?"
    decoded = decode(
        keyed(KeyFormat("JSONEachRow")), keys, [b'{"name":"%d"}' % n for n in range(count)]
    )
    assert decoded.rows == count - 1
    found = rows(decoded)
    assert all(row[0] == int(row[2]) for row in found)
    assert np.array_equal(decoded.offsets, np.delete(1000 + 2 * np.arange(count), 17))


def test_schemas_of_keys_and_values_are_listed_together() -> None:
    value = record(("name", "string"), name="Value")
    known_key, known_value = SCHEMAS.add(AVRO_KEY), SCHEMAS.add(value)
    text = keyed(KeyFormat("AvroConfluent", REGISTERED), format="AvroConfluent", options=REGISTERED)
    key = framed(known_key, body(AVRO_KEY, {"id": 1, "part": "p"}))
    good = framed(known_value, body(value, {"name": "a"}))
    unknown = framed(999_999, b"")
    for keys, values in (([key, unknown], [good, good]), ([key, key], [good, unknown])):
        with pytest.raises(UnknownSchemasError) as refused:
            decode(text, list(keys), values)
        assert refused.value.found.numbers == (999_999,)
        assert refused.value.found.known == tuple(sorted((known_key, known_value)))
