"""Avro's container files as messages: rows, codecs, schemas, files that are not whole."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.load_spec import Column
from sluice.decode.schema.avro_files import AvroFiles
from sluice.decode.typed.decoder import TypedDecoder
from tests.decode.avro_support import decode, record
from tests.decode.support import FIRST_OFFSET, rows, table
from tests.support.examples import examples

LINE = record(
    ("id", "long"), ("name", ["null", "string"]), ("n", {"type": "array", "items": "int"})
)
COLUMNS = (Column("id", "UInt8"), Column("name", "Nullable(String)"), Column("n", "Array(Int32)"))


def avro_file(ids: list[int], codec: str = "null", schema: Any = LINE, block: int = 16000) -> bytes:
    lines = [{"id": one, "name": f"n{one}" if one % 2 else None, "n": [one]} for one in ids]
    stream = io.BytesIO()
    fastavro.writer(stream, schema, lines, codec=codec, sync_interval=block)
    return stream.getvalue()


def files(**changes: Any) -> TypedDecoder:
    facts = table(*COLUMNS, format="Avro", **({"rows": "many"} | changes))
    return TypedDecoder(facts, AvroFiles(facts))


@pytest.fixture(scope="module")
def many() -> TypedDecoder:
    return files()


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_rows_keep_their_order_and_their_message(many: TypedDecoder, codec: str) -> None:
    values = [
        avro_file([1, 2, 3], codec),
        avro_file([], codec),
        avro_file(list(range(4, 100)), codec, block=50),
        avro_file([100], codec, record(("name", ["null", "string"]), ("id", "int"))),
        avro_file([101], codec),
    ]
    decoded = decode(many, values)
    assert decoded.bad == ()
    assert [row[0] for row in rows(decoded)] == list(range(1, 102))
    assert rows(decoded)[99] == [100, None, []]
    offsets = ((decoded.offsets - FIRST_OFFSET) // 2).tolist()
    assert offsets == [0] * 3 + [2] * 96 + [3, 4]
    assert (decoded.messages, decoded.empty) == (4, (FIRST_OFFSET + 2,))


def test_one_bad_row_is_the_message_or_only_itself(many: TypedDecoder) -> None:
    values = [avro_file([1]), avro_file([2, 300, 3]), avro_file([4])]
    decoded = decode(many, values)
    assert [row[0] for row in rows(decoded)] == [1, 4]
    assert [(one.index, one.reason, one.column) for one in decoded.bad] == [
        (1, "out-of-range", "id")
    ]
    dropping = decode(files(bad_rows="drop-row"), values)
    assert [row[0] for row in rows(dropping)] == [1, 2, 3, 4]
    assert dropping.dropped_rows == 1


def test_one_row_in_a_message_where_that_is_wanted() -> None:
    decoded = decode(files(rows="one"), [avro_file([1]), avro_file([2, 3]), avro_file([])])
    assert [row[0] for row in rows(decoded)] == [1]
    assert [(one.index, one.reason) for one in decoded.bad] == [
        (1, "not-one-row"),
        (2, "not-one-row"),
    ]


def test_a_branch_that_its_union_has_not(many: TypedDecoder) -> None:
    # The name is the branch 1 of its union; there is no branch 2, and only the walk sees that.
    no_branch = avro_file([7]).replace(b"\x02\x04n7", b"\x04\x04n7")
    values = [avro_file([1, 2, 3]), avro_file([4])[:-1], no_branch, avro_file([5], "deflate")]
    decoded = decode(many, values)
    assert [one.index for one in decoded.bad] == [1, 2]
    assert decoded.rows == 4


WHOLE = avro_file([1, 2])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (b"", "not an Avro file"),
        (b"Obj\x01", "ends too early"),
        (WHOLE[:-1], "ends too early"),
        (WHOLE + b"\x02", "ends too early"),
        (WHOLE[:-20] + b"\xff" + WHOLE[-19:], ""),
        # The sync marker is drawn by the writer: no constant is sure to differ from its end.
        (WHOLE[:-1] + bytes([WHOLE[-1] ^ 1]), "does not end where it says"),
        (WHOLE.replace(b'"string"', b'"strinG"'), "unknown type strinG"),
        (WHOLE.replace(b"avro.schema", b"avro.schemA"), "has no schema"),
        (avro_file([1], "deflate").replace(b"deflate", b"bzip222"), "bzip222"),
        (avro_file([1], "deflate").replace(b"deflate", b"null\0\0\0"), "null"),
    ],
)
def test_files_that_are_not_whole_cost_no_neighbour(
    many: TypedDecoder, value: bytes, words: str
) -> None:
    decoded = decode(many, [WHOLE, value, WHOLE])
    assert [one.index for one in decoded.bad] == [1]
    assert words in decoded.bad[0].error
    assert [row[0] for row in rows(decoded)] == [1, 2, 1, 2]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_mutated_files_are_rows_or_bad_and_neighbours_are_untouched(
    many: TypedDecoder, data: st.DataObject
) -> None:
    values = []
    for _ in range(6):
        raw = bytearray(avro_file([1, 2, 3], data.draw(st.sampled_from(["null", "deflate"]))))
        for _ in range(data.draw(st.integers(0, 2))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        values += [bytes(raw), WHOLE]
    decoded = decode(many, values)
    bad = {one.index for one in decoded.bad}
    assert all(index % 2 == 0 for index in bad)
    found = ((decoded.offsets - FIRST_OFFSET) // 2).tolist()
    numbers = [row[0] for row in rows(decoded)]
    for index in range(1, len(values), 2):
        assert [n for n, place in zip(numbers, found, strict=True) if place == index] == [1, 2]
    assert len(bad) + decoded.messages + len(decoded.empty) == len(values)
