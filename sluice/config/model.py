"""The configuration as the rest of Sluice sees it: checked, with units, secrets masked.

Immutable by contract (the mappings too). Each section of the file is a class that says which keys
it has, what each may be, and its default; [clickhouse], [[connector]] and [[table]] have modules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from sluice.config.clickhouse import CertificatesConfiguration, ClickHouseConfiguration
from sluice.config.connector import ConnectorConfiguration
from sluice.config.deduplication import DeduplicationConfiguration
from sluice.config.folder import Written
from sluice.config.properties import properties_but, refuse_spark_property
from sluice.config.secret import Secret, reveal_all
from sluice.config.section import Conflict, Listed, Section
from sluice.config.table import TableConfiguration
from sluice.config.values import (
    FileName,
    RegistryUrl,
    SecretText,
    Text,
    a_duration,
    a_listen_address,
    a_size,
)
from sluice.core.bundles import MEMBERS_MAX
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.errors import ConfigurationError
from sluice.core.topics import is_reserved, matches

MESSAGES_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class SparkConfiguration(Section):
    """Where the tasks run. `conf` holds Spark's own properties."""

    master: Text = "local[*]"
    conf: Annotated[Mapping[str, str | Secret], properties_but(refuse_spark_property)] = field(
        default_factory=dict
    )

    @property
    def is_local(self) -> bool:
        """Whether the workers run on the driver's machine."""
        return self.master.startswith("local")

    def properties(self) -> dict[str, str]:
        """`conf` as Spark takes it, secrets in the clear."""
        return reveal_all(self.conf)

    @property
    def secret_names(self) -> frozenset[str]:
        """Properties whose values nobody may see."""
        return frozenset(name for name, value in self.conf.items() if isinstance(value, Secret))


@dataclass(frozen=True, slots=True)
class BatchConfiguration(Section):
    """When a range is planned, and how long its inserts may go on.

    One range is one block, and a block stays below what servers squash or split.

    :param max_partitions: ranges of so many partitions are loaded as one block at most.
    """

    max_messages: Annotated[int, Field(strict=True, ge=1, le=MESSAGES_MAX)] = 250_000
    max_bytes: Annotated[int, a_size(1024, 256 * 1024**2)] = 64 * 1024**2
    max_delay_seconds: Annotated[float, a_duration(0.001, 3600.0)] = 1.0
    lease_seconds: Annotated[float, a_duration(1.0, 86_400.0)] = 600.0
    max_partitions: Annotated[int, Field(strict=True, ge=1, le=MEMBERS_MAX)] = 1_000

    @property
    def range_bytes_max(self) -> int:
        """A range above this is inserted by nobody, and shortened (R12)."""
        return self.max_bytes * 3 // 2


@dataclass(frozen=True, slots=True)
class RegistryConfiguration(Section):
    """A schema registry with Confluent's HTTP API.

    :param url: of several replicas of it all URLs, commas between them; the next one is asked where
        one does not answer.
    :param user: for basic authentication; "" for none.
    :param token: shown as a bearer token instead.
    :param patience_seconds: a schema that it does not know is waited for so long; then the messages
        that name it become dead letters.
    """

    url: RegistryUrl
    user: Text = ""
    password: SecretText = field(default_factory=Secret)
    token: SecretText = field(default_factory=Secret)
    tls: CertificatesConfiguration = field(default_factory=CertificatesConfiguration)
    patience_seconds: Annotated[float, a_duration(0.0, 86_400.0)] = 60.0

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if "token" in written and ("user" in written or "password" in written):
            yield "token", "stands beside user or password; keep one way"
        if "password" in written and not self.user:
            yield "password", "is of no use without user"
        if "tls" in written and "https:" not in self.url:
            yield "tls", "is of no use: no URL in url begins with https"


@dataclass(frozen=True, slots=True)
class HttpConfiguration(Section):
    """Where a driver answers: metrics, health, status, the page, and freezing.

    :param listen: host and port; port 0 takes a free one.
    :param hosts: names by which it may be asked; none: any, but on a loopback address its own only.
    :param partition_metrics: False: no metric has a value for each partition.
    :param tokens_file: who may decide, a line with name and token each; "": nobody.
    :param tls: with a certificate it answers by https alone; with `ca`, whoever asks has to show a
        certificate that one of these has signed.
    """

    listen: Annotated[tuple[str, int], PlainValidator(a_listen_address)] = ("127.0.0.1", 9464)
    hosts: Listed[Text] = ()
    partition_metrics: Annotated[bool, Field(strict=True)] = True
    tokens_file: FileName = ""
    tls: CertificatesConfiguration = field(default_factory=CertificatesConfiguration)

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if self.tls.ca and not self.tls.certificate:
            yield "tls", "has to name a certificate for the server itself"

    @property
    def host(self) -> str:
        return self.listen[0]

    @property
    def port(self) -> int:
        return self.listen[1]

    def url(self, port: int) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http{'s' if self.tls.certificate else ''}://{host}:{port}"


#: How often a look may begin.
EVERY_SECONDS_MIN, EVERY_SECONDS_MAX = 1.0, 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class VerifyConfiguration(Section):
    """The verifier beside a driver: each so often it judges what was recorded meanwhile."""

    every_seconds: Annotated[float, a_duration(EVERY_SECONDS_MIN, EVERY_SECONDS_MAX)]
    source: Literal["ledger", "offsets"] = "ledger"


@dataclass(frozen=True, slots=True)
class AuditConfiguration(Section):
    """The audit beside a driver: each so often it compares what was settled meanwhile.

    :param share: of the time it works, and waits for servers; the rest it rests.
    """

    every_seconds: Annotated[float, a_duration(EVERY_SECONDS_MIN, EVERY_SECONDS_MAX)]
    share: Annotated[float, Field(strict=True, ge=0.01, le=1.0)] = 0.1


#: Members of a fleet; each share of a window gets smaller with them (R24).
FLEET_MEMBERS_MAX = 64


@dataclass(frozen=True, slots=True)
class FleetConfiguration(Section):
    """A driver is a member of a fleet: it reports, and knows who else does.

    :param member: its name, which it keeps when it is started again; "": data center and host.
    :param data_center: where it runs; see `prefer` of [[connector]].
    :param members_max: of so many members a window is shared at most; the same for all.
    :param silent_after_seconds: who does not report for so long counts as silent; a report comes
        four times as often.
    """

    member: Text = ""
    data_center: Text = ""
    members_max: Annotated[int, Field(strict=True, ge=1, le=FLEET_MEMBERS_MAX)] = 8
    silent_after_seconds: Annotated[float, a_duration(4.0, 300.0)] = 8.0

    def name(self, host: str) -> str:
        """What the member is called.

        :param host: that it runs on.
        """
        return self.member or ".".join(each for each in (self.data_center, host) if each)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The whole file.

    :param path: the file, or the folder, as the user named it.
    :param written: what it was read from.
    :param http: None: a driver does not listen.
    :param registry: None: no format needs one.
    :param deduplication: None: no claims are kept.
    :param dead_letter_limit: from when on dead letters stop their partition.
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
    #: Of what persons decide for drivers that run.
    decisions_topic: str
    http: HttpConfiguration | None
    registry: RegistryConfiguration | None = None
    dead_letter_limit: DeadLetterLimit = field(default_factory=DeadLetterLimit)
    #: Columns and fields of which no reason shows a value.
    masked: tuple[str, ...] = ()
    #: Of messages whose table takes nothing for now.
    parking_topic: str = ""
    #: Of copies of duplicates.
    duplicates_topic: str = ""
    deduplication: DeduplicationConfiguration | None = None
    #: None: not beside a driver; likewise the audit.
    verify: VerifyConfiguration | None = None
    audit: AuditConfiguration | None = None
    #: None: the driver is no member of a fleet.
    fleet: FleetConfiguration | None = None
    written: Written | None = field(default=None, repr=False, compare=False)

    @property
    def fleet_topic(self) -> str:
        """Where the members of a fleet report, whether this driver is one or not."""
        return f"sluice.{self.pipeline}.fleet"

    @property
    def own_topics(self) -> tuple[str, ...]:
        """The topics that the pipeline writes."""
        parking = (self.parking_topic,) if self.parkable else ()
        duplicates = (self.duplicates_topic,) if self.keeps_duplicates else ()
        own = (self.ledger_topic, self.dead_letters_topic, self.decisions_topic)
        return (*own, *parking, *duplicates)

    @property
    def keeps_duplicates(self) -> bool:
        """Whether any table entry has a copy of each duplicate written to their topic."""
        rules = (table.deduplicate for table in self.tables)
        return any(rule is not None and rule.duplicates == "topic" for rule in rules)

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

    def preferred_by(self, connector: str) -> str:
        """The data center whose replicas, and whose members of a fleet, a connector prefers; "": it
        prefers none."""
        return self.connector(connector).prefer or self.clickhouse.prefer

    def table(self, name: str) -> TableConfiguration:
        """:raises ConfigurationError: there is no table entry of this name."""
        for table in self.tables:
            if table.name == name:
                return table
        names = ", ".join(table.name for table in self.tables)
        raise ConfigurationError(
            f'{self.path}: no [[table]] is named "{name}"', f"Name one of: {names}."
        )

    def scope_of(self, table: TableConfiguration) -> str:
        """Among whose keys an entry looks for a key of its own; "" if it does not deduplicate."""
        if table.deduplicate is None:
            return ""
        return table.deduplicate.scope or f"{self.pipeline}/{table.target}"

    def shards_of(self, *tables: TableConfiguration) -> tuple[str, ...]:
        """Names of the shards that rows of these entries go to, sorted: whatever the file's order,
        a shard has the same place among them."""
        every = [shard.name for shard in self.clickhouse.shards]
        return tuple(sorted({name for table in tables for name in table.shards or every}))

    def targets_on(
        self, shard: str, tables: Iterable[TableConfiguration]
    ) -> tuple[tuple[str, str], ...]:
        """What those of these entries load that have rows on a shard, (database, table), each
        once."""
        own = (table for table in tables if shard in self.shards_of(table))
        return tuple(dict.fromkeys((table.database, table.table) for table in own))

    def tables_of(self, topic: str) -> tuple[TableConfiguration, ...]:
        """The entries that a message of this topic goes to."""
        return tuple(table for table in self.tables if table.takes(topic))

    def reads(self, connector: str, topic: str) -> bool:
        """Whether a connector loads this topic, once it exists: it names it, or its expression
        takes it, a table entry takes it too, and it is nobody's bookkeeping."""
        source = self.connector(connector)
        if topic in source.topics:
            return True
        own = (*self.own_topics, self.parking_topic, self.duplicates_topic, self.fleet_topic)
        if topic in own or is_reserved(topic):
            return False
        return matches(source.topic_pattern, topic) and bool(self.tables_of(topic))

    def topics_of(self, connector: str, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics that a connector loads: those that it names, then those of the existing
        ones that its expression takes, sorted."""
        named = self.connector(connector).topics
        further = {topic for topic in existing if self.reads(connector, topic)}
        return (*named, *sorted(further.difference(named)))
