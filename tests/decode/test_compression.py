"""Values that producers compressed, of any format."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import lz4.frame
import pyarrow as pa
import pytest

from sluice.core.load_spec import Column, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import alone
from sluice.decode.values import compression, steps
from sluice.decode.values.steps import TooLargeError
from tests.decode.support import fill, rows, table


def zstd(value: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(value))


def snappy(value: bytes) -> bytes:
    return bytes(pa.Codec("snappy").compress(value))


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda value: gzip.compress(value, mtime=0),
    "zstd": zstd,
    "lz4": lz4.frame.compress,
    "snappy": snappy,
}
COLUMNS = (Column("id", "UInt8"), Column("s", "String"))


def decode(text: TableSpec, values: list[bytes]) -> Decoded:
    with MessageBuffer(framing_of(text)) as buffer:
        return make_decoder(text).decode(fill(buffer, values), alone("orders", 3))


@pytest.mark.parametrize("codec", PACK)
def test_each_codec_is_read_and_what_is_none_is_a_dead_letter(codec: str) -> None:
    pack, text = PACK[codec], table(*COLUMNS, decompress=codec)
    # Longer than any buffer of a library.
    good = [json.dumps({"id": n, "s": chr(97 + n) * 300_000}).encode() for n in range(3)]
    whole = pack(b'{"id":300}')
    broken = [b"", b'{"id":1}', whole[: len(whole) - 2], pack(good[0])[:40], whole + b"xyz"]
    decoded = decode(text, [*map(pack, good), whole, *broken])
    assert [row[0] for row in rows(decoded)] == [0, 1, 2]
    reasons = [one.reason for one in decoded.bad]
    assert reasons == ["out-of-range", *["cannot-decompress"] * len(broken)]
    assert all(codec in one.error for one in decoded.bad[1:])
    assert [one.offset for one in decoded.bad] == [1006 + 2 * n for n in range(6)]


@pytest.mark.parametrize(
    ("codec", "value", "words"),
    [
        ("gzip", zstd(b"{}"), 'not gzip: it begins like zstd; set decompress = "zstd"'),
        ("zstd", b"{}", "not zstd: it begins with the bytes 7b 7d"),
        ("zstd", zstd(b"{}" * 9)[:-1], "begins like zstd, and is cut short or damaged"),
        ("gzip", b"", "the value is empty, and not gzip"),
        ("snappy", b"\x82SNAPPY\0\0\0\0\1\0\0\0\1", "takes one raw block for each message"),
        ("lz4", b"\xff\xfe{\0}\0", "text in UTF-16; write it in UTF-8"),
    ],
)
def test_the_first_bytes_say_what_it_is_instead(codec: str, value: bytes, words: str) -> None:
    (bad,) = decode(table(*COLUMNS, decompress=codec), [value]).bad
    assert bad.reason == "cannot-decompress" and words in bad.error


@pytest.mark.parametrize("codec", PACK)
def test_a_value_that_becomes_too_large_is_a_dead_letter(
    codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MESSAGE_BYTES_MAX", 1000)
    values = [b'{"id":1,"s":"' + b"x" * size + b'"}' for size in (985, 986, 100_000)]
    decoded = decode(table(*COLUMNS, decompress=codec), list(map(PACK[codec], values)))
    assert [len(value) for value in values[:2]] == [1000, 1001]
    assert decoded.rows == 1 and [one.index for one in decoded.bad] == [1, 2]
    assert "when decompressed" in decoded.bad[0].error


def test_a_range_that_becomes_too_large_says_where_it_has_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(steps, "RANGE_BYTES_MAX", 100)
    text = table(*COLUMNS, decompress="zstd")
    value = zstd(b'{"id":1,"s":"' + b"x" * 60 + b'"}')
    assert decode(text, [value]).rows == 1
    for values, end in (([value] * 3, 1002), ([b"?", value, value], 1004)):
        with pytest.raises(TooLargeError, match="MiB when decompressed") as refused:
            decode(text, values)
        assert refused.value.end == end
    monkeypatch.setattr(steps, "RANGE_BYTES_MAX", 50)
    assert decode(text, [value]).rows == 1, "one message is always allowed"


def test_all_formats_and_mappings_are_behind_it() -> None:
    pack = PACK["gzip"]
    lines = table(*COLUMNS, format="CSV", rows="many", decompress="gzip")
    decoded = decode(lines, [pack(b"1,a\n2,b"), pack(b"3,c"), b"x"])
    assert rows(decoded) == [[1, "a"], [2, "b"], [3, "c"]]
    assert [one.index for one in decoded.bad] == [2]
    binary = table(*COLUMNS, format="RowBinary", decompress="gzip", check=("id != 2",))
    values = [pack(b"\x01\x01a"), b"?", pack(b"\x02\x01b"), pack(b"\x03\x01c")]
    decoded = decode(binary, values)
    assert rows(decoded) == [[1, "a"], [3, "c"]]
    assert [(one.index, one.reason) for one in decoded.bad] == [
        (1, "cannot-decompress"),
        (2, "check-failed"),
    ]
