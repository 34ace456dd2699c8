"""What of a configuration is applied, and versioned: what is loaded, and nothing of where and how.

All [[table]] entries, and of each [[connector]] what it loads, as they are written, before
variables are replaced; of a schema that stands in a file of its own the text. Brokers, servers,
passwords, and how a machine runs stay in the file of each driver. So no secret is in a version, and
every version can be taken up while a driver runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, NamedTuple

from sluice.config.folder import Written
from sluice.config.loading import checked
from sluice.config.model import Configuration
from sluice.config.table import FILE_SUFFIX, TableConfiguration
from sluice.core.errors import ConfigurationError

#: Of a [[connector]].
LOADED_KEYS = ("topics", "topic_pattern", "start", "unrouted", "commit")
_SHOWN_MAX = 200


def document_of(configuration: Configuration) -> str:
    """What is applied of a configuration: one text, whatever the order of entries and files."""
    tree = _written(configuration).tree
    connectors = {
        each["name"]: {key: each[key] for key in LOADED_KEYS if key in each}
        for each in tree["connector"]
    }
    for each in connectors.values():
        if "topics" in each:
            each["topics"] = sorted(each["topics"])
    pairs = zip(tree["table"], configuration.tables, strict=True)
    tables = [_with_texts(each, table) for each, table in pairs]
    tables.sort(key=lambda each: str(each["name"]))
    # The only values of TOML that JSON does not have are moments.
    return json.dumps(
        {"connector": connectors, "table": tables},
        sort_keys=True,
        ensure_ascii=False,
        default=lambda moment: moment.isoformat(),
    )


def _with_texts(written: dict[str, Any], table: TableConfiguration) -> dict[str, Any]:
    """An entry with the texts of its files in their place: who edits one has to apply it, and a
    driver on another machine needs none."""
    made = _texts_of(written, table.options)
    if table.key is not None:
        made["key"] = _texts_of(written["key"], table.key.options)
    return made


def _texts_of(written: dict[str, Any], read: Iterable[tuple[str, str]]) -> dict[str, Any]:
    if "options" not in written:
        return dict(written)
    options = dict(written["options"])
    for key in [key for key in options if key.endswith(FILE_SUFFIX)]:
        del options[key]
        name = key.removesuffix(FILE_SUFFIX)
        options[name] = dict(read)[name].replace("${", "$${")
    return {**written, "options": options}


def under(
    configuration: Configuration, document: str, name: str, environment: Mapping[str, str]
) -> Configuration:
    """A configuration with what is loaded replaced by what was applied.

    :param name: of the version, for errors.
    :raises ConfigurationError: they do not fit, as a table in a shard that the file does not have.
    """
    written, applied = _written(configuration), json.loads(document)
    connectors = []
    for each in written.tree["connector"]:
        loaded = applied["connector"].get(each["name"])
        own = {key: value for key, value in each.items() if key not in LOADED_KEYS}
        connectors.append(each if loaded is None else own | loaded)
    tree = {**written.tree, "connector": connectors, "table": applied["table"]}
    places = {where: file for where, file in written.files.items() if where[:5] != "table"}
    places |= dict.fromkeys(("table", "connector"), f"{written.path} under {name}")
    try:
        return checked(Written(written.path, written.folder, tree, places), environment)
    except ConfigurationError as error:
        # What an older version of Sluice took may be refused by now.
        raise ConfigurationError(
            error.message,
            f"Correct the file. If it is right and {name} is not, `sluice apply {written.path}` "
            "puts the file in its place.",
        ) from None


def tables_by_written_name(configuration: Configuration) -> dict[str, TableConfiguration]:
    """The entries, each by its name as documents have it: with its variables."""
    written = _written(configuration).tree["table"]
    return {each["name"]: table for each, table in zip(written, configuration.tables, strict=True)}


def _written(configuration: Configuration) -> Written:
    assert configuration.written is not None, "a configuration that was not read"
    return configuration.written


class Difference(NamedTuple):
    """One difference between two documents.

    :param kind: "add", "change" or "remove".
    :param what: "table", "topic" or "connector".
    :param keys: what has changed, in words.
    """

    kind: str
    what: str
    name: str
    connector: str = ""
    keys: tuple[str, ...] = ()


def differences(before: str, after: str) -> list[Difference]:
    """What is loaded otherwise."""
    old, new = json.loads(before), json.loads(after)
    return [*_connectors(old["connector"], new["connector"]), *_tables(old["table"], new["table"])]


def _connectors(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new:
            yield Difference("add" if name in new else "remove", "connector", name)
            continue
        before, after = set(old[name].get("topics", ())), set(new[name].get("topics", ()))
        for topic in sorted(after - before):
            yield Difference("add", "topic", topic, name)
        for topic in sorted(before - after):
            yield Difference("remove", "topic", topic, name)
        keys = tuple(_keys(old[name], new[name], without="topics"))
        if keys:
            yield Difference("change", "connector", name, keys=keys)


def _tables(old: list[Mapping[str, Any]], new: list[Mapping[str, Any]]) -> Iterator[Difference]:
    then, now = ({each["name"]: each for each in tables} for tables in (old, new))
    for name in sorted(then.keys() | now.keys()):
        if name not in then or name not in now:
            yield Difference("add" if name in now else "remove", "table", name)
        elif keys := tuple(_keys(then[name], now[name])):
            yield Difference("change", "table", name, keys=keys)


def _keys(old: Mapping[str, Any], new: Mapping[str, Any], without: str = "") -> Iterator[str]:
    for key in sorted((old.keys() | new.keys()) - {without}):
        before, after = old.get(key), new.get(key)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from (f"{key}.{inner}" for inner in _keys(before, after))
        else:
            yield f"{key}: {_change(before, after)}"


def _change(before: Any, after: Any) -> str:
    where = ""
    if isinstance(before, str) and isinstance(after, str):
        lines = zip_longest(before.splitlines(), after.splitlines())
        others = [(number, pair) for number, pair in enumerate(lines, 1) if pair[0] != pair[1]]
        if 0 < len(others) < max(before.count("\n"), after.count("\n")):
            number, (before, after) = others[0]
            where = f"from line {number} on "
    return f"{where}{_shown(before)} becomes {_shown(after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…"
