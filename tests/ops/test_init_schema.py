"""A configuration and a table from the schemas that a real registry has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.errors import TerminalError
from sluice.decode.schema.protobuf_schema import compile_files
from sluice.kafka.registry import RegistryAccess
from sluice.ops.init_topic import Proposal, Wanted, propose
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka
from tests.support.registry import Registry

FIRST = """{"type":"record","name":"Order","namespace":"shop","fields":[
{"name":"id","type":"long"},{"name":"note","type":["null","string"],"default":null},
{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"}},
{"name":"state","type":{"type":"enum","name":"State","symbols":["NEW","PAID"]}},
{"name":"tags","type":{"type":"array","items":"string"}},
{"name":"buyer","type":["null",{"type":"record","name":"Buyer","fields":[
{"name":"name","type":"string"}]}],"default":null}]}"""
SECOND = FIRST.replace('{"name":"id"', '{"name":"count","type":"int","default":1},{"name":"id"')
PROTO = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto"; message Line { string article = 1; double price = 2; }
message Order { int64 id = 1; optional string note = 2; google.protobuf.Timestamp at = 3;
repeated Line lines = 4; google.protobuf.Int32Value count = 5; map<string, int32> marks = 6; }"""


NAME = {"name": "name", "type": "string"}


def made(kafka: Kafka, topic: str, url: str, registry: Registry) -> Proposal:
    access = RegistryAccess(registry.url, token="t0ken")
    return propose(Wanted(topic, kafka.brokers, url, table="t", registry=access))


def created(url: str, statement: str) -> dict[str, str]:
    """The types of the columns that the statement makes on a server, without the lineage."""
    for database in fresh_database(url):
        with Server(url) as server:
            server.execute(statement.replace("`default`", f"`{database}`"))
            rows = server.query(
                "SELECT name, type FROM system.columns WHERE table = 't' AND NOT "
                f"startsWith(name, '_') AND database = '{database}' ORDER BY position"
            )
        return {str(row["name"]): str(row["type"]) for row in rows}
    raise AssertionError("no database")


def test_avro_of_two_schemas(kafka: Kafka, registry: Registry, embedded_url: str) -> None:
    topic = kafka.topic()
    client = SchemaRegistryClient({"url": registry.url})
    row = {"id": 7, "at": 1_767_225_600_000, "state": "NEW", "tags": ["a"], "buyer": {"name": "b"}}
    where = SerializationContext(topic, MessageField.VALUE)
    values = [AvroSerializer(client, FIRST)(row, where)] * 3
    values += [AvroSerializer(client, SECOND)(row | {"count": 2, "note": "n"}, where)]
    kafka.produce(topic, values)
    proposal = made(kafka, topic, embedded_url, registry)
    assert created(embedded_url, proposal.statement) == {
        "id": "Int64",
        "note": "Nullable(String)",
        "at": "DateTime64(3)",
        "state": "Enum8('NEW' = 0, 'PAID' = 1)",
        "tags": "Array(String)",
        "buyer": "Tuple(name Nullable(String))",
        "count": "Int32",
    }
    assert 'format = "AvroConfluent"' in proposal.configuration


def test_records_of_avro_that_may_be_null(
    kafka: Kafka, registry: Registry, embedded_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    city = {"name": "city", "type": {"type": "record", "name": "c", "fields": [NAME]}}
    buyer = {"type": "record", "name": "b", "fields": [NAME, city]}
    tags = ["null", {"type": "array", "items": ["null", "c"]}]
    fields = [{"name": "id", "type": "long"}, {"name": "buyer", "type": ["null", buyer]}]
    fields.append({"name": "tags", "type": tags})
    schema = json.dumps({"type": "record", "name": "Row", "fields": fields})
    topic, client = kafka.topic(), SchemaRegistryClient({"url": registry.url})
    where = SerializationContext(topic, MessageField.VALUE)
    serializer = AvroSerializer(client, schema)
    there = {"name": "b", "city": {"name": "Ulm"}}
    events = [{"id": 1, "buyer": there, "tags": [None, {"name": "x"}]}]
    events.append({"id": 2, "buyer": None, "tags": None})
    kafka.produce(topic, [serializer(event, where) for event in events])
    with caplog.at_level("WARNING", logger="sluice.init"):
        proposal = made(kafka, topic, embedded_url, registry)
    name = "Nullable(String)"
    assert created(embedded_url, proposal.statement) == {
        "id": "Int64",
        "buyer": f"Tuple(name {name}, city Tuple(name {name}))",
        "tags": f"Array(Tuple(name {name}))",
    }
    assert 'on_null = "default"' in proposal.configuration
    assert "null is loaded as what its type has for none, as in tags" in caplog.text
    assert "dead letters" not in caplog.text


def test_events_of_debezium_in_avro(
    kafka: Kafka, registry: Registry, embedded_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = {"name": "name", "type": ["null", "string"], "default": None}
    values = [{"name": "id", "type": "long"}, name]
    row = {"type": "record", "name": "Value", "fields": values}
    sides = [
        {"name": "before", "type": ["null", row], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
    ]
    fields = [*sides, {"name": "op", "type": "string"}]
    schema = json.dumps({"type": "record", "name": "Envelope", "fields": fields})
    topic, client = kafka.topic(), SchemaRegistryClient({"url": registry.url})
    where = SerializationContext(topic, MessageField.VALUE)
    serializer = AvroSerializer(client, schema)
    events = [
        {"before": None, "after": {"id": 1, "name": "a"}, "op": "c"},
        {"before": {"id": 1, "name": None}, "after": None, "op": "d"},
    ]
    kafka.produce(topic, [serializer(event, where) for event in events])
    with caplog.at_level("WARNING", logger="sluice.init"):
        proposal = made(kafka, topic, embedded_url, registry)
    types = {"id": "Nullable(Int64)", "name": "Nullable(String)"}
    assert created(embedded_url, proposal.statement) == types
    assert "    __op String" in proposal.statement
    assert 'envelope = "debezium"' in proposal.configuration
    assert "dead letters" not in caplog.text


def test_protobuf(kafka: Kafka, registry: Registry, embedded_url: str, tmp_path: Path) -> None:
    topic = kafka.topic()
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(compile_files({"o.proto": PROTO}, "o.proto")).file:
        pool.AddSerializedFile(file.SerializeToString())
    order = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(id=7)
    order.lines.add(article="a", price=1.5)
    client = SchemaRegistryClient({"url": registry.url})
    serializer = ProtobufSerializer(type(order), client, {"use.deprecated.format": False})
    where = SerializationContext(topic, MessageField.VALUE)
    kafka.produce(topic, [serializer(order, where)])
    proposal = made(kafka, topic, embedded_url, registry)
    assert created(embedded_url, proposal.statement) == {
        "id": "Int64",
        "note": "Nullable(String)",
        "at": "Nullable(DateTime64(9, 'UTC'))",
        "lines": "Array(Tuple(article String, price Float64))",
        "count": "Nullable(Int32)",
        "marks": "Map(String, Int32)",
    }
    path = tmp_path / "sluice.toml"
    path.write_text(proposal.configuration)
    read = load(path, {"REGISTRY_TOKEN": "t0ken"})
    assert read.registry is not None
    assert (read.registry.url, read.registry.token.reveal()) == (registry.url, "t0ken")
    assert read.tables[0].format == "ProtobufConfluent" and "t0ken" not in proposal.configuration


def test_without_a_registry_and_with_schemas_that_it_does_not_know(
    kafka: Kafka, registry: Registry
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"\0\0\x7f\0\x07\x02abc"] * 3)
    with pytest.raises(TerminalError, match=r"schemas 8323079") as refused:
        propose(Wanted(topic, kafka.brokers))
    assert "--registry" in refused.value.hint
    with pytest.raises(TerminalError, match="3 messages of the sample name schema 8323079"):
        made(kafka, topic, "", registry)


def test_json_with_a_schema(kafka: Kafka, registry: Registry, embedded_url: str) -> None:
    schema = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"}'
    head = b"\0" + registry.register("j", schema, "JSON").to_bytes(4, "big")
    topic = kafka.topic()
    rows = ['{"id":1,"note":null,"at":"2026-01-02T03:04:05Z"}', '{"id":2,"note":"x","tags":["a"]}']
    kafka.produce(topic, [head + row.encode() for row in rows])
    proposal = made(kafka, topic, embedded_url, registry)
    types = created(embedded_url, proposal.statement)
    assert types["id"] == "Int64" and types["note"] == "Nullable(String)"
    assert types["at"].startswith("Nullable(DateTime64(3") and types["tags"] == "Array(String)"
    assert 'format = "JSONConfluent"' in proposal.configuration


def test_a_kind_that_cannot_be_loaded_is_named(kafka: Kafka, registry: Registry) -> None:
    schema = '{"$schema": "http://json-schema.org/draft-07/schema#", "type": "array"}'
    number = registry.register("k", schema, "JSON")
    topic = kafka.topic()
    kafka.produce(topic, [b"\0" + number.to_bytes(4, "big") + b"[1]"])
    with pytest.raises(TerminalError, match="its schemas are of kind JSON"):
        made(kafka, topic, "", registry)
