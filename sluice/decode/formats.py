"""The formats: which decoder a table entry gets, and how its messages stand in a buffer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from sluice.core.errors import TerminalError
from sluice.core.formats import ENVELOPED_JSON, TEXT_FORMATS, first_problem
from sluice.core.formats import FORMATS as KNOWN
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.columns import with_null
from sluice.decode.mapping.mapped import MappedFormat, is_mapped
from sluice.decode.messages.decoded import TableDecoder
from sluice.decode.messages.format import TypedFormat
from sluice.decode.messages.framing import BYTES, JSON_ARRAYS, JSON_OBJECTS, Framing
from sluice.decode.text.lines import json_array_decoder, json_object_decoder, line_decoder
from sluice.decode.typed.decoder import TypedDecoder
from sluice.decode.values.steps import Step, SteppedDecoder


def typed_decoder(table: TableSpec) -> TableDecoder:
    """Of an entry of a format in which the engine says, or is told, what type a value has."""
    found = _typed_format(table)
    if table.envelope == "debezium":
        from sluice.decode.schema.change_events import ChangeEvents

        found = ChangeEvents(with_null(table), found)
    return TypedDecoder(table, found)


def _typed_format(table: TableSpec) -> TypedFormat:
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

            return Protobuf(with_null(table))
        case "ProtobufConfluent":
            from sluice.decode.schema.protobuf import ProtobufConfluent

            return ProtobufConfluent(with_null(table))
        case "SQLBatchRequest":
            from sluice.decode.envelope.format import EnvelopeFormat

            return EnvelopeFormat(table)
        case "RawBLOB":
            from sluice.decode.sequential.whole import WholeValues

            return WholeValues(table)
        case "Native" | "Parquet" | "ORC" | "Arrow" | "ArrowStream":
            from sluice.decode.typed.blobs import Blobs

            return Blobs(table, table.format)
    raise AssertionError(f"_typed_format has no case for {table.format}")


def _json_behind_header(table: TableSpec) -> TableDecoder:
    options: tuple[tuple[str, str], ...] = ()
    return json_object_decoder(replace(table, format="JSONEachRow", options=options))


@dataclass(frozen=True, slots=True)
class _Format:
    """How a format is decoded, and how its messages stand in a buffer, when all steps are done."""

    decoder: Callable[[TableSpec], TableDecoder]
    framing: Framing


#: By name, as it stands in the configuration.
_FORMATS = {
    **dict.fromkeys(KNOWN, _Format(typed_decoder, BYTES)),
    **dict.fromkeys(TEXT_FORMATS, _Format(line_decoder, BYTES)),
    "JSONEachRow": _Format(json_object_decoder, JSON_OBJECTS),
    "JSONConfluent": _Format(_json_behind_header, JSON_OBJECTS),
    "JSONCompactEachRow": _Format(json_array_decoder, JSON_ARRAYS),
}
FORMATS = tuple(_FORMATS)
#: The option of messages that stand behind their length.
_DELIMITED = ("delimited", "true")


def make_decoder(
    table: TableSpec, seconds: frozenset[tuple[str, ...]] = frozenset()
) -> TableDecoder:
    """What decodes the messages of this entry.

    :param seconds: paths of fields whose numbers are seconds, or days, whatever `timestamps` says.
    :raises TerminalError: the text cannot be executed by this version.
    """
    found = _FORMATS.get(table.format)
    if found is None:
        raise TerminalError(
            f"table {table.target}: format {table.format} is not supported",
            f"Use one of: {', '.join(FORMATS)}.",
        )
    problem = first_problem(table.format, table.options)
    if problem:
        raise TerminalError(f"table {table.target}: {problem}", "Correct [table.options].")
    if is_mapped(table):
        fields = MappedFormat(table, make_decoder, framing_of)
        return TypedDecoder(replace(table, require=()), fields)
    steps, decoder = list(_steps(table, seconds)), found.decoder(table)
    return SteppedDecoder(decoder, steps, found.framing) if steps else decoder


def _steps(table: TableSpec, seconds: frozenset[tuple[str, ...]]) -> Iterator[Step]:
    """What is made of values before the format reads them, in this order."""
    if table.decompress:
        from sluice.decode.values.compression import Decompression

        yield Decompression(table.decompress)
    if table.format == "JSONConfluent":
        from sluice.decode.values.json_schema import RegisteredJson

        yield RegisteredJson(table)
    if _DELIMITED in table.options:
        from sluice.decode.values.compression import LengthDelimited

        yield LengthDelimited()
    if table.envelope and table.format in ENVELOPED_JSON:
        from sluice.decode.values.change_events import ConnectJson, DebeziumJson

        step = DebeziumJson if table.envelope == "debezium" else ConnectJson
        yield step(table, seconds)


def framing_of(table: TableSpec) -> Framing:
    """How the messages of this entry stand in a buffer."""
    found = _FORMATS.get(table.format)
    has_steps = any(True for _ in _steps(table, frozenset()))
    return BYTES if found is None or has_steps else found.framing
