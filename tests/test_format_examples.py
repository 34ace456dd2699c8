"""The examples of docs/FORMATS.md, EVENTS.md, DELIVERIES.md and RECIPES.md, run: an entry, its
table, messages, and what becomes of them.

Blocks that follow each other: ```toml with a [[table]], ```sql with the CREATE TABLE (and a view
into another table, which is read then), perhaps the schema of a registry (```avsc, ```proto,
```jsonschema), the messages, then ```text with rows and `dead letter N: reason` (N from 0).
Messages are one a line, in ```hex as bytes, in ```keyed behind their keys. In ```kafka `---` stands
between them, and before a value its key and headers may stand, one a line, and an empty line.
```python makes a list `values`. Behind a schema they are records in JSON, which Confluent's
serializers write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from sluice.clickhouse.schema import TableFacts
from sluice.config import load
from sluice.core.load_spec import Column, TableSpec
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.engine.session import identifier, run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import Headers, MessageFacts, alone
from sluice.decode.messages.memory import memory_file
from sluice.decode.schema.protobuf_schema import compile_files
from sluice.decode.schema.registry import provide
from sluice.driver.specs import build_spec

DOCUMENTS = Path(__file__).parent.parent / "docs"
#: The golden outcomes hold what their examples become, too.
OF_FORMATS = tuple(DOCUMENTS / name for name in ("FORMATS.md", "EVENTS.md", "DELIVERIES.md"))
RECIPES = DOCUMENTS / "RECIPES.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"(?:[\w-]+: .*\n)+\n")
SCHEMAS = {"avsc": "AVRO", "proto": "PROTOBUF", "jsonschema": "JSON"}
BASE = """
[pipeline]
name = "p"
[[connector]]
name = "c"
brokers = "b:9092"
topics = ["events"]
[clickhouse]
database = "shop"
shards = { s1 = ["http://h:8123"] }
durability = "single"
[batch]
"""
#: When Kafka got all messages of the examples.
RECEIVED_MS = 1_767_225_600_000  # 2026-01-01 00:00:00


@dataclass(frozen=True)
class Message:
    value: bytes
    key: bytes | None = None
    headers: Headers = ()


@dataclass(frozen=True)
class Example:
    """A block is its word and its text.

    :param blocks: the messages, behind their schema if they have one.
    """

    entry: str
    table: str
    blocks: tuple[tuple[str, str], ...]
    outcome: tuple[str, ...]

    @property
    def messages(self) -> tuple[Message, ...]:
        *schemas, messages = self.blocks
        return tuple(serialized(*schemas, messages) if schemas else written(*messages))

    @property
    def statements(self) -> list[str]:
        return self.table.removesuffix(";\n").split(";\n")

    @property
    def name(self) -> str:
        found = re.search(r'name = "(\w+)"', self.entry)
        assert found
        return found[1]


def examples(*documents: Path) -> list[Example]:
    return [example for path in documents for example in examples_of(path)]


def examples_of(document: Path) -> Iterator[Example]:
    blocks = BLOCK.findall(document.read_text())
    for place, (kind, entry) in enumerate(blocks):
        kinds = [kind for kind, _ in blocks[place : place + 5]]
        if kind != "toml" or "text" not in kinds or kinds[1] != "sql":
            continue
        end = kinds.index("text")
        (_, statement), *messages, (_, outcome) = blocks[place + 1 : place + end + 1]
        yield Example(entry, statement, tuple(messages), tuple(outcome.splitlines()))


def written(kind: str, text: str) -> Iterator[Message]:
    """The messages of a block, as they stand there."""
    if kind == "python":
        names: dict[str, Any] = {}
        exec(text, names)
        yield from map(Message, names["values"])
    elif kind == "kafka":
        for one in text.split("---\n"):
            head = HEAD.match(one)
            lines = head[0].splitlines()[:-1] if head else []
            said = dict(line.split(": ", 1) for line in lines)
            key = said.pop("key", None)
            headers = tuple((name, value.encode()) for name, value in said.items())
            value = one[head.end() if head else 0 :].removesuffix("\n")
            yield Message(value.encode(), None if key is None else key.encode(), headers)
    else:
        for line in text.splitlines():
            if kind == "hex":
                yield Message(bytes.fromhex(line.split("#")[0]))
            elif kind == "keyed":
                key, _, value = line.encode().partition(b" ")
                yield Message(value, key)
            else:
                yield Message(line.encode())


#: The schemas of all pages, in memory.
REGISTRY = SchemaRegistryClient.new_client({"url": "mock://recipes"})


class Registered:
    """The same, as decoders ask for it."""

    def schema(self, number: int) -> RegisteredSchema:
        found = REGISTRY.get_schema(number)
        return RegisteredSchema(found.schema_type or "", found.schema_str or "")


def serialized(schema: tuple[str, str], messages: tuple[str, str]) -> Iterator[Message]:
    """Records as Confluent's serializers write them, in a registry's framing."""
    kind, text = schema
    provide("http://localhost:8081", Registered())
    write: Any
    if kind == "avsc":
        write = AvroSerializer(REGISTRY, Schema(text, "AVRO"))
    elif kind == "jsonschema":
        write = JSONSerializer(Schema(text, "JSON"), REGISTRY)
    else:
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(compile_files({"a.proto": text}, "a.proto")).file:
            pool.AddSerializedFile(file.SerializeToString())
        (first, *_) = pool.FindFileByName("a.proto").message_types_by_name.values()
        made = GetMessageClass(first)
        serializer = ProtobufSerializer(made, REGISTRY, {"use.deprecated.format": False})

        def write(record: Any, context: SerializationContext) -> bytes:
            return serializer(ParseDict(record, made()), context)

    for number, line in enumerate(messages[1].splitlines()):
        context = SerializationContext(f"{kind}{number}", MessageField.VALUE)
        yield Message(write(json.loads(line), context))


def created(statements: list[str], table: str) -> tuple[Column, ...]:
    """The columns of a table that the engine has made, alone in its database."""
    for statement in ("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", *statements):
        run(statement, "Null")
    described = f"DESCRIBE TABLE shop.{table} SETTINGS print_pretty_type_names = 0"
    lines = run(described, "TSVRaw").bytes().decode().splitlines()
    return tuple(Column(*line.split("\t")[:4]) for line in lines)


def text_of(example: Example, folder: Path) -> TableSpec:
    """Of its entry, with its table in the engine."""
    path = folder / "sluice.toml"
    entry = example.entry.replace("[[table]]\n", '[[table]]\nlineage = "auto"\n')
    path.write_text(BASE + entry)
    configuration = load(path, {})
    (table,) = configuration.tables
    statement, *views = example.statements
    facts = TableFacts(
        url="",
        database="shop",
        table=table.table,
        uuid="",
        engine=re.search(r"ENGINE = (\w+)", statement)[1],  # type: ignore[index]
        engine_full=statement.rpartition("ENGINE = ")[2],
        columns=created([statement, *views], table.table),
        partition_key="",
        sorting_key=statement.rpartition("ORDER BY ")[2].strip(),
        replicated=False,
        zookeeper_path="",
        replicas_total=1,
        replicas_active=1,
        is_readonly=False,
        window_blocks=1000,
        window_seconds=None,
        async_insert=False,
        dependents=(),
    )
    text = build_spec(configuration, "c", {table.name: facts}, "UTC", "chdb")
    return text.tables[0]


def decoded(text: TableSpec, messages: tuple[Message, ...]) -> Decoded:
    count = len(messages)
    with MessageBuffer(framing_of(text)) as buffer:
        buffer.add([one.value for one in messages], range(count))
        buffer.facts = MessageFacts(
            alone("events", 0),
            [one.key for one in messages],
            [RECEIVED_MS] * count,
            [one.headers for one in messages],
            [one.key is not None and not one.value for one in messages],
        )
        return make_decoder(text).decode(buffer, alone("events", 0))


@pytest.mark.parametrize("example", examples(*OF_FORMATS, RECIPES), ids=lambda one: one.name)
def test_an_example_does_what_it_says(example: Example, tmp_path: Path) -> None:
    text = text_of(example, tmp_path)
    made = decoded(text, example.messages)
    lines: list[str] = []
    if made.rows:
        names = ", ".join(map(identifier, made.columns))
        with memory_file(made.native) as path:
            settings = "SETTINGS optimize_on_insert = 0, session_timezone = 'UTC'"
            source = f"SELECT * FROM file('{path}', Native)"
            run(f"INSERT INTO shop.{text.table} ({names}) {settings} {source}", "Null")
        read = re.findall(r"CREATE TABLE (\S+)", example.table)[-1]
        raw = run(f"SELECT * FROM {read} SETTINGS session_timezone = 'UTC'", "TSV").bytes()
        lines = raw.decode().splitlines()
    lines += [f"dead letter {bad.index}: {bad.reason}" for bad in made.bad]
    assert sorted(lines) == sorted(example.outcome), made.bad


def test_dead_letters_name_the_meter(tmp_path: Path) -> None:
    """The comment in a check is how; and which of two reasons comes first."""
    (example,) = (one for one in examples(*OF_FORMATS) if one.name == "meter_events")
    entry = text_of(example, tmp_path)
    assert entry.deduplicate is not None and entry.deduplicate.scope == "p/shop.meter_events"
    assert entry.require == ("subject", "time", "source", "id")
    bad = {bad.index: bad for bad in decoded(entry, example.messages).bad}
    assert bad[2].error.startswith("the check /* meter tokens_total */ type != 'prompt' OR ")
    assert bad[3].error.startswith("the check /* meter request_seconds_total */ type != ")
    assert bad[4].error.startswith("the check /* declared types */ type IN ")
    assert all(bad[n].error.endswith(" does not hold") for n in (2, 3, 4))
    assert [bad[n].column for n in (5, 6, 7)] == ["id", "id", "subject"]


def test_there_are_examples_of_everything() -> None:
    """No block was passed over, and no name stands for two."""
    named = [example.name for example in examples(*OF_FORMATS, RECIPES)]
    assert {"clicks", "visits", "usage", "meter_events", "accounts", "orders"} <= {*named}
    assert len({*named}) == len(named)
    assert len(list(examples_of(RECIPES))) == RECIPES.read_text().count("```toml\n")
