"""Protobuf behind its length, as the official library writes streams."""

from __future__ import annotations

from io import BytesIO

from google.protobuf.proto import serialize_length_prefixed

from sluice.core.load_spec import Column
from tests.decode.protobuf_support import SCHEMA, Order
from tests.decode.support import rows, table
from tests.decode.text_support import decode_text


def delimited(**fields: object) -> bytes:
    stream = BytesIO()
    serialize_length_prefixed(Order(**fields), stream)
    return stream.getvalue()


def test_a_message_behind_its_length_is_read_and_nothing_else() -> None:
    options = (("delimited", "true"), ("message", "Order"), ("schema", SCHEMA))
    text = table(Column("id", "UInt16"), format="Protobuf", options=options)
    long = delimited(id=300, name="x" * 1000)
    bare = Order(id=5).SerializeToString()
    values = [delimited(id=1), long, delimited(), bare, b"", long[:-1], long + delimited(id=2)]
    values += [delimited(id=2**40), b"\x80" * 9]
    decoded = decode_text(text, values)
    assert rows(decoded) == [[1], [300], [0]]
    assert [(bad.index, bad.reason) for bad in decoded.bad] == [
        *((3, "cannot-parse"), (4, "cannot-parse"), (5, "cannot-parse"), (6, "not-one-row")),
        *((7, "out-of-range"), (8, "cannot-parse")),
    ]
    said = {bad.index: bad.error for bad in decoded.bad}
    assert said[3] == "the message says 8 bytes, and 1 are there"
    assert said[6].startswith("behind the message of ")
