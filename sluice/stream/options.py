"""The options of the sink, as Spark hands them over: texts, whatever their case."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.tls import Tls
from sluice.core.errors import ConfigurationError
from sluice.core.suggestions import suggest
from sluice.machine.secret_source import SecretSource

PASSWORD_VARIABLE = "CLICKHOUSE_PASSWORD"
#: The shard of the option `url`.
SHARD = "s1"
_SHARD = re.compile(r"([A-Za-z0-9_]+)=(https?://\S+)")

#: Spark's own, which it hands to every sink.
_OF_SPARK = frozenset({"checkpointlocation"})


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """What the user said. Travels to the tasks, the password with it.

    :param access: one server for each shard; the first one remembers what was committed.
    :param sharding: the column whose value modulo the number of shards is a row's shard; "": the
        rows of a task go to one shard.
    :param query: the name under which ClickHouse remembers what was committed; "" for a batch
        without.
    :param mode: "staged": any plan; "direct": one that makes the same rows in the same order again.
    :param version: of a batch, beside its query: which one of it this is; None for the only one.
    :param checkpoint: of such a batch: the id of what counts the versions.
    :param takeover: the id of the checkpoint that this query's new one goes on from.
    :param nulls: what becomes of a column that Spark calls nullable and ClickHouse does not:
        "refuse" it at the start, or "check" each value.
    :param batch_rows: of an insert.
    :param batch_bytes: an insert ends with the record batch that makes it so large.
    """

    access: ClickHouseAccess
    database: str
    table: str
    sharding: str
    query: str
    mode: Literal["staged", "direct"]
    version: int | None
    checkpoint: str
    takeover: str
    nulls: Literal["refuse", "check"]
    batch_rows: int
    batch_bytes: int
    compression: Literal["lz4", "zstd", "none"]
    timeout_seconds: float

    @property
    def shards(self) -> tuple[str, ...]:
        """Their names, in the order in which the user gave them."""
        return tuple(self.access.shards)


def read_options(given: Mapping[str, str]) -> SinkOptions:
    """Read Spark's options; `batch_rows`, `batchRows` and `BATCHROWS` are the same.

    :raises ConfigurationError: one is unknown, missing, or of no use.
    """
    said: dict[str, str] = {}
    for name, value in given.items():
        key = name.lower().replace("_", "")
        if key == "password":
            raise ConfigurationError(
                "option password: Spark shows options in its plans and logs",
                f"Set the environment variable {PASSWORD_VARIABLE} of Spark's driver, or the "
                "option password_file.",
            )
        if key in _OF_SPARK:
            continue
        if key not in _BY_KEY:
            raise ConfigurationError(f"option {name} is unknown", suggest(name, _READERS))
        said[_BY_KEY[key]] = value
    values = {name: read(name, said.get(name)) for name, read in _READERS.items()}
    return SinkOptions(
        access=_access(values),
        **{name: values[name] for name in _READERS if name not in _OF_ACCESS},
    )


def _access(values: Mapping[str, Any]) -> ClickHouseAccess:
    password = os.environ.get(PASSWORD_VARIABLE, "")
    source = None
    if file := values["password_file"]:
        source = SecretSource("option password_file", file)
        password = source.latest()
    return ClickHouseAccess(
        _shards(values["url"], values["shards"]),
        values["user"],
        password,
        "single",
        source,
        tls=Tls(values["ca"], values["certificate"], values["key"]),
    )


def _shards(url: str, shards: str) -> dict[str, tuple[str, ...]]:
    if bool(url) == bool(shards):
        raise ConfigurationError(
            "options url and shards are both there" if url else "option url is missing",
            'Write .option("url", "http://host:8123"), or .option("shards", '
            '"s1=http://host1:8123, s2=http://host2:8123"), before start or save.',
        )
    if url:
        return {SHARD: (url,)}
    found: dict[str, tuple[str, ...]] = {}
    for written in shards.split(","):
        shard = _SHARD.fullmatch(written.strip())
        if shard is None or shard[1] in found or (shard[2],) in found.values():
            raise ConfigurationError(
                f"option shards: {written.strip()!r} is no shard, or is there twice",
                "Write names with one server each: s1=http://host1:8123, s2=http://host2:8123",
            )
        found[shard[1]] = (shard[2],)
    return found


_Reader = Callable[[str, str | None], Any]


def _text(default: str | None) -> _Reader:
    def read(name: str, value: str | None) -> str:
        found = default if value is None else value
        if found is None or (default is None and not found):
            raise ConfigurationError(
                f"option {name} is missing", f'Write .option("{name}", …) before start or save.'
            )
        return found

    return read


def _choice(*values: str) -> _Reader:
    def read(name: str, value: str | None) -> str:
        found = values[0] if value is None else value.lower()
        if found not in values:
            raise ConfigurationError(
                f"option {name} is {value!r}", f"Use one of {', '.join(values)}."
            )
        return found

    return read


def _number(default: int | None, most: int, least: int = 1) -> _Reader:
    def read(name: str, value: str | None) -> int | None:
        if value is None:
            return default
        if not value.isdecimal() or not least <= int(value) <= most:
            raise ConfigurationError(
                f"option {name} is {value!r}", f"Use a whole number from {least} to {most}."
            )
        return int(value)

    return read


_READERS: dict[str, _Reader] = {
    "url": _text(""),
    "shards": _text(""),
    "database": _text("default"),
    "table": _text(None),
    "sharding": _text(""),
    "user": _text("default"),
    "password_file": _text(""),
    "ca": _text(""),
    "certificate": _text(""),
    "key": _text(""),
    "query": _text(""),
    "mode": _choice("staged", "direct"),
    "version": _number(None, 2**63 - 1, least=0),
    "checkpoint": _text(""),
    "takeover": _text(""),
    "nulls": _choice("refuse", "check"),
    "batch_rows": _number(1_000_000, 100_000_000),
    "batch_bytes": _number(128 << 20, 1 << 30),
    "compression": _choice("lz4", "zstd", "none"),
    "timeout_seconds": _number(300, 86_400),
}
_OF_ACCESS = frozenset({"url", "shards", "user", "password_file", "ca", "certificate", "key"})
_BY_KEY = {name.replace("_", ""): name for name in _READERS}
