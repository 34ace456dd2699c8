"""The configuration as the rest of Sluice sees it: checked, with units, secrets masked.

Immutable by contract (the mappings too), and picklable: Spark's workers get parts of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from sluice.config.secret import Secret, reveal_all
from sluice.core.dead_letters import LetterLimit
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import ConfigurationError
from sluice.core.flights import INSERTS_MAX
from sluice.core.health import ReplicaLimits
from sluice.core.replicas import majority
from sluice.core.text import Mapped, Route, Sharding
from sluice.core.topics import is_reserved, matches, takes


@dataclass(frozen=True, slots=True)
class GroupStart:
    """Where the consumer group of another loader stands.

    :param earliest: partitions in which that group committed nothing begin at the earliest
        message; else they are refused.
    """

    group: str
    earliest: bool = False


Durability = Literal["quorum", "single"]
Quorum = int | Literal["auto"]
Start = Literal["earliest", "latest"] | datetime | GroupStart
Lineage = bool | Literal["auto"]
UnknownFields = Literal["ignore", "refuse"]
OnNull = Literal["dead-letter", "default"]
Fractions = Literal["dead-letter", "cut"]
Reader = Literal["librdkafka", "wire"]
OnError = Literal["stop-partition", "park"]
Rows = Literal["one", "many"]
BadRows = Literal["dead-letter", "drop-row"]
Unrouted = Literal["dead-letter", "skip"]

DURABILITIES: tuple[Durability, ...] = ("quorum", "single")
LINEAGES: tuple[Lineage, ...] = (True, False, "auto")
UNKNOWN_FIELDS: tuple[UnknownFields, ...] = ("ignore", "refuse")
READERS: tuple[Reader, ...] = ("librdkafka", "wire")
ON_ERROR: tuple[OnError, ...] = ("stop-partition", "park")
ROWS: tuple[Rows, ...] = ("one", "many")
BAD_ROWS: tuple[BadRows, ...] = ("dead-letter", "drop-row")
UNROUTED: tuple[Unrouted, ...] = ("dead-letter", "skip")
ON_NULL: tuple[OnNull, ...] = ("dead-letter", "default")
FRACTIONS: tuple[Fractions, ...] = ("dead-letter", "cut")


@dataclass(frozen=True, slots=True)
class SparkConfiguration:
    """Where the tasks run. `conf` holds Spark's own properties."""

    master: str
    conf: Mapping[str, str | Secret]

    def properties(self) -> dict[str, str]:
        """`conf` as Spark takes it, secrets in the clear."""
        return reveal_all(self.conf)


@dataclass(frozen=True, slots=True)
class ConnectorConfiguration:
    """One Kafka cluster and the topics to load from it.

    :param start: where a group that never existed begins; a datetime has a zone.
    :param kafka: librdkafka properties for every client of this connector.
    :param reader: what reads the ranges.
    :param unrouted: what becomes of messages that no entry of their topic takes.
    :param topic_pattern: takes further topics; see `Configuration.topics_of`. "": none.
    :param prefer: the data center whose replicas its blocks go to first; "": as [clickhouse] says.
    """

    name: str
    brokers: str
    topics: tuple[str, ...]
    start: Start
    kafka: Mapping[str, str | Secret]
    reader: Reader = "librdkafka"
    unrouted: Unrouted = "dead-letter"
    topic_pattern: str = ""
    prefer: str = ""

    def properties(self) -> dict[str, str]:
        """`kafka` as librdkafka takes it, secrets in the clear."""
        return reveal_all(self.kafka)


@dataclass(frozen=True, slots=True)
class BatchConfiguration:
    """When a range is planned, and how long its inserts may go on.

    :param max_partitions: ranges of so many partitions are loaded as one block at most.
    """

    max_messages: int
    max_bytes: int
    max_delay_seconds: float
    lease_seconds: float
    max_partitions: int

    @property
    def range_bytes_max(self) -> int:
        """A range above this is inserted by nobody, and shortened (R12)."""
        return self.max_bytes * 3 // 2


@dataclass(frozen=True, slots=True)
class ShardConfiguration:
    """A shard is known by its name, not by its position (H15).

    :param replicas: base URLs without a trailing slash, in order of preference. Empty where the
        servers are to be asked, see `ClusterConfiguration`.
    """

    name: str
    replicas: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CertificatesConfiguration:
    """Files in PEM for https; "" where there is none.

    :param authority: certificates that servers' certificates are checked against; "": those that
        the machine trusts.
    :param certificate: that Sluice shows to servers.
    """

    authority: str = ""
    certificate: str = ""
    key: str = ""
    key_password: Secret = field(default_factory=lambda: Secret(""))


@dataclass(frozen=True, slots=True)
class QuorumConfiguration:
    """What durability = "quorum" waits for.

    :param replicas: so many of a shard have to have a block; "auto": most of those it names.
    :param timeout_seconds: for so long the server waits for them.
    :param zookeeper: where loaders queue for a table whose server takes one quorum insert at a
        time: host:port, several separated by commas, and a path if need be; "": nowhere.
    """

    replicas: Quorum = 2
    timeout_seconds: float = 25.0
    zookeeper: str = ""

    def of(self, shard: ShardConfiguration) -> int:
        """How many replicas of a shard."""
        return majority(len(shard.replicas)) if self.replicas == "auto" else self.replicas


@dataclass(frozen=True, slots=True)
class ClusterConfiguration:
    """Where the replicas of the shards stand: in `system.clusters` of any server.

    :param name: of the cluster.
    :param servers: URLs; the first of them that answers is asked.
    :param scheme: of the replicas' HTTP addresses, and `http_port` their port.
    :param addresses: URLs by `host:port` as system.clusters has them, the port being that of the
        native protocol, for replicas whose address is not scheme://host:http_port.
    :param shard_macro: the macro whose value is the name of a server's shard.
    """

    name: str
    servers: tuple[str, ...]
    scheme: str
    http_port: int
    addresses: Mapping[str, str]
    shard_macro: str = "shard"


@dataclass(frozen=True, slots=True)
class ClickHouseConfiguration:
    """The cluster that the rows go to.

    :param password_file: holds the password instead, and may change; "": `password` is it.
    :param inserts_max: ranges in flight for each replica of a table, of each connector.
    :param insert_timeout_seconds: what a block may take before it is in doubt.
    :param quorum: of no meaning with durability = "single".
    :param cluster: None: the replicas of each shard stand in the file.
    :param data_centers: patterns of hosts, or of host:port, by data center.
    :param prefer: the data center whose replicas are tried first; "": none is preferred.
    :param limits: a replica beyond them is tried last.
    """

    database: str
    shards: tuple[ShardConfiguration, ...]
    user: str
    password: Secret
    durability: Durability
    password_file: str = ""
    certificates: CertificatesConfiguration = field(default_factory=CertificatesConfiguration)
    inserts_max: int = INSERTS_MAX
    insert_timeout_seconds: float = 30.0
    quorum: QuorumConfiguration = field(default_factory=QuorumConfiguration)
    cluster: ClusterConfiguration | None = None
    data_centers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    prefer: str = ""
    limits: ReplicaLimits = field(default_factory=ReplicaLimits)


@dataclass(frozen=True, slots=True)
class TableConfiguration:
    """An entry: some topics go to a table.

    :param name: unique among the entries, part of every token.
    :param lineage: True: blocks carry all lineage columns; "auto": those that exist.
    :param sort: the worker sorts blocks by the table's sorting key.
    :param options: of the format, by name.
    :param rows: how many rows a message has.
    :param bad_rows: what a bad row does to the other rows of its message.
    :param route: which messages of the topics; None: all.
    :param mapping: of columns that are not simply the field of their name.
    :param fields: types of further fields that expressions name.
    :param require: columns whose field must be there and not null.
    :param check: expressions that must be true of each row.
    :param topic_pattern: takes further topics that a connector reads. "": none.
    :param dynamic: which fields without a column get one; None: none does.
    :param shards: that the rows go to, see `Configuration.shards_of`; (): all of them.
    :param sharding: of the rows among several shards.
    :param fractions: what becomes of digits of a second that a column does not keep.
    """

    name: str
    database: str
    table: str
    topics: tuple[str, ...]
    format: str
    lineage: Lineage
    unknown_fields: UnknownFields
    on_null: OnNull
    on_error: OnError
    sort: bool = False
    options: tuple[tuple[str, str], ...] = ()
    rows: Rows = "one"
    bad_rows: BadRows = "dead-letter"
    route: Route | None = None
    mapping: tuple[Mapped, ...] = ()
    fields: tuple[tuple[str, str], ...] = ()
    require: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    topic_pattern: str = ""
    dynamic: DynamicColumns | None = None
    shards: tuple[str, ...] = ()
    sharding: Sharding | None = None
    fractions: Fractions = "dead-letter"

    @property
    def target(self) -> str:
        """database.table, as it stands in tokens and messages."""
        return f"{self.database}.{self.table}"

    def takes(self, topic: str) -> bool:
        """Whether the messages of a topic that a connector reads go to this entry."""
        return takes(self.topics, self.topic_pattern, topic)


@dataclass(frozen=True, slots=True)
class RegistryConfiguration:
    """A schema registry with Confluent's HTTP API.

    :param patience_seconds: a schema that it does not know is waited for so long; then the messages
        that name it become dead letters.
    """

    url: str
    user: str
    password: Secret
    patience_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class MetricsConfiguration:
    """Where metrics are served. Port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Configuration:
    """The whole file.

    :param path: the file as the user named it.
    :param metrics: None: no metrics are served.
    :param registry: None: no format needs one.
    :param letter_limit: from when on dead letters stop their partition.
    """

    path: Path
    pipeline: str
    spark: SparkConfiguration
    connectors: tuple[ConnectorConfiguration, ...]
    batch: BatchConfiguration
    clickhouse: ClickHouseConfiguration
    tables: tuple[TableConfiguration, ...]
    dead_letters_topic: str
    ledger_topic: str
    metrics: MetricsConfiguration | None
    registry: RegistryConfiguration | None = None
    letter_limit: LetterLimit = field(default_factory=LetterLimit)
    #: Of messages whose table takes nothing for now.
    parking_topic: str = ""

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The topics that the pipeline writes."""
        names = (self.ledger_topic, self.dead_letters_topic)
        return (*names, self.parking_topic) if self.parkable else names

    @property
    def parkable(self) -> tuple[str, ...]:
        """Table entries whose messages wait when the table does not take them."""
        return tuple(table.name for table in self.tables if table.on_error == "park")

    def group(self, connector: str) -> str:
        """The consumer group of a connector, whose offsets carry the intents (R1)."""
        return f"sluice.{self.pipeline}.{connector}"

    def connector(self, name: str) -> ConnectorConfiguration:
        """:raises ConfigurationError: there is no connector of this name."""
        for connector in self.connectors:
            if connector.name == name:
                return connector
        names = ", ".join(connector.name for connector in self.connectors)
        raise ConfigurationError(
            f'{self.path}: connector: none is named "{name}"', f"Name one of: {names}."
        )

    def shards_of(self, table: TableConfiguration) -> tuple[str, ...]:
        """Names of the shards that an entry's rows go to, sorted: whatever the file's order, a
        shard has the same place among them."""
        return tuple(sorted(table.shards or (shard.name for shard in self.clickhouse.shards)))

    def tables_of(self, topic: str) -> tuple[TableConfiguration, ...]:
        """The entries that a message of this topic goes to."""
        return tuple(table for table in self.tables if table.takes(topic))

    def reads(self, connector: str, topic: str) -> bool:
        """Whether a connector loads this topic, once it exists: it names it, or its expression
        takes it, a table entry takes it too, and it is nobody's bookkeeping."""
        source = self.connector(connector)
        if topic in source.topics:
            return True
        if topic in (*self.own_topics, self.parking_topic) or is_reserved(topic):
            return False
        return matches(source.topic_pattern, topic) and bool(self.tables_of(topic))

    def topics_of(self, connector: str, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics that a connector loads: those that it names, then those of the existing
        ones that its expression takes, sorted."""
        named = self.connector(connector).topics
        further = {topic for topic in existing if self.reads(connector, topic)}
        return (*named, *sorted(further.difference(named)))
