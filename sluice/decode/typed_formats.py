"""The decoders of the formats in which the engine says, or is told, what type a value has.

What a format needs is imported with its first decoder: some bring large libraries along, which a
worker that decodes JSON should not load.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sluice.core.load_spec import TableSpec
from sluice.decode.messages.format import TypedFormat
from sluice.decode.messages.port import TableDecoder
from sluice.decode.typed.decoder import TypedDecoder


def _row_binary(table: TableSpec) -> TypedFormat:
    from sluice.decode.sequential.row_binary import RowBinary

    return RowBinary(table)


def _named_row_binary(table: TableSpec) -> TypedFormat:
    from sluice.decode.sequential.row_binary import RowBinaryWithNamesAndTypes

    return RowBinaryWithNamesAndTypes(table)


def _msgpack(table: TableSpec) -> TypedFormat:
    from sluice.decode.sequential.msgpack import MessagePack

    return MessagePack(table)


def _blob(table: TableSpec) -> TypedFormat:
    from sluice.decode.typed.blobs import Blobs

    return Blobs(table, table.format)


def _avro_confluent(table: TableSpec) -> TypedFormat:
    from sluice.decode.schema.avro import AvroConfluent

    return AvroConfluent(table)


def _avro_single_object(table: TableSpec) -> TypedFormat:
    from sluice.decode.schema.avro import AvroSingleObject

    return AvroSingleObject(table)


def _avro_file(table: TableSpec) -> TypedFormat:
    from sluice.decode.schema.avro_files import AvroFiles

    return AvroFiles(table)


def _protobuf(table: TableSpec) -> TypedFormat:
    from sluice.decode.schema.protobuf import Protobuf

    return Protobuf(table)


def _protobuf_confluent(table: TableSpec) -> TypedFormat:
    from sluice.decode.schema.protobuf import ProtobufConfluent

    return ProtobufConfluent(table)


def _envelope(table: TableSpec) -> TypedFormat:
    from sluice.decode.envelope.format import EnvelopeFormat

    return EnvelopeFormat(table)


def _decoder(table: TableSpec, make: Callable[[TableSpec], TypedFormat]) -> TableDecoder:
    return TypedDecoder(table, make(table))


#: By name, as it stands in the configuration.
TYPED_FORMATS: dict[str, Callable[[TableSpec], TableDecoder]] = {
    name: partial(_decoder, make=make)
    for name, make in {
        "RowBinary": _row_binary,
        "RowBinaryWithNamesAndTypes": _named_row_binary,
        "MsgPack": _msgpack,
        **dict.fromkeys(("Native", "Parquet", "ORC", "Arrow", "ArrowStream"), _blob),
        "AvroConfluent": _avro_confluent,
        "AvroSingleObject": _avro_single_object,
        "Avro": _avro_file,
        "Protobuf": _protobuf,
        "ProtobufConfluent": _protobuf_confluent,
        "SQLBatchRequest": _envelope,
    }.items()
}
