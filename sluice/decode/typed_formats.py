"""The formats in which the engine says, or is told, what type a value has."""

from __future__ import annotations

from sluice.core.load_spec import TableSpec
from sluice.decode.messages.format import TypedFormat
from sluice.decode.messages.port import TableDecoder
from sluice.decode.typed.decoder import TypedDecoder


def typed_decoder(table: TableSpec) -> TableDecoder:
    """Of an entry of one of these formats."""
    return TypedDecoder(table, _format(table))


def _format(table: TableSpec) -> TypedFormat:
    """What a format needs is imported with its first decoder: some bring large libraries along,
    which a worker that decodes JSON should not load."""
    match table.format:
        case "RowBinary":
            from sluice.decode.sequential.row_binary import row_binary

            return row_binary(table)
        case "RowBinaryWithNamesAndTypes":
            from sluice.decode.sequential.row_binary import RowBinaryWithNamesAndTypes

            return RowBinaryWithNamesAndTypes(table)
        case "MsgPack":
            from sluice.decode.sequential.msgpack import message_pack

            return message_pack(table)
        case "AvroConfluent":
            from sluice.decode.schema.avro import AvroConfluent

            return AvroConfluent(table)
        case "AvroSingleObject":
            from sluice.decode.schema.avro import AvroSingleObject

            return AvroSingleObject(table)
        case "Avro":
            from sluice.decode.schema.avro_files import AvroFiles

            return AvroFiles(table)
        case "Protobuf":
            from sluice.decode.schema.protobuf import Protobuf

            return Protobuf(table)
        case "ProtobufConfluent":
            from sluice.decode.schema.protobuf import ProtobufConfluent

            return ProtobufConfluent(table)
        case "SQLBatchRequest":
            from sluice.decode.envelope.format import EnvelopeFormat

            return EnvelopeFormat(table)
    from sluice.decode.typed.blobs import Blobs

    return Blobs(table, table.format)
