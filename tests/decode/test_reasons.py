"""What is said of messages that make no row: what is wrong, with which field, and what to set if
that helps; no other library's text alone."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from sluice.core.load_spec import Column
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.messages.decoded import BadMessage
from tests.decode.avro_support import SCHEMAS, URL, framed
from tests.decode.support import table
from tests.decode.text_support import decode_text

COLUMNS = (
    Column("id", "UInt32"),
    Column("s", "String"),
    Column("b", "Bool"),
    Column("n.k", "Array(String)"),
    Column("n.v", "Array(Int32)"),
)


def bad(text: Any, value: bytes) -> BadMessage:
    (found,) = decode_text(text, [value]).bad
    return found


@pytest.mark.parametrize(
    ("value", "column", "words"),
    [
        (b'{"id":1,"s":"x","id":2}', "id", "the field id stands there twice"),
        (
            b'{"n.k":["a"],"n.v":[1,2]}',
            "n.k",
            "the columns of n have arrays of different lengths: n.k 1, n.v 2",
        ),
        (b'{"id":1,"s":"\\ud800"}', "s", "the field s has half of a pair of \\u escapes"),
        (b'{"b":"yes"}', "b", '"yes" cannot be read as column b Bool'),
        (b'{"id":1.5}', "id", "1.5 cannot be read as column id UInt32"),
        (b"{'id':1}", "", "the message is not JSON: Expecting property name"),
    ],
)
def test_json(value: bytes, column: str, words: str) -> None:
    found = bad(table(*COLUMNS), value)
    assert (found.reason, found.column) == ("cannot-parse", column)
    assert words in found.error


@pytest.mark.parametrize("format_name", ["Parquet", "ORC", "Arrow", "ArrowStream", "Native"])
def test_files_that_are_none(format_name: str) -> None:
    text = table(*COLUMNS, format=format_name, rows="many")
    for value in (b"\x01\x01\x02id\x06UInt32\x01", gzip.compress(b"x" * 100)):
        said = bad(text, value).error
        if format_name != "Native" or value[:1] == b"\x01":
            assert said.startswith(f"the message cannot be read as {format_name}: ")
        for foreign in ("specify", "std::", "Code:", "DB::", "_DATA)", "structure cannot"):
            assert foreign not in said
        assert ("begins like gzip" in said) == (value[:2] == b"\x1f\x8b" and "cannot" in said)


def register(kind: str, text: str) -> int:
    number = 1000 + len(SCHEMAS.texts)
    SCHEMAS.texts[number] = RegisteredSchema(kind, text)
    return number


PROTO = 'syntax = "proto3"; message A { int32 id = 1; string s = 2; }'


@pytest.mark.parametrize(
    ("format_name", "kind", "schema", "words"),
    [
        ("AvroConfluent", "AVRO", '{"type":"record"}', "a type lacks 'name'"),
        ("AvroConfluent", "AVRO", "nonsense", "the Avro schema cannot be read: Expecting value"),
        (
            "AvroConfluent",
            "AVRO",
            '{"type":"record","name":"a","fields":[{"name":"id","type":["int","int"]}]}',
            "the engine cannot read the Avro schema: Schema is invalid",
        ),
        ("ProtobufConfluent", "PROTOBUF", PROTO[:-1], "cannot be read: line 1:60: Reached end"),
        ("ProtobufConfluent", "JSON", "{}", " of the registry is JSON, not PROTOBUF"),
    ],
)
def test_schemas_that_cannot_be_read(format_name: str, kind: str, schema: str, words: str) -> None:
    number = register(kind, schema)
    text = table(*COLUMNS, format=format_name, options=(("registry", URL),))
    said = bad(text, framed(number, b"\0\x02\x02")).error
    assert said.startswith(f"schema {number} of the registry")
    assert words in said and "Error(" not in said and "Code:" not in said


def test_messages_of_another_format() -> None:
    number = register("PROTOBUF", PROTO)
    confluent = table(*COLUMNS, format="ProtobufConfluent", options=(("registry", URL),))
    said = bad(confluent, framed(number, json.dumps({"id": 1}).encode())).error
    assert "JSON with a registry's header" in said and "which is format JSONConfluent" in said
    options = (("message", "A"), ("schema", PROTO))
    plain = table(*COLUMNS, format="Protobuf", options=options)
    assert 'delimited = "true" says so' in bad(plain, b"\x02\x08\x01").error
    assert "a message with a registry's header (schema 7)" in bad(plain, framed(7, b"\0\x08")).error


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"\xa3yes", 'the text "yes"'),
        (b"\xda\x03\xe8" + b"z" * 1000, f'the text "{"z" * 100}"'),
        (b"\xcb?\xf8\0\0\0\0\0\0", "the float 64 1.5"),
        (b"\xca?\xc0\0\0", "the float 32 1.5"),
        (b"\x92\x01\xc0", "the bytes 92 01 c0"),
        (b"\xc4\x02ab", "the bytes c4 02 61 62"),
    ],
)
def test_message_pack_shows_the_value(value: bytes, shown: str) -> None:
    text = table(Column("id", "Int8"), Column("u", "UUID"), format="MsgPack")
    said = bad(text, value + b"\xc0")
    assert (said.reason, said.column) == ("cannot-parse", "id")
    assert said.error == f"{shown} cannot be read as column id Int8"
    for other, words in ((b"\xc3", "true"), (b"\xd1\xff\x00", "the integer -256")):
        assert bad(text, b"\x01" + other).error == f"{words} cannot be read as column u UUID"
