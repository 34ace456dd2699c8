"""From a topic to a configuration and a table: look, infer, and try both on what was seen.

The sample is a few messages from all over it. Nothing is joined, committed or written.
"""

from __future__ import annotations

import difflib
import json
import logging
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.formats import REGISTRY_OPTION, needs_registry
from sluice.core.load_spec import LINEAGE_TYPES, Column, Delivery, TableSpec
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage
from sluice.decode.messages.facts import alone
from sluice.decode.messages.fault import NULL_IN_COLUMN
from sluice.decode.schema.registry import provide
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.registry import RegistryAccess, RegistryClient
from sluice.kafka.tail import Tail
from sluice.kafka.topics import partition_count
from sluice.ops.init_formats import FirstLine, Recognised, named_schemas, recognise
from sluice.ops.init_schema import opened, recognise_schemas
from sluice.ops.init_table import ASSUMED, ServerFacts, ask_server, create_table, fitted
from sluice.ops.init_types import COLUMNS_MAX, SampledColumn, columns_of_lines, columns_of_records

#: Partitions that are looked into; of more, so many evenly.
PARTITIONS_MAX = 24
_SPOTS = 3
_SECONDS_MAX = 45.0
_SPOT_SECONDS_MAX = 8.0
_BYTES_MAX = 64 * 1024**2
_POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Sample:
    """What was seen of a topic.

    :param values: of messages that have one; tombstones are left out and counted.
    :param partitions: of the topic.
    :param messages: offsets that the partitions looked into hold, holes included.
    """

    topic: str
    values: tuple[bytes, ...]
    partitions: int
    messages: int
    tombstones: int


def take_sample(access: KafkaAccess, topic: str, count: int) -> Sample:
    """About `count` messages: from the beginning, the middle and the end of each partition.

    :raises ConfigurationError: there is no such topic.
    :raises TerminalError: it holds no message with a value.
    :raises SluiceError: Kafka does not answer.
    """
    cluster = BrokerFacts(access)
    if topic not in cluster.topics:
        near = difflib.get_close_matches(topic, sorted(cluster.topics), n=1)
        raise ConfigurationError(
            f"topic {topic} does not exist at {access.brokers}, or its user may not see it",
            f"Did you mean {near[0]}?" if near else "Check the name and the brokers.",
        )
    partitions = partition_count(access, topic)
    step = max(1, -(-partitions // PARTITIONS_MAX))
    chosen = range(0, partitions, step)
    at_each = max(1, -(-count // (_SPOTS * len(chosen))))
    until = time.monotonic() + _SECONDS_MAX
    values: list[bytes] = []
    messages = tombstones = 0
    for partition in chosen:
        tail = Tail(access, topic, partition)
        try:
            messages += tail.stable_end - tail.log_begin
            for begin, end in spots(tail.log_begin, tail.stable_end, at_each):
                found = _read(tail, begin, end, until, _BYTES_MAX - sum(map(len, values)))
                values += [value for value in found if value is not None]
                tombstones += found.count(None)
        finally:
            tail.close()
    if not values:
        what = f"only {tombstones} tombstones" if tombstones else "no message"
        raise TerminalError(
            f"topic {topic} holds {what}: there is nothing to look at",
            "Produce some messages first; `sluice init` writes an example to edit by hand.",
        )
    return Sample(topic, tuple(values), partitions, messages, tombstones)


def spots(begin: int, end: int, count: int) -> list[tuple[int, int]]:
    """Where to read `count` messages each: half-open, in order, apart from each other."""
    if end - begin <= _SPOTS * count:
        return [(begin, end)] if end > begin else []
    middle = (begin + end - count) // 2
    return [(begin, begin + count), (middle, middle + count), (end - count, end)]


def _read(tail: Tail, begin: int, end: int, until: float, bytes_max: int) -> list[bytes | None]:
    """Values between two offsets; fewer if time or bytes run out."""
    tail.seek(begin)
    until = min(until, time.monotonic() + _SPOT_SECONDS_MAX)
    found: list[bytes | None] = []
    size = 0
    while tail.position < end and size < bytes_max:
        if time.monotonic() > until:
            _logger.warning("%s[%d]: not all was read in time", tail.topic, tail.partition)
            break
        for message in tail.poll(_POLL_SECONDS):
            if begin <= message.offset < end and size < bytes_max:
                found.append(message.value)
                size += len(message.value or b"")
    return found


_logger = logging.getLogger("sluice.init")

#: Variables of the environment that a registry's secrets are in.
REGISTRY_PASSWORD, REGISTRY_TOKEN = "REGISTRY_PASSWORD", "REGISTRY_TOKEN"
_NAME_MAX = 48
#: A column is made wider, and the sample decoded again, so often at most.
_TRIALS = 8
_BAD_SHARE_MAX = 0.5
_NO_KAFKA = '# kafka = { "security.protocol" = "SSL" }   # any property of librdkafka'
_TEXT = re.compile(r"(?:LowCardinality\()?(?:Nullable\()?String\)*$")
_TABLE = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said.

    :param brokers: host:port, several separated by commas.
    :param written: librdkafka properties as they will stand in the file.
    :param properties: the same with the environment's values.
    :param clickhouse: URL of a server; "" to ask none.
    :param database: of the table; None for the default.
    :param table: None to call it like the topic.
    :param samples: how many messages to look at.
    :param delivery: of the table entry.
    :param registry: of schemas; None for none.
    :param first_line: what the first line of a message of CSV or TSV has.
    """

    topic: str
    brokers: str
    clickhouse: str = ""
    user: str = "default"
    password: str = ""
    database: str | None = None
    table: str | None = None
    samples: int = 1_000
    delivery: Delivery = "block"
    written: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    registry: RegistryAccess | None = None
    first_line: FirstLine = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What would load the topic.

    :param configuration: text of a configuration file.
    :param statement: the CREATE TABLE.
    """

    configuration: str
    statement: str


def propose(wanted: Wanted) -> Proposal:
    """Look at the topic, and at the server if one is named; nothing is changed there.

    :raises ConfigurationError: there is no such topic.
    :raises TerminalError: the topic is empty, its format is not recognised, or this version
        cannot load it.
    :raises SluiceError: a server does not answer.
    """
    database = wanted.database or "default"
    table = wanted.table or _TABLE.sub("_", wanted.topic)[:_NAME_MAX]
    facts = ASSUMED
    if wanted.clickhouse:
        with Server(wanted.clickhouse, wanted.user, wanted.password) as server:
            facts = ask_server(server, database, table, wanted.delivery)
    access = KafkaAccess("init", wanted.brokers, wanted.properties)
    sample = take_sample(access, wanted.topic, wanted.samples)
    found, columns = _look(wanted, sample)
    columns = fitted(columns, facts.version)
    found, columns = try_out(sample, found, columns, wanted.registry)
    _tell(sample, found, columns, facts, f"{database}.{table}")
    return Proposal(
        configuration_text(wanted, found, database, table),
        create_table(database, table, columns, facts, wanted.delivery),
    )


def _look(wanted: Wanted, sample: Sample) -> tuple[Recognised, list[SampledColumn]]:
    """The format of the sample, and its columns."""
    numbers = named_schemas(sample.values)
    if not numbers:
        found = opened(recognise(wanted.topic, sample.values, wanted.first_line))
        return found, _columns(found)
    if wanted.registry is None:
        shown = ", ".join(str(number) for number, _ in numbers.most_common(5))
        raise TerminalError(
            f"topic {wanted.topic} holds messages with the header of a schema registry (schemas "
            f"{shown}), which knows what is in them",
            "Name the registry: --registry http://HOST:PORT.",
        )
    client = RegistryClient(wanted.registry)
    provide(wanted.registry.url, client)
    found, columns = recognise_schemas(wanted.topic, numbers, sample.values, client)
    found = opened(found)
    return found, columns or _columns(found)


def _columns(found: Recognised) -> list[SampledColumn]:
    if found.format not in ("JSONEachRow", "JSONConfluent"):
        return columns_of_lines(found.names, found.lines)
    names = {name for record in found.records for name in record}
    columns = columns_of_records(found.records)
    taken = [column for column in columns if column.name not in LINEAGE_TYPES]
    left_out = sorted(names - {column.name for column in taken})
    if left_out:
        shown = ", ".join(json.dumps(name) for name in left_out[:5])
        _logger.warning(
            "%d fields get no column: %s%s. Lineage columns, names that cannot be printed and "
            "more than %d fields are left out",
            len(left_out),
            shown,
            ", …" if len(left_out) > 5 else "",
            COLUMNS_MAX,
        )
    if not taken:
        raise TerminalError(
            "the objects in the sample have no field that could be a column",
            "Look at the messages; `sluice init` writes an example to edit by hand.",
        )
    return taken


def try_out(
    sample: Sample,
    found: Recognised,
    columns: Sequence[SampledColumn],
    registry: RegistryAccess | None = None,
) -> tuple[Recognised, list[SampledColumn]]:
    """Decode the sample as a worker would; columns that a value does not fit become String. Where
    that cannot be, since a record, an array or a map is null, null becomes the default.

    :param registry: that the messages' schemas are in.
    :raises TerminalError: most of the messages would become dead letters.
    """
    columns = list(columns)
    for _ in range(_TRIALS):
        bad = _decode(sample, found, columns, registry)
        null = _null_records(found, columns, bad)
        if null:
            said = f"null is loaded as what its type has for none, as in {null}"
            found = replace(found, on_null="default", remark=said)
            continue
        misfits = {message.column for message in bad} - {""}
        wider = [
            column.as_text() if column.name in misfits and not _TEXT.match(column.type) else column
            for column in columns
        ]
        if wider == columns:
            break
        columns = wider
    reasons = Counter(f"{message.reason}: {message.error}" for message in bad)
    if len(bad) > _BAD_SHARE_MAX * len(sample.values):
        raise TerminalError(
            f"topic {sample.topic} looks like {found.format}, but {len(bad)} of "
            f"{len(sample.values)} messages would become dead letters, most of them as "
            f"{reasons.most_common(1)[0][0]}",
            "Look at the messages; `sluice init` writes an example to edit by hand.",
        )
    for reason, count in reasons.most_common(3):
        _logger.warning("%d of the messages would become dead letters: %s", count, reason)
    return found, columns


def _null_records(
    found: Recognised, columns: Sequence[SampledColumn], bad: Sequence[BadMessage]
) -> str:
    """A column of records, arrays or maps that are null in some messages, in a format that makes
    no texts of them; "" for none."""
    if found.on_null == "default" or found.format not in ("AvroConfluent", "ProtobufConfluent"):
        return ""
    names = {one.column for one in bad if one.reason == NULL_IN_COLUMN}
    of_several = (one.name for one in columns if one.type.startswith(("Tuple", "Array", "Map")))
    return next((name for name in of_several if name in names), "")


def _decode(
    sample: Sample,
    found: Recognised,
    columns: Sequence[SampledColumn],
    registry: RegistryAccess | None,
) -> tuple[BadMessage, ...]:
    options = dict(found.options)
    if registry is not None and needs_registry(found.format, found.options.items()):
        options[REGISTRY_OPTION] = registry.url
    spec = TableSpec(
        entry="init",
        database="default",
        table="init",
        topics=(sample.topic,),
        format=found.format,
        columns=tuple(Column(column.name, column.type) for column in columns),
        lineage=(),
        partition_key="",
        sorting_key="",
        unknown_fields="ignore",
        on_null=found.on_null,
        time_zone="UTC",
        shards=("s1",),
        options=tuple(sorted(options.items())),
        rows=found.rows,
        envelope=found.envelope,
    )
    try:
        decoder = make_decoder(spec)
    except TerminalError as error:
        raise TerminalError(
            f"topic {sample.topic} looks like {found.format}, and a table for that cannot be "
            f"proposed: {error.message}",
            error.hint,
        ) from None
    with MessageBuffer(framing_of(spec)) as buffer:
        buffer.add(list(sample.values), range(len(sample.values)))
        return decoder.decode(buffer, alone(sample.topic, 0)).bad


def _tell(
    sample: Sample,
    found: Recognised,
    columns: Sequence[SampledColumn],
    facts: ServerFacts,
    target: str,
) -> None:
    _logger.info(
        "%s: %d partitions; looked at %d messages with a value and %d tombstones of about %d: %s, "
        "%s row%s a message, %d columns",
        sample.topic,
        sample.partitions,
        len(sample.values),
        sample.tombstones,
        sample.messages,
        found.format,
        found.rows,
        "" if found.rows == "one" else "s",
        len(columns),
    )
    if found.remark:
        _logger.warning("%s", found.remark)
    if found.names and found.names[0] == "c1":
        _logger.warning(
            "the messages do not name their columns: rename c1, c2, … in the statement; the "
            "order stays"
        )
    for remark in facts.remarks:
        _logger.warning("%s", remark)
    if not facts.has_database:
        _logger.warning("the database does not exist yet: CREATE DATABASE comes first")
    if facts.has_table:
        _logger.warning("%s exists already; `sluice doctor` looks at it as it is", target)


def configuration_text(wanted: Wanted, found: Recognised, database: str, table: str) -> str:
    """A commented configuration file that loads the topic into the table."""
    name = wanted.topic[:_NAME_MAX]
    kafka = ", ".join(f"{_text(key)} = {_text(value)}" for key, value in wanted.written.items())
    user = f"user = {_text(wanted.user)}\n"
    if wanted.password:
        user += 'password = "${CLICKHOUSE_PASSWORD}"\n'
    more = f"target = {_text(table)}\n" if len(table) > _NAME_MAX else ""
    if found.rows == "many":
        more += 'rows = "many"                         # a message may hold several rows\n'
    if found.envelope:
        more += f"envelope = {_text(found.envelope)}                  # docs/RECIPES.md\n"
    if found.on_null == "default":
        more += 'on_null = "default"                   # where a column takes no null\n'
    if wanted.delivery != "block":
        more += f"delivery = {_text(wanted.delivery)}              # docs/DELIVERIES.md\n"
    if found.options:
        options = ", ".join(f"{key} = {_text(value)}" for key, value in found.options.items())
        more += f"options = {{ {options} }}\n"
    return f"""\
# Written by `sluice init --from-topic`, from a sample of the topic: look at it before you run it.
# `sluice init` alone writes an example of all keys, with comments.

[pipeline]
name = {_text(name)}  # part of every token and topic name: keep it

[spark]
master = "local[2]"                   # two Python workers here, up to 0.6 GB each

[[connector]]                         # one Kafka cluster
name = "main"                         # part of every token: keep it
brokers = {_text(wanted.brokers)}
topics = [{_text(wanted.topic)}]
start = "earliest"                    # or "latest", "2026-01-31T00:00:00Z", or "group:NAME":
                                      # where another loader's consumer group stands
{f"kafka = {{ {kafka} }}" if kafka else _NO_KAFKA}

[batch]                               # a range is loaded when it is full or has waited
max_messages = 250_000
max_bytes = "64MiB"
max_delay = "1s"

[clickhouse]
database = {_text(database)}
shards = {{ s1 = [{_text(wanted.clickhouse or "http://localhost:8123")}] }}
{user}durability = "single"                 # one replica's word is enough; "quorum" needs two
{_registry_text(wanted.registry) if needs_registry(found.format, found.options.items()) else ""}
[[table]]
name = {_text(table[:_NAME_MAX])}  # part of every token: keep it
topics = [{_text(wanted.topic)}]
format = {_text(found.format)}
{more}lineage = true                        # columns _topic, _partition, _offset, _row, _source

# [http]                              # metrics, health, status and a page; Kubernetes and the
# listen = "127.0.0.1:9464"           # image need it, with "0.0.0.0:9464"
"""


def _registry_text(registry: RegistryAccess | None) -> str:
    """The section [registry]; its secrets stay in the environment."""
    if registry is None:
        return ""
    lines = ["", "[registry]", f"url = {_text(registry.url)}"]
    if registry.user:
        lines += [f"user = {_text(registry.user)}", f'password = "${{{REGISTRY_PASSWORD}}}"']
    elif registry.token:
        lines.append(f'token = "${{{REGISTRY_TOKEN}}}"')
    return "\n".join(lines) + "\n"


def _text(value: str) -> str:
    """A string of TOML; variables like ${NAME} stay what they are."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
