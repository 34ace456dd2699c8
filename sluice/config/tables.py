"""Reads one [[table]] of the configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sluice.config.dynamic import read_dynamic, refuse_with_dynamic
from sluice.config.findings import RefusedError, suggest
from sluice.config.interpolation import BROKEN
from sluice.config.mapping import read_fields, read_mapping
from sluice.config.model import (
    BAD_ROWS,
    FRACTIONS,
    LINEAGES,
    ON_ERROR,
    ON_NULL,
    ROWS,
    UNKNOWN_FIELDS,
    TableConfiguration,
)
from sluice.config.section import Section
from sluice.config.sharding import read_sharding
from sluice.config.values import (
    a_choice,
    a_name,
    a_pattern,
    a_target,
    a_text,
    a_topic,
    shown,
)
from sluice.core.formats import FORMATS, OPTIONS, Format
from sluice.core.text import Route
from sluice.core.text_options import check_option

#: An option whose text stands in a file of its own: `schema_file = "order.proto"`.
_FILE_SUFFIX = "_file"
_ROUTES = ("header", "key_prefix", "envelope")


def read_table(section: Section, database: str, path: Path) -> TableConfiguration:
    """One entry.

    :param database: of targets that name none.
    :param path: of the configuration file; files are named relative to it.
    """
    name = section.required("name", a_name, "")
    target_key = "target" if section.has("target") else "name"
    no_target: tuple[str | None, str] = (None, "")
    target_database, table = section.optional(target_key, a_target, no_target)
    table_format = section.optional("format", _a_format, FORMATS["JSONEachRow"])
    configuration = TableConfiguration(
        name=name,
        database=target_database or database,
        table=table,
        topics=read_topics(section),
        format=table_format.name,
        lineage=section.optional("lineage", a_choice(*LINEAGES), True),
        unknown_fields=section.optional("unknown_fields", a_choice(*UNKNOWN_FIELDS), "ignore"),
        on_null=section.optional("on_null", a_choice(*ON_NULL), "dead-letter"),
        on_error=section.optional("on_error", a_choice(*ON_ERROR), "stop-partition"),
        sort=section.optional("sort", a_choice(True, False), False),
        options=_read_options(section, table_format, path.absolute().parent),
        rows=section.optional("rows", a_choice(*ROWS), "one"),
        bad_rows=section.optional("bad_rows", a_choice(*BAD_ROWS), "dead-letter"),
        route=_read_route(section, table) if section.has("route") else None,
        mapping=read_mapping(section),
        fields=read_fields(section),
        require=section.optional_list("require", a_text),
        check=section.optional_list("check", a_text),
        topic_pattern=section.optional("topic_pattern", a_pattern, ""),
        dynamic=read_dynamic(section),
        shards=section.optional_list("shards", a_name),
        sharding=read_sharding(section),
        fractions=section.optional("fractions", a_choice(*FRACTIONS), "dead-letter"),
    )
    refuse_with_dynamic(section, configuration)
    if configuration.rows == "one" and configuration.bad_rows == "drop-row":
        section.refuse("bad_rows", 'needs rows = "many": a message of one row has no other rows')
    section.finish()
    return configuration


def read_topics(section: Section) -> tuple[str, ...]:
    """`topics`, which may be left out where `topic_pattern` stands."""
    if section.has("topic_pattern"):
        return section.optional_list("topics", a_topic)
    return section.required_list("topics", a_topic)


def _read_options(section: Section, of: Format, folder: Path) -> tuple[tuple[str, str], ...]:
    """The format's options as text, sorted by name; files are read."""
    options: dict[str, str] = {}
    for key, value in section.raw("options").items():
        name = key.removesuffix(_FILE_SUFFIX)
        if value is BROKEN:
            continue
        if name.partition(":")[0] not in of.options:
            known = suggest(name, of.options) if of.options else "it has none"
            section.refuse_inside("options", key, f"is no option of {of.name}; {known}")
            continue
        try:
            options[name] = _read_file(value, folder) if key != name else _an_option(value)
            check_option(of.name, name, options[name])
        except (RefusedError, ValueError) as refusal:
            section.refuse_inside("options", key, str(refusal))
    for name in of.required:
        if name not in options and not section.raw("options"):
            section.refuse_inside("options", name, f"is missing: {OPTIONS[name]}")
    return tuple(sorted(options.items()))


def _an_option(value: object) -> str:
    if not isinstance(value, str):
        raise RefusedError(f"must be a string, not {shown(value)}")
    return str(value)


def _read_file(value: object, folder: Path) -> str:
    file = folder / a_text(value)
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise RefusedError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise RefusedError(f"{file} is not UTF-8 text") from None


def _read_route(section: Section, table: str) -> Route | None:
    """`{ header = "orders", name = "table" }`, `{ key_prefix = "orders:" }`, `{ envelope = "t" }`.

    An empty text stands for the table's name.
    """
    route: dict[str, Any] = section.raw("route")
    inner = section.table("route")
    kinds = [kind for kind in _ROUTES if kind in route]
    if len(kinds) != 1:
        section.refuse(
            "route", f"says one of {', '.join(_ROUTES)}, like {{ header = {shown(table)} }}"
        )
        inner.keys()
        return None
    (kind,) = kinds
    value = inner.optional(kind, _an_option, "")
    name = inner.optional("name", a_text, "") if kind == "header" else ""
    inner.finish()
    by = {"header": "header", "key_prefix": "key-prefix", "envelope": "envelope"}[kind]
    return Route(by, name, value or table)  # type: ignore[arg-type]


def _a_format(value: object) -> Format:
    text = a_text(value)
    if text not in FORMATS:
        raise RefusedError(f"{shown(value)} is not a format; {suggest(text, FORMATS)}")
    return FORMATS[text]
