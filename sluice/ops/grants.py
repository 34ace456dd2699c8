"""The least rights that a configuration needs, on Kafka and on ClickHouse, in one place. Pure.

`sluice doctor --grants` prints them, and `sluice doctor` looks whether Sluice's user has them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from sluice.clickhouse.copying import tables_behind
from sluice.clickhouse.schema import Dependent, TableFacts
from sluice.clickhouse.sql import identifier, qualified, split_name
from sluice.clickhouse.staging import staging_prefix
from sluice.config import Configuration, ConnectorConfiguration, GroupStart, TableConfiguration
from sluice.core.errors import ConfigurationError
from sluice.driver.specs import lineage_columns
from sluice.kafka.clients import READER_GROUP
from sluice.kafka.replaying import writer_identity

Kind = Literal["topic", "group", "transactional-id", "cluster"]

#: Whoever loads does without these; then a check is a warning.
DOCTOR = "sluice doctor"
#: Stands for who it is, where the file does not say.
_NAME = "NAME"
_OF_A_TOKEN = f": the token says who the user is; give them to a role of its claims, for {_NAME}"
_AUDIT, _LETTERS = "sluice audit", "sluice dead-letters"


@dataclass(frozen=True, slots=True)
class KafkaRight:
    """What the connector's user may do with one resource.

    :param operations: in the words of Kafka's ACLs. Read and Write imply Describe.
    :param is_prefix: `name` is how the names begin.
    :param why: what it is for.
    :param command: only this command needs it; "": whoever loads does.
    """

    connector: str
    kind: Kind
    name: str
    operations: tuple[str, ...]
    why: str
    is_prefix: bool = False
    command: str = ""

    @property
    def place(self) -> object:
        """What it is a right on."""
        return self.kind, self.name, self.is_prefix

    def joined(self, other: KafkaRight) -> KafkaRight:
        """This and another one on the same."""
        operations = dict.fromkeys((*self.operations, *other.operations))
        why = "; ".join(dict.fromkeys((self.why, other.why)))
        return replace(self, operations=tuple(operations), why=why)

    @property
    def shown(self) -> str:
        """The resource in words."""
        if self.kind == "cluster":
            return "the cluster"
        begin = "that begin with " if self.is_prefix else ""
        kind = f"{self.kind}s" if self.is_prefix else self.kind
        return f"{kind.replace('-', ' ')} {begin}{self.name}"

    def statement(self, brokers: str, user: str, operations: Iterable[str] = ()) -> str:
        """The command that gives it.

        :param operations: of all; (): all of them.
        """
        given = " ".join(f"--operation {each}" for each in operations or self.operations)
        name = "" if self.kind == "cluster" else f" {shlex.quote(self.name)}"
        prefixed = " --resource-pattern-type prefixed" if self.is_prefix else ""
        return (
            f"kafka-acls.sh --bootstrap-server {brokers} --add --allow-principal "
            f"{shlex.quote(f'User:{user}')} {given} --{self.kind}{name}{prefixed}"
        )


@dataclass(frozen=True, slots=True)
class ClickHouseRight:
    """What Sluice's user may do with one table, on the servers of some shards.

    :param privileges: as GRANT has them.
    :param on: the table, quoted; with a star behind it: all tables whose names begin so.
    :param command: see `KafkaRight`.
    """

    shards: tuple[str, ...]
    privileges: tuple[str, ...]
    on: str
    why: str
    command: str = ""

    @property
    def place(self) -> object:
        """What it is a right on."""
        return self.shards, self.on

    def joined(self, other: ClickHouseRight) -> ClickHouseRight:
        """This and another one on the same."""
        privileges = dict.fromkeys((*self.privileges, *other.privileges))
        why = "; ".join(dict.fromkeys((self.why, other.why)))
        return replace(self, privileges=tuple(privileges), why=why)

    def statement(self, user: str, privileges: Iterable[str] = ()) -> str:
        """The GRANT.

        :param user: "": a token says who it is, and the file does not show it.
        :param privileges: of all; (): all of them.
        """
        given = ", ".join(privileges or self.privileges)
        return f"GRANT {given} ON {self.on} TO {identifier(user or _NAME)}"


def kafka_user(connector: ConnectorConfiguration) -> str:
    """The name in the principal, as far as the file shows it: of a certificate or a ticket brokers
    make one by rules of their own."""
    name = connector.kafka.get("sasl.username")
    return name if isinstance(name, str) and name else _NAME


def script(configuration: Configuration, tables: Mapping[str, TableFacts]) -> Iterator[str]:
    """What gives all rights, line by line, with comments that say what each is for.

    :param tables: as in `clickhouse_rights`.
    """
    for connector in configuration.connectors:
        yield f"# Kafka, connector {connector.name}"
        for right in _merged(kafka_rights(configuration, connector)):
            yield f"# {_purpose(right)}"
            yield right.statement(connector.brokers, kafka_user(connector))
    yield ""
    clickhouse = configuration.clickhouse
    yield f"-- ClickHouse{_OF_A_TOKEN if clickhouse.token else ''}"
    user = "" if clickhouse.token else clickhouse.user
    for grant in _merged(clickhouse_rights(configuration, tables)):
        yield f"-- {_purpose(grant)}, on each server of {', '.join(grant.shards)}"
        yield f"{grant.statement(user)};"


_Right = TypeVar("_Right", KafkaRight, ClickHouseRight)


def _merged(rights: Iterable[_Right]) -> list[_Right]:
    """Rights on one thing as one; those that only one command needs apart, and last."""
    found: dict[tuple[object, ...], _Right] = {}
    for right in sorted(rights, key=lambda each: each.command not in ("", DOCTOR)):
        command = "" if right.command == DOCTOR else right.command
        known = found.setdefault((right.place, command), right)
        if known is not right:
            found[right.place, command] = known.joined(right)
    return list(found.values())


def _purpose(right: KafkaRight | ClickHouseRight) -> str:
    only = f"only for `{right.command}`: " if right.command not in ("", DOCTOR) else ""
    return f"{only}{right.why}"


# Kafka


def kafka_rights(
    configuration: Configuration, connector: ConnectorConfiguration
) -> list[KafkaRight]:
    """What the user of a connector needs."""
    return [
        KafkaRight(connector.name, *rest)
        for rest in (
            *_sources(connector),
            *_own_topics(configuration),
            *_fleet(configuration),
            *_records(configuration, connector),
            *_looks(),
            *_commands(configuration, connector),
        )
    ]


_Kafka = tuple[Kind, str, tuple[str, ...], str, bool, str]


def _sources(connector: ConnectorConfiguration) -> Iterator[_Kafka]:
    for name, is_prefix in _places(connector):
        yield "topic", name, ("Read",), "its messages are loaded", is_prefix, ""
        yield "topic", name, ("DescribeConfigs",), "retention, compaction", is_prefix, DOCTOR


def _places(connector: ConnectorConfiguration) -> Iterator[tuple[str, bool]]:
    """The topics that are loaded: names, and how names begin."""
    yield from ((topic, False) for topic in connector.topics)
    if connector.topic_pattern:
        begin = literal_begin(connector.topic_pattern)
        yield (begin, True) if begin else ("*", False)


def _own_topics(configuration: Configuration) -> Iterator[_Kafka]:
    ledger, decisions, *letters = _read_first(configuration)
    for name in (ledger, decisions, *letters):
        operations = ("Write",) if name in letters else ("Read", "Write")
        why = "messages that make no row" if name in letters else "intents, receipts, decisions"
        yield "topic", name, operations, why, False, ""
        yield "topic", name, ("Create",), "to make it, unless it is there", False, ""
        is_letters = name == configuration.dead_letters_topic
        looks = "" if is_letters else DOCTOR  # a driver asks how large its messages may be
        yield "topic", name, ("DescribeConfigs",), "its settings", False, looks
        if name == configuration.parking_topic and configuration.http is not None:
            yield "topic", name, ("Read",), "a metric counts what nobody replayed", False, DOCTOR


def _fleet(configuration: Configuration) -> Iterator[_Kafka]:
    if configuration.fleet is None:
        return
    name = configuration.fleet_topic
    yield "topic", name, ("Read", "Write"), "members report, and read all reports", False, ""
    yield "topic", name, ("Create",), "to make it, unless it is there", False, ""
    yield "topic", name, ("DescribeConfigs",), "its settings", False, DOCTOR


def _read_first(configuration: Configuration) -> list[str]:
    """The pipeline's own topics; first the two that a driver reads, too."""
    read = [configuration.ledger_topic, configuration.decisions_topic]
    return [*read, *(name for name in configuration.own_topics if name not in read)]


def _records(configuration: Configuration, connector: ConnectorConfiguration) -> Iterator[_Kafka]:
    group = configuration.group(connector.name)
    yield "group", group, ("Read",), "its offsets carry the intents", False, ""
    yield "transactional-id", f"{group}.", ("Write",), "what is recorded", True, ""
    yield "group", READER_GROUP, ("Describe",), "named by who reads, joined by nobody", False, ""
    if isinstance(connector.start, GroupStart):
        other = connector.start.group
        yield "group", other, ("Describe",), "a new group begins where this one stands", False, ""


def _looks() -> Iterator[_Kafka]:
    yield "cluster", "", ("DescribeConfigs",), "the brokers' settings", False, DOCTOR
    for name in ("__consumer_offsets", "__transaction_state"):
        operations = ("Describe", "DescribeConfigs")
        yield "topic", name, operations, "its replicas and settings", False, DOCTOR


def _commands(configuration: Configuration, connector: ConnectorConfiguration) -> Iterator[_Kafka]:
    _, _, *letters = _read_first(configuration)
    for name in letters:
        if name != configuration.duplicates_topic:
            yield "topic", name, ("Read",), "which messages made no row", False, _AUDIT
        yield "topic", name, ("Read", "Delete"), "list, show, replay; purge", False, _LETTERS
        identity = writer_identity(name)
        yield "transactional-id", identity, ("Write",), "replay, purge", False, _LETTERS
    for name, is_prefix in _places(connector):
        yield "topic", name, ("Write",), "messages go back to it", is_prefix, _LETTERS
    verify = "sluice verify --source offsets"
    yield "topic", "__consumer_offsets", ("Read",), "what was committed", False, verify


def literal_begin(pattern: str) -> str:
    """With what every name begins that a regular expression takes; "": nobody knows."""
    steps = _STEP.findall(pattern)
    depth, begin = 0, ""
    for step in steps:
        depth += (step == "(") - (step == ")")
        if step == "|" and not depth:
            return ""  # several expressions
    for step, after in zip(steps, [*steps[1:], ""], strict=True):
        if not _ITSELF.fullmatch(step) or after in ("*", "?", "{"):
            break
        begin += step[-1]
    return begin


_STEP = re.compile(r"\\.|\[\^?\]?[^\]]*\]|.", re.DOTALL)
_ITSELF = re.compile(r"\\\W|[^\\.^$*+?{}\[\]()|]")


# ClickHouse


#: The statements that `sluice quorum --fix` takes.
_FIXES = (
    *("SYSTEM FETCHES", "SYSTEM REPLICATED SENDS", "SYSTEM REPLICATION QUEUES"),
    "SYSTEM RESTART REPLICA",
)


def clickhouse_rights(
    configuration: Configuration,
    tables: Mapping[str, TableFacts],
    only: Sequence[TableConfiguration] | None = None,
) -> list[ClickHouseRight]:
    """What Sluice's user needs on the servers.

    :param tables: facts by target; of one that is missing here it is what any table may need.
    :param only: for these entries; None: for all.
    """
    entries: dict[str, list[TableConfiguration]] = {}
    for entry in configuration.tables if only is None else only:
        entries.setdefault(entry.target, []).append(entry)
    rights = [
        right
        for target, own in entries.items()
        for right in _of_table(configuration, own, tables.get(target))
    ]
    every = tuple(shard.name for shard in configuration.clickhouse.shards)
    facts = [tables.get(target) for target in entries]
    for name, why in _system_tables(configuration, facts):
        rights.append(ClickHouseRight(every, ("SELECT",), f"system.{name}", why))
    why = "by which hash it knows a block (from 26.2 on), so that another replica may take it over"
    rights.append(ClickHouseRight(every, ("SELECT",), "system.server_settings", why, DOCTOR))
    if any(each is None or each.replicated for each in facts):
        for target in entries:
            name = qualified(*split_name(target))
            why = "the statements that it takes"
            rights.append(ClickHouseRight(every, _FIXES, name, why, "sluice quorum --fix"))
    return rights


def _of_table(
    configuration: Configuration, entries: list[TableConfiguration], facts: TableFacts | None
) -> Iterator[ClickHouseRight]:
    first = entries[0]
    shards = configuration.shards_of(*entries)
    name = qualified(first.database, first.table)

    def right(privilege: str, why: str, on: str = name, command: str = "") -> ClickHouseRight:
        return ClickHouseRight(shards, (privilege,), on, why, command)

    yield right("INSERT", "blocks")
    columns = _columns_read(entries, facts)
    if columns is None:
        why = "what is there, by its lineage columns; what views behind it read of a block"
        yield right("SELECT", why)
    elif columns:
        listed = ", ".join(map(identifier, columns))
        yield right(f"SELECT({listed})", "which rows of a range in doubt are there")
    if any(each.dynamic_columns for each in entries):
        yield right("ALTER ADD COLUMN", "columns of new fields")
    is_staged = any(each.delivery == "staged" for each in entries)
    yield from _behind(shards, facts, is_staged=is_staged)
    if is_staged:
        yield from _staged(shards, first)
    is_compared = any(each.delivery == "replacing" or each.sharding for each in entries)
    if columns is not None and is_compared:
        yield right("SELECT", "versions of keys; shards of rows", command=_AUDIT)


def _columns_read(
    entries: list[TableConfiguration], facts: TableFacts | None
) -> tuple[str, ...] | None:
    """Which columns of a table are read; None: all of them may be."""
    if facts is None or any(map(_runs_as_inserter, facts.dependents)):
        return None
    columns: set[str] = set()
    for entry in entries:
        try:
            columns.update(lineage_columns(entry, facts))
        except ConfigurationError:
            return None  # the table lacks columns, which the doctor says
        if entry.deduplicate is not None:
            words = set(re.findall(r"\w+", " ".join(entry.deduplicate.key)))
            columns.update(words.intersection(column.name for column in facts.columns))
    return (*sorted(columns), "_part") if columns else ()


_DEFINED = re.compile(r"\bSQL SECURITY (DEFINER|NONE)\b")


def _runs_as_inserter(view: Dependent) -> bool:
    """Whether a view reads its block with the rights of who inserts."""
    return not _DEFINED.search(view.statement.partition(" AS SELECT")[0])


def _behind(
    shards: tuple[str, ...], facts: TableFacts | None, *, is_staged: bool
) -> Iterator[ClickHouseRight]:
    """What views behind a table take, and the tables that they write to."""
    tables = () if facts is None else (facts, *tables_behind(facts))
    for table in tables:
        for view in table.dependents:
            on = qualified(*split_name(view.view))
            yield ClickHouseRight(shards, ("SHOW TABLES",), on, "a view that blocks feed")
        for unseen in table.fed_unseen:
            on = qualified(*split_name(unseen))
            yield ClickHouseRight(shards, ("SHOW TABLES",), on, "what blocks feed")
    for table in tables[1:]:
        on = qualified(table.database, table.table)
        if is_staged:  # who may insert sees the columns, too
            why = "what views make of blocks is moved into it"
            yield ClickHouseRight(shards, ("INSERT",), on, why)
        else:
            why = "its window; a view writes to it"
            yield ClickHouseRight(shards, ("SHOW COLUMNS",), on, why)
        if any(map(_runs_as_inserter, table.dependents)):
            yield ClickHouseRight(shards, ("SELECT",), on, "views behind it read it")


#: Of the tables of stored blocks: they are made, filled, counted, renamed, moved away and dropped.
_OF_STORED_BLOCKS = (
    *("CREATE TABLE", "INSERT", "SELECT", "ALTER ADD COLUMN", "ALTER DELETE", "DROP TABLE"),
)


def _staged(shards: tuple[str, ...], entry: TableConfiguration) -> Iterator[ClickHouseRight]:
    stored = f"{qualified(entry.database, staging_prefix(entry.table))}*"
    yield ClickHouseRight(shards, _OF_STORED_BLOCKS, stored, "tables of stored blocks")


def _system_tables(
    configuration: Configuration, tables: Iterable[TableFacts | None]
) -> Iterator[tuple[str, str]]:
    """Those that a server may keep from a user; `tables`, `columns`, `databases`, `settings` and
    others it never does."""
    yield "parts", "insert counters, how many parts there are"
    yield "processes", "whether an insert still runs"
    yield "merge_tree_settings", "the tables' windows"
    yield "replicas", "how replicas are doing"
    yield "mutations", "whether rows were deleted since"
    if any(each is None or each.replicated for each in tables):
        yield "replicated_merge_tree_settings", "windows of Replicated tables"
        yield "replication_queue", "whether a replica has all parts"
        yield "zookeeper", "insert counters of Replicated tables"
    if configuration.clickhouse.cluster is not None:
        yield "clusters", "where the replicas are"
        yield "macros", "which shard a server is of"
