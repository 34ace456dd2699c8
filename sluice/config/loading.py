"""Reads the configuration file. All findings are reported at once."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.config.checks import check_across_sections
from sluice.config.findings import Findings, RefusedError
from sluice.config.interpolation import BROKEN, ResolvedText, interpolate_tree
from sluice.config.login import read_certificates, read_password_file
from sluice.config.model import (
    DURABILITIES,
    READERS,
    UNROUTED,
    BatchConfiguration,
    ClickHouseConfiguration,
    Configuration,
    ConnectorConfiguration,
    Durability,
    MetricsConfiguration,
    RegistryConfiguration,
    SparkConfiguration,
)
from sluice.config.quorum import read_quorum
from sluice.config.rules import refuse_kafka_property, refuse_spark_property, wire_refusals
from sluice.config.secret import Secret, is_secret_name
from sluice.config.section import Section
from sluice.config.tables import read_table, read_topics
from sluice.config.topology import (
    read_cluster,
    read_data_centers,
    read_limits,
    read_preference,
    read_shard_names,
    read_shards,
)
from sluice.config.values import (
    a_broker_list,
    a_choice,
    a_duration,
    a_listen_address,
    a_name,
    a_pattern,
    a_property,
    a_replica_url,
    a_secret,
    a_size,
    a_start,
    a_text,
    a_topic,
    an_identifier,
    an_integer,
    flatten,
    shown,
)
from sluice.core.bundles import MEMBERS_MAX
from sluice.core.dead_letters import LetterLimit
from sluice.core.errors import ConfigurationError
from sluice.core.flights import INSERTS_MAX

#: One range is one block, and a block stays below what servers squash or split.
MESSAGES_MAX = 1_000_000
#: How many partitions' ranges are one block at most, where the file does not say.
MAX_PARTITIONS_DEFAULT = 1_000
BYTES_MIN, BYTES_MAX = 1024, 256 * 1024**2
DELAY_MIN_SECONDS, DELAY_MAX_SECONDS = 0.001, 3600.0
INSERT_TIMEOUT_MIN_SECONDS, INSERT_TIMEOUT_MAX_SECONDS = 1.0, 3600.0
INSERT_TIMEOUT_SECONDS = 30.0
#: So much earlier than an insert a quorum is given up, so that the server can say so.
QUORUM_EARLIER_SECONDS = 5.0
LEASE_MIN_SECONDS, LEASE_MAX_SECONDS = 1.0, 86_400.0
PATIENCE_MAX_SECONDS = 86_400.0
#: More than half of the messages bad is a wrong deployment; a few of a quiet topic are not.
LETTERS_RATIO_MAX, LETTERS_MIN = 0.5, 100


def load(path: Path, environment: Mapping[str, str]) -> Configuration:
    """Read and check the file; no server is asked.

    :param environment: where `${NAME}` comes from, normally `os.environ`.
    :raises ConfigurationError: the file cannot be used; its message has one line for each
        finding, `FILE: KEY: what`, and never holds a secret.
    """
    findings = Findings(str(path))
    root = Section(findings, "", interpolate_tree(_read(path), environment, findings))
    configuration = _read_root(root, path)
    root.finish()
    findings.raise_if_any()
    return configuration


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ConfigurationError(
            f"{path}: there is no such file", "Name the file, or write one with `sluice init`."
        ) from None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: is not UTF-8 at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"{path}: is not TOML: {error}", "Correct the line that the message names."
        ) from None


def _read_root(root: Section, path: Path) -> Configuration:
    pipeline_section = root.table("pipeline", is_required=True)
    pipeline = pipeline_section.required("name", a_name, "")
    pipeline_section.finish()
    folder = path.absolute().parent
    clickhouse = _read_clickhouse(root.table("clickhouse", is_required=True), folder)
    connector_sections = root.entries("connector")
    table_sections = root.entries("table")
    letters_topic, letter_limit = _read_dead_letters(root.table("dead_letters"), pipeline)
    configuration = Configuration(
        path=path,
        pipeline=pipeline,
        spark=_read_spark(root.table("spark")),
        connectors=tuple(
            _read_connector(section, clickhouse.data_centers) for section in connector_sections
        ),
        batch=_read_batch(root.table("batch")),
        clickhouse=clickhouse,
        tables=tuple(read_table(section, clickhouse.database, path) for section in table_sections),
        dead_letters_topic=letters_topic,
        letter_limit=letter_limit,
        ledger_topic=_read_topic(root.table("ledger"), pipeline, "ledger"),
        parking_topic=_read_topic(root.table("parking"), pipeline, "parking"),
        metrics=_read_metrics(root.table("metrics")) if root.has("metrics") else None,
        registry=_read_registry(root.table("registry")) if root.has("registry") else None,
    )
    check_across_sections(configuration, root, connector_sections, table_sections)
    return configuration


def _read_spark(section: Section) -> SparkConfiguration:
    spark = SparkConfiguration(
        master=section.optional("master", a_text, "local[*]"),
        conf=_read_properties(section, "conf", refuse_spark_property),
    )
    section.finish()
    return spark


def _read_connector(
    section: Section, data_centers: Mapping[str, tuple[str, ...]]
) -> ConnectorConfiguration:
    connector = ConnectorConfiguration(
        name=section.required("name", a_name, ""),
        brokers=section.required("brokers", a_broker_list, ""),
        topics=read_topics(section),
        start=section.optional("start", a_start, "earliest"),
        kafka=_read_properties(section, "kafka", lambda name, _: refuse_kafka_property(name)),
        reader=section.optional("reader", a_choice(*READERS), "librdkafka"),
        unrouted=section.optional("unrouted", a_choice(*UNROUTED), "dead-letter"),
        topic_pattern=section.optional("topic_pattern", a_pattern, ""),
        prefer=read_preference(section, data_centers),
    )
    if connector.reader == "wire":
        for name, value in wire_refusals(connector.properties()):
            section.refuse_inside("kafka", name, value)
    section.finish()
    return connector


def _read_properties(
    section: Section, key: str, refuse: Callable[[str, str], str | None]
) -> dict[str, str | Secret]:
    """Free properties. What is named like a secret or comes from a variable is masked."""
    properties: dict[str, str | Secret] = {}
    for name, value in flatten(section.raw(key)):
        if value is BROKEN:
            continue
        try:
            text = a_property(value)
        except RefusedError as refusal:
            section.refuse_inside(key, name, str(refusal))
            continue
        reason = "is named twice" if name in properties else refuse(name, text)
        if reason is not None:
            section.refuse_inside(key, name, reason)
        is_hidden = isinstance(value, ResolvedText) and value.is_from_environment
        properties[name] = Secret(text) if is_hidden or is_secret_name(name) else text
    return properties


def _read_batch(section: Section) -> BatchConfiguration:
    batch = BatchConfiguration(
        max_messages=section.optional("max_messages", an_integer(1, MESSAGES_MAX), 250_000),
        max_bytes=section.optional("max_bytes", a_size(BYTES_MIN, BYTES_MAX), 64 * 1024**2),
        max_delay_seconds=section.optional(
            "max_delay", a_duration(DELAY_MIN_SECONDS, DELAY_MAX_SECONDS), 1.0
        ),
        lease_seconds=section.optional(
            "lease", a_duration(LEASE_MIN_SECONDS, LEASE_MAX_SECONDS), 600.0
        ),
        max_partitions=section.optional(
            "max_partitions", an_integer(1, MEMBERS_MAX), MAX_PARTITIONS_DEFAULT
        ),
    )
    section.finish()
    return batch


def _read_clickhouse(section: Section, folder: Path) -> ClickHouseConfiguration:
    durability: Durability = section.optional("durability", a_choice(*DURABILITIES), "quorum")
    cluster = read_cluster(section)
    shards = read_shards(section) if cluster is None else read_shard_names(section)
    if durability == "quorum" and cluster is None:
        _refuse_lone_replicas(section)
    data_centers = read_data_centers(section, shards)
    clickhouse = ClickHouseConfiguration(
        database=section.optional("database", an_identifier, "default"),
        shards=shards,
        user=section.optional("user", a_text, "default"),
        password=section.optional("password", a_secret, Secret("")),
        durability=durability,
        password_file=read_password_file(section, folder),
        certificates=read_certificates(section, shards, folder),
        inserts_max=section.optional("max_inserts", an_integer(1, 1000), INSERTS_MAX),
        insert_timeout_seconds=section.optional(
            "insert_timeout",
            a_duration(INSERT_TIMEOUT_MIN_SECONDS, INSERT_TIMEOUT_MAX_SECONDS),
            INSERT_TIMEOUT_SECONDS,
        ),
        quorum=read_quorum(section, durability, shards),
        cluster=cluster,
        data_centers=data_centers,
        prefer=read_preference(section, data_centers),
        limits=read_limits(section),
    )
    seconds = clickhouse.quorum.timeout_seconds + QUORUM_EARLIER_SECONDS
    if durability == "quorum" and clickhouse.insert_timeout_seconds < seconds:
        section.refuse(
            "insert_timeout",
            f"must be {seconds:g} s at least, {QUORUM_EARLIER_SECONDS:g} s more than "
            "`quorum_timeout`: a server that waits for a quorum has to say that it did not come",
        )
    section.finish()
    return clickhouse


def _refuse_lone_replicas(section: Section) -> None:
    for name, replicas in section.raw("shards").items():
        if isinstance(replicas, list) and len(replicas) == 1:
            section.refuse(
                "durability",
                f'"quorum" needs two replicas, and the shard {name} has one; add its other'
                ' replicas, or write durability = "single": then one machine\'s word is enough',
            )


def _read_registry(section: Section) -> RegistryConfiguration:
    registry = RegistryConfiguration(
        url=section.required("url", a_replica_url, ""),
        user=section.optional("user", a_text, ""),
        password=section.optional("password", a_secret, Secret("")),
        patience_seconds=section.optional("patience", a_duration(0.0, PATIENCE_MAX_SECONDS), 60.0),
    )
    section.finish()
    return registry


def _read_dead_letters(section: Section, pipeline: str) -> tuple[str, LetterLimit]:
    """Their topic, and from when on they stop their partition."""
    limit = LetterLimit(
        max_ratio=section.optional("max_ratio", _a_ratio, LETTERS_RATIO_MAX),
        min_letters=section.optional("min_letters", an_integer(1, MESSAGES_MAX), LETTERS_MIN),
    )
    return _read_topic(section, pipeline, "dead-letters"), limit


def _a_ratio(value: object) -> float:
    """A share, above 0 and up to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise RefusedError(f"{shown(value)} is not a share; use a number above 0, up to 1.0")
    return float(value)


def _read_topic(section: Section, pipeline: str, kind: str) -> str:
    topic = section.optional("topic", a_topic, f"sluice.{pipeline}.{kind}")
    section.finish()
    return topic


def _read_metrics(section: Section) -> MetricsConfiguration:
    host, port = section.required("listen", a_listen_address, ("", 0))
    section.finish()
    return MetricsConfiguration(host, port)
