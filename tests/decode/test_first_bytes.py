"""What a message is said to be that is none of its format."""

from __future__ import annotations

import gzip

import pytest

from sluice.core.load_spec import Column
from sluice.decode.messages.first_bytes import begins_like
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
