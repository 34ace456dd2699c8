"""Reads the configuration. All findings are reported at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from sluice.config.checks import conflicts_across_sections
from sluice.config.clickhouse import ClickHouseConfiguration
from sluice.config.connector import ConnectorConfiguration
from sluice.config.deduplication import LOCAL, LOCAL_FOLDER, DeduplicationConfiguration
from sluice.config.findings import Findings, join_path
from sluice.config.folder import Written, read_written
from sluice.config.interpolation import BROKEN, entry_path, interpolate_tree
from sluice.config.model import (
    MESSAGES_MAX,
    AuditConfiguration,
    BatchConfiguration,
    Configuration,
    FleetConfiguration,
    HttpConfiguration,
    RegistryConfiguration,
    SparkConfiguration,
    VerifyConfiguration,
)
from sluice.config.section import Entries, Listed, Section
from sluice.config.table import TableConfiguration
from sluice.config.values import Name, Text, Topic, shown
from sluice.core.dead_letters import DeadLetterLimit


@dataclass(frozen=True, slots=True)
class _Pipeline(Section):
    name: Name


@dataclass(frozen=True, slots=True)
class _OwnTopic(Section):
    topic: Topic = ""


@dataclass(frozen=True, slots=True)
class _DeadLetters(Section):
    """More than half of the messages bad is a wrong deployment; a few of a quiet topic are not."""

    topic: Topic = ""
    max_ratio: Annotated[float, Field(strict=True, gt=0, le=1)] = 0.5
    min_dead_letters: Annotated[int, Field(strict=True, ge=1, le=MESSAGES_MAX)] = 100
    mask: Listed[Text] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _File(Section):
    """The whole file, as it stands there."""

    pipeline: _Pipeline
    spark: SparkConfiguration = field(default_factory=SparkConfiguration)
    connector: Entries[ConnectorConfiguration]
    batch: BatchConfiguration = field(default_factory=BatchConfiguration)
    clickhouse: ClickHouseConfiguration
    table: Entries[TableConfiguration]
    dead_letters: _DeadLetters = field(default_factory=_DeadLetters)
    parking: _OwnTopic = field(default_factory=_OwnTopic)
    ledger: _OwnTopic = field(default_factory=_OwnTopic)
    decisions: _OwnTopic = field(default_factory=_OwnTopic)
    http: HttpConfiguration | None = None
    registry: RegistryConfiguration | None = None
    deduplication: DeduplicationConfiguration | None = None
    verify: VerifyConfiguration | None = None
    audit: AuditConfiguration | None = None
    fleet: FleetConfiguration | None = None


@dataclass(frozen=True, slots=True)
class _Http(Section):
    http: HttpConfiguration | None = None


_Sections = TypeVar("_Sections", _File, _Http)
_FILE, _HTTP = TypeAdapter(_File), TypeAdapter(_Http)


def load(path: Path, environment: Mapping[str, str]) -> Configuration:
    """Read and check the file, or the folder of files; no server is asked.

    :param environment: where `${NAME}` comes from, normally `os.environ`.
    :raises ConfigurationError: it cannot be used; its message has one line for each
        finding, `FILE: KEY: what`, and never holds a secret.
    """
    return checked(read_written(path), environment)


def checked(written: Written, environment: Mapping[str, str]) -> Configuration:
    """What is written, as the rest of Sluice sees it; as `load`."""
    findings = Findings(written.file_of)
    tree = interpolate_tree(written.tree, environment, findings)
    configuration = _completed(_validated(_FILE, tree, written.folder, findings), written)
    for where, what in conflicts_across_sections(configuration):
        findings.add(where, what)
    findings.raise_if_any()
    return configuration


def load_http(path: Path, environment: Mapping[str, str]) -> HttpConfiguration | None:
    """`[http]` alone, for who asks a driver that runs: it may have read another file than the one
    of now, whose other sections may be wrong.

    :raises ConfigurationError: the file cannot be read, or this section cannot be used.
    """
    written = read_written(path)
    alone = {key: written.tree[key] for key in written.tree if key == "http"}
    findings = Findings(written.file_of)
    tree = interpolate_tree(alone, environment, findings)
    return _validated(_HTTP, tree, written.folder, findings).http


def _validated(
    sections: TypeAdapter[_Sections], tree: Any, folder: Path, findings: Findings
) -> _Sections:
    """Each by itself, with its names of files beside the file."""
    try:
        file = sections.validate_python(tree, context={"folder": folder})
    except ValidationError as error:
        for each in error.errors():
            if each["input"] is not BROKEN:
                findings.add(_where(each["loc"], tree), _what(each))
        findings.raise_if_any()
    findings.raise_if_any()
    return file


def _where(loc: tuple[int | str, ...], tree: Any) -> str:
    """The path of a key as people read it."""
    where, value = "", tree
    for part in loc:
        if isinstance(part, int):
            value = value[part]
            where = entry_path(where, part, value)
        elif part != "[key]":  # pydantic's word for what is wrong with the key itself
            value = value.get(part) if isinstance(value, dict) else None
            where = join_path(where, part)
    return where


def _what(error: ErrorDetails) -> str:
    """What is wrong, and what to write instead."""
    value, bounds = shown(error["input"]), error.get("ctx", {})
    match error["type"]:
        case "value_error":
            return str(bounds["error"])
        case "missing" if len(error["loc"]) == 1:
            key = str(error["loc"][0])
            is_repeated = key in ("connector", "table")
            return f"the section {f'[[{key}]]' if is_repeated else f'[{key}]'} is missing"
        case "missing":
            return "is missing"
        case "literal_error":
            choices = bounds["expected"].replace("'", '"')
            return f"{value} is not possible; use {choices}"
        case "int_type":
            return f"must be a whole number, not {value}"
        case "float_type":
            return f"must be a number, not {value}"
        case "bool_type":
            return f"must be true or false, not {value}"
        case "dict_type" | "mapping_type":
            return f"must be a table, not {value}"
        case "greater_than":
            return f"{value} is out of range; use more than {bounds['gt']:,}"
        case "greater_than_equal":
            return f"{value} is out of range; use {bounds['ge']:,} or more"
        case "less_than_equal":
            return f"{value} is out of range; use {bounds['le']:,} or less"
        case _:
            return error["msg"]


def _completed(file: _File, written: Written) -> Configuration:
    """With what follows from other sections where the file is silent."""
    pipeline, dead_letters = file.pipeline.name, file.dead_letters
    own = f"sluice.{pipeline}"
    return Configuration(
        path=written.path,
        written=written,
        pipeline=pipeline,
        spark=file.spark,
        connectors=file.connector,
        batch=file.batch,
        clickhouse=file.clickhouse,
        tables=tuple(_completed_table(each, file.clickhouse.database) for each in file.table),
        dead_letters_topic=dead_letters.topic or f"{own}.dead-letters",
        dead_letter_limit=DeadLetterLimit(dead_letters.max_ratio, dead_letters.min_dead_letters),
        masked=dead_letters.mask,
        ledger_topic=file.ledger.topic or f"{own}.ledger",
        decisions_topic=file.decisions.topic or f"{own}.decisions",
        parking_topic=file.parking.topic or f"{own}.parking",
        duplicates_topic=(file.deduplication and file.deduplication.topic) or f"{own}.duplicates",
        http=file.http,
        registry=file.registry,
        deduplication=_completed_deduplication(file, written.folder),
        verify=file.verify,
        audit=file.audit,
        fleet=file.fleet,
    )


def _completed_deduplication(file: _File, folder: Path) -> DeduplicationConfiguration | None:
    """Workers on this machine share a directory of it; others need a store that is named."""
    section = file.deduplication
    if section is None and all(table.deduplicate is None for table in file.table):
        return None
    section = section or DeduplicationConfiguration()
    if not section.store:
        if not file.spark.is_local:
            return None
        section = replace(section, store=LOCAL)
    if section.is_local and not section.path:
        section = replace(section, path=str(folder / LOCAL_FOLDER))
    return section


def _completed_table(entry: TableConfiguration, database: str) -> TableConfiguration:
    target = entry.target or entry.name
    whole = replace(entry, target=target if "." in target else f"{database}.{target}")
    if whole.route is None or whole.route.value:
        return whole
    return replace(whole, route=replace(whole.route, value=whole.table))
