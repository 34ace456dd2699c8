"""The load spec: everything that decides which rows a range becomes (R8).

Two executions of the same range under the same load spec make the same rows. The load spec is
canonical (sorted keys, no comments, no secrets), lives in the ledger, and is named by
its digest in every intent. A replay executes the load spec from the ledger, never the
configuration file or today's schema.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sluice.core.claims import Deduplicate
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import TerminalError
from sluice.core.formats import REGISTRY_OPTION
from sluice.core.topics import takes

SPEC_VERSION = 1

ColumnKind = Literal["", "DEFAULT", "MATERIALIZED", "ALIAS", "EPHEMERAL"]

#: How a block is stored once: "block": the table's deduplication window knows it again (R10);
#: "staged": it has a table of its own first, and is moved in (R21); "replacing": the table keeps
#: one of equal rows, however often they come (R22).
Delivery = Literal["block", "staged", "replacing"]
#: When rows of a range come into sight: those of each table when they are loaded, or of all tables
#: one after the other when all are ready.
Commit = Literal["table", "bundle"]
#: Parts of a second.
Ticks = Literal["", "ms", "us", "ns"]
#: Whose envelope a message is.
Envelope = Literal["", "debezium", "connect"]
#: How producers compress values, beside what Kafka does with batches.
Compression = Literal["", "gzip", "zstd", "lz4", "snappy"]
#: What becomes of a message without a value.
Tombstones = Literal["skip", "delete"]

#: The lineage columns, in the order in which a block carries them.
LINEAGE_TYPES = {
    "_topic": "String",
    "_partition": "UInt32",
    "_offset": "UInt64",
    "_row": "UInt32",
    "_source": "LowCardinality(String)",
}
#: Says who loaded a row (`core.tokens.row_source`); the lineage column that a table may lack.
SOURCE = "_source"
#: Those that tell one message's row from another's. A probe needs `_source`, too.
NEEDED_LINEAGE = frozenset({"_topic", "_partition", "_offset"})
#: What `_source` may be. A number is for servers before 19.1, which store no LowCardinality and
#: take 0.2 µs a row for the text, but 0.05 for the number (measured on 18.16).
SOURCE_TYPES = ("LowCardinality(String)", "String", "UInt64")
_LOW_CARDINALITY_SINCE = (19, 1)


def lacking_lineage(lineage: Collection[str], rows: str) -> list[str]:
    """The lineage columns that a probe needs and that are not among these.

    :param rows: of a message, "one" or "many".
    """
    needed = NEEDED_LINEAGE | {SOURCE} | ({"_row"} if rows == "many" else set())
    return sorted(needed - set(lineage))


def lineage_types(version: tuple[int, ...]) -> dict[str, str]:
    """The lineage columns with the types that suit a server of this version best."""
    if version >= _LOW_CARDINALITY_SINCE:
        return LINEAGE_TYPES | {"_topic": "LowCardinality(String)"}
    return LINEAGE_TYPES | {SOURCE: "UInt64"}


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a target table as the server describes it.

    :param kind: "" for a plain column, else the kind of its default expression.
    :param expression: the default expression in ClickHouse SQL, "" without one.
    """

    name: str
    type: str
    kind: ColumnKind = ""
    expression: str = ""


@dataclass(frozen=True, slots=True)
class Route:
    """Which messages of a topic go to an entry: those whose `value` is this.

    :param by: "header": of the header `name`; "key-prefix": the key begins with it; "envelope":
        what the message itself names as its table.
    """

    by: Literal["header", "key-prefix", "envelope"]
    name: str
    value: str


@dataclass(frozen=True, slots=True)
class Mapped:
    """Where the values of a column come from, if not from the field of its name.

    :param by: "field": of this name; "path": of names with dots between; "value": this text;
        "kafka": one of KAFKA_COLUMNS; "header": the Kafka header of this name; "key": a field of
        the key; "sql": an expression over fields and KAFKA_COLUMNS.
    """

    column: str
    by: Literal["field", "path", "value", "kafka", "header", "key", "sql"]
    source: str


@dataclass(frozen=True, slots=True)
class KeyFormat:
    """How Kafka's keys are decoded.

    :param options: of the format, by name, sorted.
    """

    format: str
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which shard a row goes to: a number of it, modulo the number of shards.

    :param by: "key": `column`, a number divided by `stripe`, anything else by its hash; "offset":
        of the message, divided by `stripe`; "expression": in ClickHouse SQL, of whole numbers.
    """

    by: Literal["key", "offset", "expression"]
    column: str = ""
    stripe: int = 1
    expression: str = ""


#: What a mapping may say of the message itself, with the types that expressions see.
KAFKA_COLUMNS = {
    "_key": "Nullable(String)",
    "_timestamp": "Nullable(DateTime64(3, 'UTC'))",
    "_headers": "Map(String, Nullable(String))",
    "_topic": "String",
    "_partition": "UInt32",
    "_offset": "UInt64",
    "_tombstone": "UInt8",
    "_raw_message": "String",
}


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What decides the rows of one table entry.

    :param entry: the `name` of the [[table]] entry; part of every token.
    :param columns: all columns in the server's order, lineage columns included.
    :param lineage: those of the lineage columns that blocks carry.
    :param partition_key: the table's PARTITION BY expression, "" without one.
    :param time_zone: the server's time zone; DateTime strings without a zone mean it.
    :param shards: the names of the shards, sorted; identities, not positions (H15).
    :param sort: rows stand in the order of the sorting key, ties by offset.
    :param options: of the format, by name, sorted.
    :param rows: how many rows a message has; "one": any other number makes it a dead letter.
    :param bad_rows: what a bad row does to the other rows of its message.
    :param route: None: every message of the topics.
    :param mapping: of columns that are not simply the field of their name.
    :param fields: types of further fields that expressions name.
    :param require: columns whose field must be there and not null.
    :param check: expressions in ClickHouse SQL that must be true of each row.
    :param parked: nothing is inserted; each message that the entry takes is parked instead.
    :param topic_pattern: takes further topics, by their whole names; "": none.
    :param dynamic: which fields without a column get one; None: none does.
    :param sharding: of the rows among `shards`; None: there is one shard.
    :param zookeeper_paths: (shard, path) of a Replicated table: which table it is. Only servers
        that hold a replica of it may be offered its blocks (H15). Empty for a table that is not
        replicated, whose blocks go to the first server of their shard.
    :param uuids: (shard, table, uuid) of the table and of its views' targets, where they are not
        replicated: which tables they are, since each has a window of its own.
    :param schemas: numbers of the registry that messages may name; one that names another is a
        dead letter, whatever the registry says by now. None: any number; a message that names one
        that the registry does not know makes the range refused, for all tables.
    :param quorums: (shard, replicas) where more than one replica has to have a block. A repeat
        never waits for fewer than an attempt before it: a server that is asked for no quorum says
        OK to a block that it knows while the block's own quorum still may fail, and then it goes.
    :param fractions: what becomes of digits of a second that a column does not keep.
    :param deduplicate: by which key an event is known again; None: each message makes its rows.
    :param delivery: how its blocks are stored once.
    :param tombstones: what becomes of messages without a value.
    :param decompress: how values are compressed; "": they are not.
    :param envelope: what is around the row of a message; "": nothing.
    :param timestamps: the unit of whole numbers in columns of dates and times; "": seconds since
        1970, and days in a Date.
    :param key: how keys are decoded, of which the mapping names fields; None: they are not.
    """

    entry: str
    database: str
    table: str
    topics: tuple[str, ...]
    format: str
    columns: tuple[Column, ...]
    lineage: tuple[str, ...]
    partition_key: str
    sorting_key: str
    unknown_fields: Literal["ignore", "refuse"]
    on_null: Literal["dead-letter", "default"]
    time_zone: str
    shards: tuple[str, ...]
    sort: bool = False
    options: tuple[tuple[str, str], ...] = ()
    rows: Literal["one", "many"] = "one"
    bad_rows: Literal["dead-letter", "drop-row"] = "dead-letter"
    route: Route | None = None
    mapping: tuple[Mapped, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    require: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    parked: bool = False
    topic_pattern: str = ""
    dynamic: DynamicColumns | None = None
    sharding: Sharding | None = None
    zookeeper_paths: tuple[tuple[str, str], ...] = ()
    quorums: tuple[tuple[str, int], ...] = ()
    fractions: Literal["dead-letter", "cut"] = "dead-letter"
    schemas: tuple[int, ...] | None = None
    uuids: tuple[tuple[str, str, str], ...] = ()
    deduplicate: Deduplicate | None = None
    delivery: Delivery = "block"
    tombstones: Tombstones = "skip"
    decompress: Compression = ""
    envelope: Envelope = ""
    key: KeyFormat | None = None
    timestamps: Ticks = ""

    @property
    def registry(self) -> str:
        """The URL of the registry that schemas of its messages or their keys are in; "": none."""
        options = self.options if self.key is None else (*self.options, *self.key.options)
        return dict(options).get(REGISTRY_OPTION, "")

    @property
    def is_replacing(self) -> bool:
        """Whether its table keeps one of equal rows: its blocks need no window (R22)."""
        return self.delivery == "replacing"

    def row_generation(self, generation: int) -> int:
        """What rows of it say of their generation: those that a rewind loads again are to replace
        those that were there before."""
        return 0 if self.is_replacing else generation

    @property
    def is_staged(self) -> bool:
        """Whether blocks come into it by way of tables of their own (R21)."""
        return self.delivery == "staged"

    @property
    def target(self) -> str:
        """database.table, as it stands in tokens and messages."""
        return f"{self.database}.{self.table}"

    def takes(self, topic: str) -> bool:
        """Whether the messages of this topic go to this entry."""
        return takes(self.topics, self.topic_pattern, topic)


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """The whole load spec of one connector.

    :param decoder: name and version of the engine that decodes, e.g. "chdb 26.9.0".
    :param range_bytes_max: above this a range is inserted by nobody (R12).
    :param unrouted: what becomes of messages that no entry of their topic takes.
    :param commit: "bundle": all blocks of a range are sealed before any of them is moved (R21).
    """

    pipeline: str
    connector: str
    decoder: str
    range_bytes_max: int
    tables: tuple[TableSpec, ...]
    version: int = SPEC_VERSION
    unrouted: Literal["dead-letter", "skip"] = "dead-letter"
    commit: Commit = "table"

    def canonical(self) -> str:
        """The load spec itself: JSON with sorted keys and no spaces."""
        raw = asdict(self)
        if self.unrouted == "dead-letter":
            del raw["unrouted"]
        if self.commit == "table":
            del raw["commit"]
        for table in raw["tables"]:
            for name, default in _CHOICES.items():
                if table[name] == default:
                    # Load specs from before there was a choice keep their names.
                    del table[name]
        return json.dumps(raw, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def digest(self) -> str:
        """16 hexadecimal digits that name this load spec."""
        return digest_of(self.canonical())

    def tables_of(self, topic: str) -> tuple[TableSpec, ...]:
        """The table entries that a message of this topic goes to."""
        return tuple(table for table in self.tables if table.takes(topic))


#: Fields that came later, with the values that mean what was before.
_CHOICES: dict[str, object] = {
    "sort": False,
    "options": (),
    "rows": "one",
    "bad_rows": "dead-letter",
    "route": None,
    "mapping": (),
    "fields": (),
    "require": (),
    "check": (),
    "parked": False,
    "topic_pattern": "",
    "dynamic": None,
    "sharding": None,
    "zookeeper_paths": (),
    "quorums": (),
    "fractions": "dead-letter",
    "schemas": None,
    "uuids": (),
    "deduplicate": None,
    "delivery": "block",
    "tombstones": "skip",
    "decompress": "",
    "envelope": "",
    "key": None,
    "timestamps": "",
}


def digest_of(canonical: str) -> str:
    """The name of a canonical load spec: 16 hexadecimal digits of its SHA-256."""
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def parse_spec(canonical: str) -> LoadSpec:
    """Rebuild a load spec from the ledger.

    :raises TerminalError: this version of Sluice cannot execute it.
    """
    raw: dict[str, Any] = json.loads(canonical)
    if raw.get("version") != SPEC_VERSION:
        raise TerminalError(
            f"load spec version {raw.get('version')} was written by another Sluice",
            "Replay with the Sluice version that wrote it, or run `sluice resolve`.",
        )
    tables = tuple(map(_table_of, _tuples(raw.pop("tables"))))
    return LoadSpec(tables=tables, **raw)


#: Of a table, where it has them.
_PARTS: dict[str, Callable[..., Any]] = {
    "route": Route,
    "dynamic": DynamicColumns,
    "sharding": Sharding,
    "deduplicate": Deduplicate,
    "key": KeyFormat,
}


def _table_of(raw: dict[str, Any]) -> TableSpec:
    columns = tuple(Column(**column) for column in raw["columns"])
    mapping = tuple(Mapped(**column) for column in raw.get("mapping", ()))
    parts = {name: of(**raw[name]) for name, of in _PARTS.items() if raw.get(name)}
    return TableSpec(**{**raw, **parts, "columns": columns, "mapping": mapping})


def _tuples(value: Any) -> Any:
    """What JSON says, without lists."""
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
