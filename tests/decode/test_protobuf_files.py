"""Files of Protobuf schemas: those that need not be given, and a machine that is in trouble."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from sluice.core.errors import TransientError
from sluice.core.load_spec import Column
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.schema import protobuf as layouts
from sluice.decode.schema.headed import UnsupportedSchemaError
from sluice.decode.schema.protobuf import compiled_schema
from sluice.decode.schema.protobuf_schema import MAIN_FILE, compile_files
from tests.decode.protobuf_support import decode, part, protobuf, tag
from tests.decode.support import rows

ORDER = """syntax = "proto3";
import "confluent/meta.proto";
import  public 'confluent/type/decimal.proto';
import "google/type/date.proto";
message Order {
  int32 id = 1 [(confluent.field_meta).tags = "PII"];
  confluent.type.Decimal price = 2;
  google.type.Date day = 3;
}
"""
VALUE = (
    tag(1, 0)
    + b"\x07"
    + part(2, part(1, b"\x04\xe2") + tag(3, 0) + b"\x02")
    + part(3, tag(1, 0) + b"\xea\x0f" + tag(2, 0) + b"\x01" + tag(3, 0) + b"\x1f")
)


def test_what_serializers_take_for_known_need_not_be_given() -> None:
    """They register no references of it; tags and rules are options of confluent/meta.proto."""
    decoder = protobuf(
        Column("id", "Int32"),
        Column("price", "Tuple(value String, scale Int32)"),
        Column("day", "Tuple(year Int32, month UInt8, day UInt8)"),
        schema=ORDER,
        message="Order",
    )
    decoded = decode(decoder, [VALUE])
    assert not decoded.bad
    day = {"year": 2026, "month": 1, "day": 31}
    assert rows(decoded) == [[7, {"value": "\x04\ufffd", "scale": 2}, day]]


@pytest.mark.parametrize(
    "path",
    [
        "confluent/meta.proto",
        "confluent/type/decimal.proto",
        "confluent/types/decimal.proto",
        "google/type/timeofday.proto",
        "google/type/money.proto",
    ],
)
def test_each_as_a_text_and_as_a_descriptor(path: str) -> None:
    text = f'syntax = "proto3"; import "{path}"; message M {{ int32 a = 1; }}'
    compiled = FileDescriptorSet.FromString(compile_files({MAIN_FILE: text}, MAIN_FILE))
    assert path in [file.name for file in compiled.file]
    given = base64.b64encode(compiled.file[-1].SerializeToString()).decode()
    again = FileDescriptorSet.FromString(compile_files({MAIN_FILE: given}, MAIN_FILE))
    assert {file.name for file in again.file} == {file.name for file in compiled.file}


def test_one_that_is_given_counts() -> None:
    given = 'syntax = "proto3"; package google.type; message Date { int64 own = 5; }'
    text = (
        'syntax = "proto3"; import "google/type/date.proto"; message M { google.type.Date d = 1; }'
    )
    files = {"google/type/date.proto": given, MAIN_FILE: text}
    compiled = FileDescriptorSet.FromString(compile_files(files, MAIN_FILE))
    assert [field.name for field in compiled.file[0].message_type[0].field] == ["own"]


@pytest.mark.parametrize("path", ["google/type/none.proto", "confluent/type/os.path.proto"])
def test_one_that_is_not_there_is_said(path: str) -> None:
    text = f'syntax = "proto3"; import "{path}"; message M {{ int32 a = 1; }}'
    with pytest.raises(UnsupportedSchemaError, match=path):
        compile_files({MAIN_FILE: text}, MAIN_FILE)


# ---- A machine in trouble ----

PLAIN = 'syntax = "proto3"; message M { int32 a = 1; }'
_WARNED = f"{MAIN_FILE}:1:1: warning: Import x.proto is unused.\n"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (-9, ""),
        (1, "sluice.descriptors: No space left on device\n"),
        (1, f"{_WARNED}sluice.descriptors: No space left on device\n"),
        (1, "MemoryError\n"),
        (0, ""),
    ],
)
def test_a_protoc_that_was_killed_or_has_no_room_says_nothing_of_a_schema(
    monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    def killed(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        return subprocess.CompletedProcess(command, status, b"", said.encode())

    schema = RegisteredSchema("PROTOBUF", f"{PLAIN} // {status}{said!r}")
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", killed)
        with pytest.raises(TransientError, match=r"protoc cannot be run: it ended with status"):
            compiled_schema(schema)
    assert compiled_schema(schema).names() == ["M"], "nothing is kept of it"


def test_no_room_for_the_files_of_a_schema_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(TransientError, match="No space left"):
            compile_files({MAIN_FILE: PLAIN}, MAIN_FILE)
        with pytest.raises(TransientError, match="No space left"):
            layouts._schema_file("full")
    assert layouts._schema_file("full").read_text() == "full"


def test_half_a_file_for_the_engine_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_text

    def halfway(path: Path, text: str, *more: Any) -> int:
        write(path, text[:2], *more)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", halfway)
        with pytest.raises(TransientError, match="No space left"):
            layouts._schema_file("halfway")
    assert layouts._schema_file("halfway").read_text() == "halfway"


def test_a_folder_that_was_tidied_away_is_made_again() -> None:
    """After ten days without a new schema, say."""
    column, value = Column("a", "Int32"), tag(1, 0) + b"\x05"
    before = protobuf(column, schema=PLAIN, message="M")
    assert rows(decode(before, [value])) == [[5]]
    assert layouts._folder is not None
    shutil.rmtree(layouts._folder)
    assert rows(decode(before, [value])) == [[5]], "the engine keeps what it has read"
    schema = 'syntax = "proto3"; message N { int32 a = 1; int32 b = 2; }'
    assert rows(decode(protobuf(column, schema=schema, message="N"), [value])) == [[5]]
