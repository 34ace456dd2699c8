"""What a message is said to be that is none of its format."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib

import pytest

from sluice.core.load_spec import Column
from sluice.decode.messages.framing import begins_like
from tests.decode.support import table
from tests.decode.text_support import decode_text


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (gzip.compress(b"{}", mtime=0), 'gzip; set decompress = "gzip"'),
        (b"\x28\xb5\x2f\xfd\x00", 'zstd; set decompress = "zstd"'),
        (b"\x04\x22\x4d\x18\x60", 'lz4; set decompress = "lz4"'),
        ('{"id":1}'.encode("utf-16"), "UTF-16"),
        ('{"id":1}'.encode("utf-16-le"), "UTF-16"),
        ('{"id":1}'.encode("utf-16-be"), "UTF-16"),
        (b'\0\0\0\0\x07{"id":1}', "(schema 7), which is format JSONConfluent"),
        (b"\0\0\0\1\x07\x02\x05", "(schema 263), which is format AvroConfluent or ProtobufC"),
        (bz2.compress(b"{}"), "bzip2, which decompress does not read; use gzip"),
        (zlib.compress(b"{}"), "zlib, which decompress does not read; use gzip"),
        (lzma.compress(b"{}"), "xz, which decompress does not read; use gzip"),
        (b"Obj\x01\x02", "format Avro"),
        (b"PAR1\x15", "format Parquet"),
        (b"hello", ""),
        (b"", ""),
        (b"\0\0\0", ""),
    ],
)
def test_the_first_bytes_say_what_a_message_is(value: bytes, words: str) -> None:
    assert begins_like(value) == "" if not words else words in begins_like(value)
    for rows in ("one", "many"):
        (bad,) = decode_text(table(Column("id", "UInt8"), rows=rows), [value]).bad
        assert words in bad.error and ("it begins like" in bad.error) == bool(words), bad


JSON, GZIP = b'{"id":1,"s":"x"}', gzip.compress(b"1,x", mtime=0)
IS_JSON, IS_GZIP = "it begins like JSON, which is format JSONEachRow", "it begins like gzip; set "
PROTO = 'syntax = "proto3"; message A { int32 id = 1; string s = 2; }'


@pytest.mark.parametrize(
    ("format_name", "options"),
    [
        ("CSV", ()),
        ("TSV", ()),
        ("MsgPack", ()),
        ("RowBinary", ()),
        ("AvroConfluent", (("registry", "http://nobody"),)),
        ("Protobuf", (("message", "A"), ("schema", PROTO))),
    ],
)
def test_formats_without_json_say_it_too(
    format_name: str, options: tuple[tuple[str, str], ...]
) -> None:
    columns = (Column("id", "UInt8"), Column("s", "String"))
    text = table(*columns, format=format_name, options=options)
    json, compressed = decode_text(text, [JSON, GZIP]).bad
    assert IS_JSON in json.error or format_name == "CSV"
    assert IS_GZIP in compressed.error


def test_what_is_nested_too_deeply_is_said_so() -> None:
    values = [b'{"s":' + b"[" * 3000 + b"]" * 3000 + b"}"]
    (bad,) = decode_text(table(Column("s", "String")), values).bad
    assert bad.error == "the message is not one JSON object: it is nested too deeply"
