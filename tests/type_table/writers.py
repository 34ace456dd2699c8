"""One message that holds the values of some types, in each format, by writers of other people."""

from __future__ import annotations

import csv
import io
import json
import struct
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
from google.protobuf import json_format
from pyarrow import feather, orc, parquet

from sluice.decode.engine.session import run
from sluice.decode.schema.avro import fingerprint
from sluice.decode.schema.registry import RegisteredSchema
from sluice.producer import SQLBatchRequest
from tests.decode.avro_support import SCHEMAS, URL, body, framed
from tests.decode.protobuf_support import message_class
from tests.type_table.kinds import PROTOBUF, Kind, Single

#: Columns' names with their kinds.
Named = Sequence[tuple[str, Kind]]
#: A message, and the options that its entry needs.
Written = tuple[bytes, dict[str, str]]


def _columns(named: Named) -> list[tuple[str, str, str]]:
    return [(f"{n}{end}", type_text, sql) for n, k in named for end, type_text, sql in k.columns]


def _object(named: Named) -> Written:
    return json.dumps({name: kind.json for name, kind in named}).encode(), {}


def _behind_header(named: Named) -> Written:
    return framed(1, _object(named)[0]), {"registry": URL}


def _array(named: Named) -> Written:
    values = [one for _, kind in named for one in kind.compact or (kind.json,)]
    return json.dumps(values).encode(), {}


def _line(*rows: Sequence[str]) -> bytes:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()


def _csv(named: Named) -> Written:
    return _line([cell for _, kind in named for cell in kind.csv]), {}


def _csv_with_names(named: Named) -> Written:
    names = [name for name, _, _ in _columns(named)]
    return _line(names, [cell for _, kind in named for cell in kind.csv]), {}


def _cells(named: Named) -> str:
    return "\t".join(cell for _, kind in named for cell in kind.cells)


def _tsv(named: Named) -> Written:
    return _cells(named).encode(), {}


def _tsv_with_names(named: Named) -> Written:
    names = "\t".join(name for name, _, _ in _columns(named))
    return f"{names}\n{_cells(named)}\n".encode(), {}


def _tskv(named: Named) -> Written:
    cells = [cell for _, kind in named for cell in kind.cells]
    names = [name for name, _, _ in _columns(named)]
    pairs = zip(names, cells, strict=True)
    return "\t".join(f"{name}={cell}" for name, cell in pairs).encode(), {}


def _plain_line(named: Named) -> Written:
    """As TSV has it, without escapes; several columns are none of this format's."""
    cells = [kind.csv if len(kind.csv) == 1 else kind.cells for _, kind in named]
    return "".join(cell for some in cells for cell in some).encode(), {}


def _avro(named: Named) -> tuple[dict[str, Any], dict[str, Any]]:
    """A schema and the value. Each named type inside is one of its column alone."""
    fields = [{"name": name, "type": _renamed(kind.avro[0], f"_of_{name}")} for name, kind in named]
    schema = {"type": "record", "name": "Row", "fields": fields}
    return schema, {name: kind.avro[2] for name, kind in named}


def _renamed(schema: Any, end: str) -> Any:
    if isinstance(schema, list):
        return [_renamed(one, end) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _renamed(value, end) for key, value in schema.items() if key != "fields"}
    if "fields" in schema:
        found["fields"] = schema["fields"]
    if schema["type"] in ("record", "enum", "fixed"):
        found["name"] = schema["name"] + end
    return found


def _avro_confluent(named: Named) -> Written:
    schema, value = _avro(named)
    return framed(SCHEMAS.add(schema), body(schema, value)), {"registry": URL}


def _avro_single_object(named: Named) -> Written:
    schema, value = _avro(named)
    text = json.dumps(schema)
    header = b"\xc3\x01" + struct.pack("<Q", fingerprint(text))
    return header + body(schema, value), {"schema": text}


def _avro_file(named: Named) -> Written:
    schema, value = _avro(named)
    out = io.BytesIO()
    fastavro.writer(out, schema, [value])
    return out.getvalue(), {}


def _protobuf(named: Named) -> Written:
    fields = "".join(
        f"  {kind.protobuf[0]} {name} = {number};\n" for number, (name, kind) in enumerate(named, 1)
    )
    text = f"{PROTOBUF}message Row {{\n{fields}}}\n"
    values = {name: kind.protobuf[1] for name, kind in named}
    message = json_format.ParseDict(values, message_class(text)())
    return message.SerializeToString(), {"schema": text, "message": "Row"}


def _protobuf_confluent(named: Named) -> Written:
    raw, options = _protobuf(named)
    number = 1000 + len(SCHEMAS.texts)
    SCHEMAS.texts[number] = RegisteredSchema("PROTOBUF", options["schema"])
    types_before = PROTOBUF.count("message ")
    place = bytes([2, types_before * 2])
    return framed(number, place + raw), {"registry": URL}


def _pack(value: Any) -> bytes:
    if isinstance(value, list):
        return msgpack.Packer().pack_array_header(len(value)) + b"".join(map(_pack, value))
    packed: bytes = msgpack.packb(value, use_single_float=isinstance(value, Single))
    return packed


def _msgpack(named: Named) -> Written:
    values = [one for _, k in named for one in (k.packed if len(k.columns) > 1 else (k.packed,))]
    return b"".join(map(_pack, values)), {}


def _arrow(named: Named, is_orc: bool = False) -> pa.Table:
    values = [kind.orc if is_orc else kind.arrow for _, kind in named]
    arrays = [pa.array([value], kind) for kind, value in values]
    return pa.table(arrays, names=[name for name, _ in named])


def _parquet(named: Named) -> Written:
    out = io.BytesIO()
    parquet.write_table(_arrow(named), out)
    return out.getvalue(), {}


def _orc(named: Named) -> Written:
    out = io.BytesIO()
    orc.write_table(_arrow(named, is_orc=True), out)
    return out.getvalue(), {}


def _arrow_file(named: Named) -> Written:
    out = io.BytesIO()
    feather.write_feather(_arrow(named), out, compression="uncompressed")
    return out.getvalue(), {}


def _arrow_stream(named: Named) -> Written:
    made, out = _arrow(named), io.BytesIO()
    with pa.ipc.new_stream(out, made.schema) as stream:
        stream.write_table(made)
    return out.getvalue(), {}


def _by_engine(format_name: str) -> Callable[[Named], Written]:
    def written(named: Named) -> Written:
        columns = ", ".join(f"{sql} AS `{name}`" for name, _, sql in _columns(named))
        raw: bytes = run(f"SELECT {columns}", format_name).bytes()
        return raw, {}

    return written


def _envelope(named: Named) -> Written:
    names = [name for name, _, _ in _columns(named)]
    values: list[Any] = []
    for _, kind in named:
        values += kind.sent if len(kind.columns) > 1 else [kind.sent]
    marks, listed = ", ".join("?" * len(values)), ", ".join(f"`{name}`" for name in names)
    sql = f"INSERT INTO t ({listed}) VALUES ({marks})"
    return SQLBatchRequest("t", sql, [values]).encode(), {}


def _whole(named: Named) -> Written:
    """The text of a value that is alone; several columns are none of this format's."""
    return "".join(cell for _, kind in named for cell in kind.csv).encode(), {}


#: By format. The engine is its own writer of the formats that are only ClickHouse's.
WRITERS: dict[str, Callable[[Named], Written]] = {
    "JSONEachRow": _object,
    "JSONConfluent": _behind_header,
    "JSONCompactEachRow": _array,
    "CSV": _csv,
    "CSVWithNames": _csv_with_names,
    "TSV": _tsv,
    "TSVWithNames": _tsv_with_names,
    "TSKV": _tskv,
    "LineAsString": _plain_line,
    "AvroConfluent": _avro_confluent,
    "AvroSingleObject": _avro_single_object,
    "Avro": _avro_file,
    "Protobuf": _protobuf,
    "ProtobufConfluent": _protobuf_confluent,
    "MsgPack": _msgpack,
    "RowBinary": _by_engine("RowBinary"),
    "RowBinaryWithNamesAndTypes": _by_engine("RowBinaryWithNamesAndTypes"),
    "Native": _by_engine("Native"),
    "RawBLOB": _whole,
    "Parquet": _parquet,
    "ORC": _orc,
    "Arrow": _arrow_file,
    "ArrowStream": _arrow_stream,
    "SQLBatchRequest": _envelope,
}
