"""Reads where the columns of a [[table]] come from, and which shards its rows go to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter, ValidationInfo

from sluice.config.deduplication import a_deduplication
from sluice.config.findings import RefusedError
from sluice.config.interpolation import BROKEN
from sluice.config.section import Conflict, Listed, Section, refuse_all
from sluice.config.values import (
    Name,
    Pattern,
    Text,
    Topic,
    a_string,
    a_table,
    a_target,
    a_text,
    beside_the_file,
    shown,
)
from sluice.core.claims import Deduplicate
from sluice.core.dynamic import COLUMNS_MAX, DynamicColumns
from sluice.core.formats import (
    ENVELOPED,
    FORMATS,
    INSTEAD,
    NAMES_TABLE,
    OPTIONS,
    check_option,
)
from sluice.core.load_spec import (
    KAFKA_COLUMNS,
    Compression,
    Delivery,
    Envelope,
    KeyFormat,
    Mapped,
    Route,
    Sharding,
    Ticks,
    Tombstones,
)
from sluice.core.suggestions import suggest
from sluice.core.topics import takes

_STRIPE_MAX = 2**63 - 1
EXAMPLES = (
    'write one like sharding = { by = "key", column = "user_id" }, '
    '{ by = "offset", stripe = 10000 } or '
    '{ by = "expression", expression = "cityHash64(user_id)" }'
)
#: What each way needs, and what it may say.
_NEEDS = {"key": ("column",), "offset": (), "expression": ("expression",)}
_MAY = {"key": ("stripe",), "offset": ("stripe",), "expression": ()}


@dataclass(frozen=True, slots=True)
class _Sharding(Section):
    """`sharding = { by = "key", column = "user_id", stripe = 1 }` and so on."""

    by: Literal["key", "offset", "expression"] | None = None
    column: Text = ""
    stripe: Annotated[int, Field(strict=True, ge=1, le=_STRIPE_MAX)] = 1
    expression: Text = ""

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if self.by is None:
            yield (), f"does not say by what; {EXAMPLES}"
            return
        for key in ("column", "stripe", "expression"):
            if key in _NEEDS[self.by] and key not in written:
                yield key, "is missing"
            if key in written and key not in _NEEDS[self.by] + _MAY[self.by]:
                yield key, f'says nothing with by = "{self.by}"; leave it out'


_SHARDING = TypeAdapter(_Sharding)


def a_sharding(written: object) -> Sharding:
    """Which shard a row goes to."""
    read = _SHARDING.validate_python(written)
    assert read.by is not None
    return Sharding(read.by, read.column, read.stripe, read.expression)


#: Ways to say where a column comes from, and what each is called in the text.
_WAYS = ("field", "path", "value", "kafka", "header", "key", "sql")
_KAFKA = tuple(name.removeprefix("_") for name in KAFKA_COLUMNS)


def a_mapping(written: object) -> tuple[Mapped, ...]:
    """`[table.columns]`: `column = "field"`, or `column = { path = "a.b" }` and so on."""
    sources = _COLUMNS.validate_python(written)
    return tuple(Mapped(column, *sources[column]) for column in sorted(sources))


def some_fields(written: object) -> tuple[tuple[str, str], ...]:
    """`[table.fields]`: types of fields that are no columns, as ClickHouse writes them."""
    return tuple(sorted(_FIELDS.validate_python(written).items()))


def _a_source(value: Any) -> tuple[Any, str]:
    if not isinstance(value, dict):
        return "field", a_text(value)
    ways = [way for way in _WAYS if way in value]
    if len(ways) != 1 or len(value) != 1:
        raise RefusedError(
            f'says one of {", ".join(_WAYS)}, like {{ path = "address.city" }}, or only the '
            "field's name"
        )
    (way,) = ways
    text = _a_constant(value[way]) if way == "value" else a_text(value[way])
    if way == "kafka":
        if text not in _KAFKA:
            if text in ("now", "ingested", "ingestion_time"):
                raise RefusedError(
                    "the time of loading differs from one attempt to the next; give the column "
                    "DEFAULT now() in ClickHouse and leave it out here"
                )
            raise RefusedError(f"{shown(text)} is no part of a message; {suggest(text, _KAFKA)}")
        text = f"_{text}"
    return way, text


def _a_constant(value: object) -> str:
    """A constant as text; the column's type decides how it is read."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise RefusedError(f"must be a text, a number, true or false, not {shown(value)}")


_COLUMNS: TypeAdapter[dict[str, tuple[Any, str]]] = TypeAdapter(
    dict[str, Annotated[tuple[str, str], PlainValidator(_a_source)]]
)
_FIELDS: TypeAdapter[dict[str, str]] = TypeAdapter(dict[str, Text])


Lineage = bool | Literal["auto"]
UnknownFields = Literal["ignore", "refuse"]
OnNull = Literal["dead-letter", "default"]
Fractions = Literal["dead-letter", "cut"]
OnError = Literal["stop-partition", "park"]
Rows = Literal["one", "many"]
BadRows = Literal["dead-letter", "drop-row"]

#: Formats of which a key is none: files of many rows, and eBay's envelope.
_NO_KEYS = ("Avro", "Native", "Parquet", "ORC", "Arrow", "ArrowStream", "SQLBatchRequest")
#: An option whose text stands in a file of its own: `schema_file = "order.proto"`.
FILE_SUFFIX = "_file"


def _a_lineage(value: object) -> Lineage:
    if value is True or value is False:
        return value
    if value == "auto":
        return "auto"
    raise RefusedError(f'{shown(value)} is not possible; use true, false or "auto"')


def _a_format(value: object) -> str:
    text = a_text(value)
    if text not in FORMATS:
        raise RefusedError(f"{shown(value)} is not a format; {suggest(text, FORMATS)}")
    return text


def _one_of(choice: Any) -> Callable[[object], str]:
    """Reads one of the texts of a Literal, of which the empty one is not written."""
    choices = tuple(one for one in get_args(choice) if one)

    def read(value: object) -> str:
        text = a_text(value)
        if text not in choices:
            listed = " or ".join(f'"{one}"' for one in choices)
            raise RefusedError(f"{shown(value)} is not possible; use {listed}")
        return text

    return read


def _a_target(value: object) -> str:
    return ".".join(part for part in a_target(value) if part)


def _options(written: object, info: ValidationInfo) -> tuple[tuple[str, str], ...]:
    """The format's options as text, sorted by name; files are read."""
    if "format" not in info.data:
        return ()
    of = FORMATS[info.data["format"]]
    options: dict[str, str] = {}
    refused: list[Conflict] = []
    given: dict[str, str] = {}
    for key, value in a_table(written).items():
        name = key.removesuffix(FILE_SUFFIX)
        if given.setdefault(name, key) != key:
            refused.append((key, f"is given twice: {given[name]} and {key}; keep one of them"))
            continue
        if value is BROKEN:
            continue
        if name.partition(":")[0] not in of.options:
            known = suggest(name, of.options) if of.options else "it has none"
            refused.append((key, f"is no option of {of.name}; {known}"))
            continue
        try:
            options[name] = _read_file(value, info) if key != name else a_string(value)
            check_option(of.name, name, options[name])
        except (RefusedError, ValueError) as refusal:
            refused.append((key, str(refusal)))
    refuse_all(refused)
    return tuple(sorted(options.items()))


def _option_conflicts(
    format_name: str, options: tuple[tuple[str, str], ...], written: Mapping[str, Any]
) -> Iterator[Conflict]:
    """What a format cannot do without, and what is given in two ways.

    :param written: the table that has `options`; one of them whose variable is not set is not among
        those that were read, and not missing.
    """
    given = {key.removesuffix(FILE_SUFFIX) for key in written.get("options", {})}
    given -= {name for name, value in options if not value}
    for name in FORMATS[format_name].required:
        if name not in given and INSTEAD.get(name) not in given:
            yield ("options", name), f"is missing: {OPTIONS[name]}"
    for name, other in INSTEAD.items():
        doubled = sorted(one for one in given if one.partition(":")[0] == name)
        if doubled and other in given:
            yield ("options", other), f"is given beside {doubled[0]}; keep one of them"


def _read_file(value: object, info: ValidationInfo) -> str:
    file = Path(beside_the_file(a_text(value), info))
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RefusedError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RefusedError(f"{file} is not UTF-8 text") from None


@dataclass(frozen=True, slots=True)
class _Route(Section):
    """`{ header = "orders", name = "table" }`, `{ key_prefix = "orders:" }`, `{ envelope = "t" }`.

    An empty text stands for the table's name.
    """

    header: Annotated[str, BeforeValidator(a_string)] | None = None
    key_prefix: Annotated[str, BeforeValidator(a_string)] | None = None
    envelope: Annotated[str, BeforeValidator(a_string)] | None = None
    name: Text = ""

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if len({"header", "key_prefix", "envelope"} & written.keys()) != 1:
            yield (), 'says one of header, key_prefix, envelope, like { header = "orders" }'
        elif self.name and self.header is None:
            yield "name", "is that of a header; leave it out"

    def built(self) -> Route:
        if self.header is not None:
            return Route("header", self.name, self.header)
        if self.key_prefix is not None:
            return Route("key-prefix", "", self.key_prefix)
        return Route("envelope", "", self.envelope or "")


@dataclass(frozen=True, slots=True)
class _DynamicColumns(Section):
    """`{ allow = ["attr_.*"], deny = ["attr_tmp.*"], max = 50 }`."""

    allow: Listed[Pattern]
    deny: Listed[Pattern] = ()
    max: Annotated[int, Field(strict=True, ge=1, le=COLUMNS_MAX)] = 50


@dataclass(frozen=True, slots=True)
class _Key(Section):
    """`{ format = "AvroConfluent", options = { … } }`."""

    format: Annotated[str, BeforeValidator(_a_format)]
    options: Annotated[tuple[tuple[str, str], ...], PlainValidator(_options)] = ()

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if self.format in _NO_KEYS:
            yield "format", f"{self.format} is for values; a key is one row"
        yield from _option_conflicts(self.format, self.options, written)


_ROUTE, _DYNAMIC_COLUMNS = TypeAdapter(_Route), TypeAdapter(_DynamicColumns)
_KEY = TypeAdapter(_Key)


def _a_route(written: object) -> Route:
    return _ROUTE.validate_python(written).built()


def _a_key(written: object, info: ValidationInfo) -> KeyFormat:
    read = _KEY.validate_python(written, context=info.context)
    return KeyFormat(read.format, read.options)


def _dynamic_columns(written: object) -> DynamicColumns:
    read = _DYNAMIC_COLUMNS.validate_python(written)
    return DynamicColumns(read.allow, read.deny, read.max)


@dataclass(frozen=True, slots=True)
class TableConfiguration(Section):
    """An entry: some topics go to a table.

    :param name: unique among the entries, part of every token.
    :param target: database.table, as it stands in tokens and messages; in the file it may lack
        the database, or all of it.
    :param lineage: True: blocks carry all lineage columns; "auto": those that exist.
    :param fractions: what becomes of digits of a second that a column does not keep.
    :param sort: the worker sorts blocks by the table's sorting key.
    :param options: of the format, by name.
    :param rows: how many rows a message has.
    :param bad_rows: what a bad row does to the other rows of its message.
    :param route: which messages of the topics; None: all.
    :param columns: that are not simply the field of their name.
    :param fields: types of further fields that expressions name.
    :param require: columns whose field must be there and not null.
    :param check: expressions that must be true of each row.
    :param topic_pattern: takes further topics that a connector reads. "": none.
    :param dynamic_columns: which fields without a column get one; None: none does.
    :param shards: that the rows go to, see `Configuration.shards_of`; (): all of them.
    :param sharding: of the rows among several shards.
    :param deduplicate: by what an event is known again; None: by its place in Kafka only.
    :param delivery: how its blocks are stored once.
    :param tombstones: what becomes of messages without a value.
    :param decompress: how values are compressed; "": they are not.
    :param envelope: what is around the row of a message; "": nothing.
    :param timestamps: the unit of whole numbers in columns of dates and times; "": seconds.
    :param key: how keys are decoded, of which `columns` name fields; None: they are not.
    """

    name: Name
    target: Annotated[str, BeforeValidator(_a_target)] = ""
    topics: Listed[Topic] = ()
    topic_pattern: Pattern = ""
    format: Annotated[str, BeforeValidator(_a_format)] = "JSONEachRow"
    lineage: Annotated[Lineage, PlainValidator(_a_lineage)] = True
    unknown_fields: UnknownFields = "ignore"
    on_null: OnNull = "dead-letter"
    fractions: Fractions = "dead-letter"
    on_error: OnError = "stop-partition"
    sort: Annotated[bool, Field(strict=True)] = False
    options: Annotated[tuple[tuple[str, str], ...], PlainValidator(_options)] = ()
    rows: Rows = "one"
    bad_rows: BadRows = "dead-letter"
    route: Annotated[Route | None, PlainValidator(_a_route)] = None
    columns: Annotated[tuple[Mapped, ...], PlainValidator(a_mapping)] = ()
    fields: Annotated[tuple[tuple[str, str], ...], PlainValidator(some_fields)] = ()
    require: Listed[Text] = ()
    check: Listed[Text] = ()
    dynamic_columns: Annotated[DynamicColumns | None, PlainValidator(_dynamic_columns)] = None
    shards: Listed[Name] = ()
    sharding: Annotated[Sharding | None, PlainValidator(a_sharding)] = None
    deduplicate: Annotated[Deduplicate | None, PlainValidator(a_deduplication)] = None
    delivery: Delivery = "block"
    tombstones: Tombstones = "skip"
    decompress: Annotated[Compression, BeforeValidator(_one_of(Compression))] = ""
    envelope: Annotated[Envelope, BeforeValidator(_one_of(Envelope))] = ""
    timestamps: Annotated[Ticks, BeforeValidator(_one_of(Ticks))] = ""
    key: Annotated[KeyFormat | None, PlainValidator(_a_key)] = None

    @property
    def database(self) -> str:
        """The part of `target` before the dot."""
        return self.target.partition(".")[0]

    @property
    def table(self) -> str:
        """The part of `target` behind the dot."""
        return self.target.rpartition(".")[2]

    def takes(self, topic: str) -> bool:
        """Whether the messages of a topic that a connector reads go to this entry."""
        return takes(self.topics, self.topic_pattern, topic)

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if not self.topics and not self.topic_pattern:
            yield "topics", "is missing"
        if not self.target:
            try:
                a_target(written["name"])
            except RefusedError as refusal:
                yield "name", str(refusal)
        yield from _option_conflicts(self.format, self.options, written)
        if self.rows == "one" and self.bad_rows == "drop-row":
            yield "bad_rows", 'needs rows = "many": a message of one row has no other rows'
        if self.deduplicate is not None:
            yield from self._not_known_again(self.deduplicate)
        if self.tombstones == "delete":
            yield from self._not_deleting()
        if self.delivery == "staged":
            yield from self._not_staged()
        if self.route is not None and self.route.by == "envelope":
            yield from self._not_routed()
        if self.envelope:
            yield from self._not_enveloped()
        yield from self._without_keys()
        if self.dynamic_columns is not None:
            for what in self._without_new_fields():
                yield "dynamic_columns", what

    def _not_routed(self) -> Iterator[Conflict]:
        if self.format not in NAMES_TABLE:
            yield (
                "route",
                f"by envelope reads the table's name in a SQLBatchRequest; messages of "
                f"{self.format} have none. Route by header or key_prefix. (Change events: "
                'envelope = "debezium" beside the route takes them out of their envelope.)',
            )
        if self.decompress:
            yield "route", "by envelope does not go with decompress: it is told before"

    def _not_enveloped(self) -> Iterator[Conflict]:
        if self.format not in ENVELOPED:
            yield "envelope", f"needs one of the formats {', '.join(ENVELOPED)}"
        if self.rows == "many":
            yield "envelope", 'needs rows = "one": an event is one row'

    def _without_keys(self) -> Iterator[Conflict]:
        reads = [one.column for one in self.columns if one.by == "key"]
        if reads and self.key is None:
            yield ("columns", reads[0]), "needs the section [table.key] with its format"
        if self.key is not None and not reads:
            yield "key", 'no column reads a field of it: column = { key = "field" }'
        if self.key is not None and self.decompress:
            yield "key", "does not go with decompress, which is for values"

    def _not_staged(self) -> Iterator[Conflict]:
        """What would give a block other rows than a marker speaks of, or none."""
        if self.deduplicate is not None:
            yield (
                "deduplicate",
                'does not go with delivery = "staged": who claims anew after its store lost claims '
                "makes other rows of a block that may be sealed; use one of the two",
            )
        if self.on_error == "park":
            yield (
                "on_error",
                '"park" does not go with delivery = "staged": a block that is sealed is finished; '
                'use "stop-partition"',
            )

    def _not_known_again(self, deduplicate: Deduplicate) -> Iterator[Conflict]:
        if deduplicate.duplicates != "drop" and self.rows == "many":
            yield (
                ("deduplicate", "duplicates"),
                f'"{deduplicate.duplicates}" needs rows = "one": the other rows of a '
                'message may be loaded; use "drop"',
            )
        if self.lineage is False:
            yield (
                "deduplicate",
                "needs the lineage columns: claims that their store lost are read back from the "
                "table, with the place in Kafka of each row; use lineage = true",
            )

    def _not_deleting(self) -> Iterator[Conflict]:
        if self.delivery != "replacing":
            yield "tombstones", 'needs delivery = "replacing", which takes deleted keys out'

    def _without_new_fields(self) -> Iterator[str]:
        """What keeps Sluice from seeing new fields, or from knowing what they are."""
        if self.format != "JSONEachRow":
            yield f'needs format = "JSONEachRow": new fields of {self.format} get no columns'
            return
        if self.unknown_fields != "refuse":
            yield (
                'needs unknown_fields = "refuse": fields that are ignored are not seen; name in '
                "deny what is to be passed over"
            )
        if self.bad_rows == "drop-row":
            yield 'needs bad_rows = "dead-letter": a row with a new field would be dropped'
        for name, value in (("decompress", self.decompress), ("envelope", self.envelope)):
            if value:
                yield f"does not go with {name}: new fields are looked for in the value as it came"
        if self.columns or self.fields or self.timestamps:
            yield (
                "does not go with timestamps, [table.columns] and [table.fields]: a new column is "
                "the field of its name"
            )
