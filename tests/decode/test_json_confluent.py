"""Messages of Confluent's serializers: JSON behind a registry's header, and GUIDs in headers."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from sluice.core.load_spec import Column, TableSpec
from sluice.core.schema_ids import RegisteredSchema, guid_of, number_of_guid
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import Headers, MessageFacts, alone, facts_named
from sluice.decode.schema.registry import UnknownSchemasError, provide
from sluice.kafka.registry import RegistryAccess, RegistryClient
from tests.decode.protobuf_support import Order
from tests.decode.support import fill, rows, table
from tests.support.registry import Registry

URL = "http://json.test"
ORDER = {
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "note": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "required": ["sku"]}},
    },
    "required": ["id"],
}
COLUMNS = (Column("id", "UInt8"), Column("note", "Nullable(String)"))


class Guids:
    """What a client of Confluent's library knows, by GUID."""

    def __init__(self, client: SchemaRegistryClient) -> None:
        self.client = client

    def schema(self, number: int) -> RegisteredSchema | None:
        found = self.client.get_schema_by_guid(guid_of(number))
        return RegisteredSchema(found.schema_type, found.schema_str)


class Schemas:
    def __init__(self) -> None:
        self.texts: dict[int, RegisteredSchema] = {}

    def schema(self, number: int) -> RegisteredSchema | None:
        return self.texts.get(number)


SCHEMAS = Schemas()
provide(URL, SCHEMAS)


def entry(*columns: Column, url: str = URL, **changes: Any) -> TableSpec:
    changes = {"format": "JSONConfluent"} | changes
    options = changes.pop("options", {}) | {"registry": url}
    return table(*columns, options=tuple(sorted(options.items())), **changes)


def decode(text: TableSpec, values: list[bytes], headers: list[Headers] | None = None) -> Decoded:
    nothing: list[Headers] = [()] * len(values)
    with MessageBuffer(framing_of(text)) as buffer:
        fill(buffer, values)
        buffer.facts = MessageFacts(
            alone("orders", 3), [None] * len(values), [0] * len(values), headers or nothing
        )
        return make_decoder(text).decode(buffer, alone("orders", 3))


def framed(number: int, body: str) -> bytes:
    return struct.pack(">BI", 0, number) + body.encode()


def said(decoded: Decoded) -> list[tuple[int, str, str]]:
    return [(one.index, one.reason, one.error) for one in decoded.bad]


@pytest.mark.slow
def test_what_confluent_writes_is_read_with_a_real_registry(registry: Registry) -> None:
    client = SchemaRegistryClient({"url": registry.url})
    serializer = JSONSerializer(json.dumps(ORDER), client)
    context = SerializationContext("json-orders", MessageField.VALUE)
    values = [serializer({"id": number, "note": None}, context) for number in (1, 2)]
    assert values[0][:1] == b"\0"
    provide(registry.url, RegistryClient(RegistryAccess(registry.url)))
    for options in ({}, {"validate": "true"}):
        decoded = decode(entry(*COLUMNS, url=registry.url, options=options), values)
        assert rows(decoded) == [[1, None], [2, None]] and not decoded.bad


def test_the_header_is_taken_off_and_the_registry_is_not_asked() -> None:
    values = [framed(7, '{"id":1}'), b'{"id":2}', framed(7, '{"id":300}'), b"\0\0", framed(9, "{")]
    decoded = decode(entry(*COLUMNS, url="http://nobody"), values)
    assert rows(decoded) == [[1, None]]
    no_header = "the message does not begin with a zero byte and a schema number"
    assert [(one.index, one.offset, one.reason) for one in decoded.bad] == [
        (1, 1002, "cannot-parse"),
        (2, 1004, "out-of-range"),
        (3, 1006, "cannot-parse"),
        (4, 1008, "not-one-object"),
    ]
    assert said(decoded)[0][2] == no_header


def test_messages_are_compared_with_their_schemas() -> None:
    SCHEMAS.texts |= {
        1: RegisteredSchema("JSON", json.dumps(ORDER)),
        2: RegisteredSchema("JSON", '{"$ref": "o.json"}', (("o.json", json.dumps(ORDER)),)),
        3: RegisteredSchema("AVRO", '"string"'),
        4: RegisteredSchema("JSON", '{"type": 5}'),
        5: RegisteredSchema("JSON", '{"$ref": "elsewhere.json"}'),
    }
    good = '{"id":1,"note":null}'
    values = [
        *(framed(number, good) for number in (1, 2, 3, 4, 5)),
        framed(1, '{"note":"x"}'),
        framed(2, '{"id":"1"}'),
        framed(1, '{"id":1,"lines":[{"sku":1},{}]}'),
        framed(1, '{"id":1'),
    ]
    decoded = decode(entry(*COLUMNS, options={"validate": "true"}), values)
    assert [int(offset) for offset in decoded.offsets] == [1000, 1002]
    found = {index: (reason, error) for index, reason, error in said(decoded)}
    assert found[2] == ("cannot-parse", "schema 3 of the registry is AVRO, not JSON")
    assert found[3][1].startswith("schema 4 of the registry is no JSON Schema: ")
    assert found[4][1].startswith("schema 5 of the registry cannot be used: ")
    allowed = "does not allow it"
    assert found[5] == (
        "breaks-schema",
        f"schema 1 of the registry {allowed}: 'id' is a required property",
    )
    assert found[6] == (
        "breaks-schema",
        f"field id: schema 2 of the registry {allowed}: '1' is not of type 'integer'",
    )
    assert found[7][1].startswith(f"field lines[1]: schema 1 of the registry {allowed}: ")
    assert found[8][0] == "not-one-object"
    assert decoded.bad[4].column == "id"


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":01,"note":5}',
        b'{"id":1,"lines":[{}],"note":"a\tb"}',
        b'{"id":1,"lines":[{}],"note":"\xff"}',
        b'{"id":1,"lines":[{}],"other":%s}' % (b"1" * 4301),
    ],
    ids=["zero", "control character", "no UTF-8", "long integer"],
)
def test_what_python_does_not_read_as_json_is_compared_or_refused(body: bytes) -> None:
    SCHEMAS.texts[1] = RegisteredSchema("JSON", json.dumps(ORDER))
    columns = (Column("id", "UInt8"), Column("note", "String"))
    head = struct.pack(">BI", 0, 1)
    assert decode(entry(*columns), [head + body]).rows == 1
    decoded = decode(entry(*columns, options={"validate": "true"}), [head + body])
    assert [(one.reason, decoded.rows) for one in decoded.bad] == [("breaks-schema", 0)]
    sound = body.replace(b'"lines":[{}],', b"")
    decoded = decode(entry(*columns, options={"validate": "true"}), [head + sound])
    is_refused = b"other" in body or b"01" in body
    assert len(decoded.bad) == is_refused
    assert not is_refused or "cannot be compared with schema 1" in decoded.bad[0].error


@pytest.mark.parametrize("written", ["{}\n{}", "[{},{}]", " {} , {}\n"])
def test_each_row_of_a_message_of_several_is_compared(written: str) -> None:
    SCHEMAS.texts[1] = RegisteredSchema("JSON", json.dumps(ORDER))
    text = entry(Column("id", "UInt8"), rows="many", options={"validate": "true"})
    good, bad = '{"id":1}', '{"id":2,"lines":[{}]}'
    values = [written.replace("{}", "%s") % rows_of for rows_of in ((good, good), (good, bad))]
    decoded = decode(text, [framed(1, value) for value in [*values, "[]"]])
    assert rows(decoded) == [[1], [1]] and decoded.empty == (1004,)
    ((index, reason, error),) = said(decoded)
    assert (index, reason) == (1, "breaks-schema")
    assert error.startswith("row 1: field lines[0]: schema 1 of the registry does not allow it: ")


ARRAY = {"type": "array", "items": ORDER, "minItems": 2}
ANY_OF = [{"type": "null"}, {"allOf": [ORDER]}]


@pytest.mark.parametrize(
    ("schema", "written", "error"),
    [
        (ARRAY, '[{"id":1},{"id":2}]', ""),
        (ARRAY, '[{"id":1},{"note":"x"}]', "field [1]: "),
        (ARRAY, '[{"id":1}]', "schema "),
        (ARRAY, '{"id":1}\n{"id":2}', "row 0: "),
        ({"type": ["object", "array"]}, '[{"id":1},{"id":2}]', ""),
        ({"oneOf": [ORDER, ARRAY]}, '[{"id":1},{"id":2}]', ""),
        ({"oneOf": [ORDER, ARRAY]}, '{"id":1} {"id":2}', ""),
        ({"oneOf": [ORDER, ARRAY]}, '[{"id":1}]', "schema "),
        ({"anyOf": ANY_OF}, '[{"id":1},{"id":2}]', ""),
        ({"anyOf": ANY_OF}, '[{"id":1},{}]', "row 1: "),
    ],
)
def test_an_array_is_compared_as_one_if_its_schema_takes_arrays(
    schema: dict[str, Any], written: str, error: str
) -> None:
    number = 100 + len(SCHEMAS.texts)  # what is known of a number stays known
    SCHEMAS.texts[number] = RegisteredSchema("JSON", json.dumps(schema))
    text = entry(Column("id", "UInt8"), rows="many", options={"validate": "true"})
    decoded = decode(text, [framed(number, written)])
    if not error:
        assert rows(decoded) == [[1], [2]] and not decoded.bad
        return
    ((_, reason, words),) = said(decoded)
    assert reason == "breaks-schema" and words.startswith(error), words
    assert f"schema {number} of the registry does not allow it: " in words


def test_a_schema_that_is_not_known_refuses_all_or_is_a_dead_letter() -> None:
    SCHEMAS.texts[1] = RegisteredSchema("JSON", json.dumps(ORDER))
    values = [framed(1, '{"id":1}'), framed(99, '{"id":2}')]
    options = {"validate": "true"}
    with pytest.raises(UnknownSchemasError) as refused:
        decode(entry(*COLUMNS, options=options), values)
    assert (refused.value.found.numbers, refused.value.found.known) == ((99,), (1,))
    decoded = decode(entry(*COLUMNS, options=options, schemas=(1,)), values)
    assert rows(decoded) == [[1, None]]
    assert said(decoded) == [(1, "unknown-schema", "the registry did not know schema 99 in time")]


def test_several_objects_and_mappings_behind_a_header() -> None:
    text = entry(Column("id", "UInt8"), Column("n", "UInt8"), rows="many", fields=(("x", "UInt8"),))
    decoded = decode(text, [framed(1, '[{"id":1,"n":2},{"id":2,"n":3}]'), framed(1, "[]")])
    assert rows(decoded) == [[1, 2], [2, 3]] and decoded.empty == (1002,)


def test_guids_in_headers_name_the_schema() -> None:
    """As Confluent's library writes them, by its registry in memory."""
    client = SchemaRegistryClient.new_client({"url": "mock://guids"})
    provide("mock://guids", Guids(client))
    settings = {"schema.id.serializer": header_schema_id_serializer}
    avro = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    serializers = {
        "AvroConfluent": (AvroSerializer(client, json.dumps(avro), conf=settings), {"id": 1}),
        "JSONConfluent": (JSONSerializer(json.dumps(ORDER), client, conf=settings), {"id": 1}),
        "ProtobufConfluent": (ProtobufSerializer(Order, client, conf=settings), Order(id=1)),
    }
    for name, (serializer, value) in serializers.items():
        context = SerializationContext(f"{name}-guids", MessageField.VALUE, headers=[])
        written = serializer(value, context)
        assert context.headers[0][0] == "__value_schema_id"
        options = {"schema_id": "header"}
        if name == "JSONConfluent":
            options["validate"] = "true"
        text = entry(Column("id", "UInt8"), format=name, url="mock://guids", options=options)
        assert facts_named(text) == ("_headers",)
        guid = tuple(context.headers)
        broken = (("__value_schema_id", guid[0][1][:9]),)
        decoded = decode(text, [written, written, written], [guid, (), broken])
        assert rows(decoded) == [[1]]
        assert [one.index for one in decoded.bad] == [1, 2]
        assert "no header __value_schema_id" in decoded.bad[1].error


def test_of_several_headers_the_last_one_names_the_schema() -> None:
    """A program that passes on the headers of what it read writes its own behind them."""
    schemas, name = Schemas(), "__value_schema_id"
    guids = [b"\1" + bytes([place] * 16) for place in (1, 2)]
    for guid, order in zip(guids, (("id", "n"), ("n", "id")), strict=True):
        fields = [{"name": field, "type": "long"} for field in order]
        avro = json.dumps({"type": "record", "name": "R", "fields": fields})
        schemas.texts[number_of_guid(guid[1:])] = RegisteredSchema("AVRO", avro)
    provide("http://guids.test", schemas)
    text = entry(
        Column("id", "UInt8"),
        Column("n", "UInt8"),
        format="AvroConfluent",
        url="http://guids.test",
        options={"schema_id": "header"},
    )
    first, second = ((name, guid) for guid in guids)
    null = (name, None)
    sent: list[Headers] = [(first, second), (second, first), (null, first, null), (second, null)]
    decoded = decode(text, [b"\x02\x04"] * len(sent), sent)
    assert not decoded.bad and rows(decoded) == [[2, 1], [1, 2], [1, 2], [2, 1]]


def test_a_number_in_the_value_counts_where_no_header_is() -> None:
    text = entry(Column("id", "UInt8"), options={"schema_id": "header"})
    decoded = decode(text, [framed(1, '{"id":5}')])
    assert rows(decoded) == [[5]]
