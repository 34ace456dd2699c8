"""What one value of the configuration file may be.

Each function takes a value as TOML gives it, variables resolved, and returns it typed, or
raises `RefusedError`. A message quotes what is written in the file, never what a variable
held.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, time
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, PlainValidator, ValidationInfo

from sluice.config.findings import RefusedError
from sluice.config.interpolation import BROKEN, ResolvedText
from sluice.config.quantities import format_duration, format_size, parse_duration, parse_size
from sluice.config.secret import Secret
from sluice.core.tokens import NAME
from sluice.machine.secret_source import SecretSource

Quantity = TypeVar("Quantity", int, float)

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,128}", re.ASCII)
_BROKER = re.compile(
    r"(?:[A-Za-z_]+://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII
)


def shown(value: object) -> str:
    """A value for a message: as written in the file, credentials before an @ hidden."""
    if not isinstance(value, str):
        return _kind(value)
    written = value.written if isinstance(value, ResolvedText) else value
    head, at, tail = written.rpartition("@")
    text = f"***@{tail}" if at and head else written
    return f'"{text if len(text) <= 80 else text[:77] + "..."}"'


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a table"
    return "a date or time" if isinstance(value, date | time) else "a string"


def a_text(value: object) -> str:
    """A string, not empty."""
    if not isinstance(value, str):
        raise RefusedError(f"must be a string, not {_kind(value)}")
    if not value.strip():
        raise RefusedError("must not be empty")
    return str(value)


def a_string(value: object) -> str:
    """A string, which may be empty."""
    if not isinstance(value, str):
        raise RefusedError(f"must be a string, not {shown(value)}")
    return str(value)


def a_table(value: object) -> dict[str, Any]:
    """A table whose keys are free."""
    if not isinstance(value, dict):
        raise RefusedError(f"must be a table, not {shown(value)}")
    return value


def a_secret(value: object, info: ValidationInfo) -> Secret:
    """A string that is never printed, which may be empty, or where it is read from."""
    if isinstance(value, dict):
        return Secret(a_source(value, str(info.field_name), info))
    if not isinstance(value, str):
        raise RefusedError(f"must be a string, or {_SOURCES}")
    return Secret(str(value))


_SOURCES = '{ file = "NAME" } or { command = ["PROGRAM", "ARGUMENT"] }'


def a_source(value: dict[str, Any], key: str, info: ValidationInfo) -> SecretSource:
    """A file or a command that a secret is read from.

    :param key: of the secret, for messages.
    """
    match value:
        case {"file": str(name), **rest} if name and not rest:
            return SecretSource(key, file=beside_the_file(name, info))
        case {"command": [str(program), *arguments], **rest} if program and not rest:
            if not all(isinstance(each, str) or each is BROKEN for each in arguments):
                raise RefusedError("must have strings only in its command")
            if getattr(program, "is_from_environment", False):
                raise RefusedError("must name its program without a variable: errors show it")
            found = beside_the_file(program, info) if "/" in program else str(program)
            return SecretSource(key, command=(found, *map(str, arguments)))
    raise RefusedError(f"must be {_SOURCES}")


def a_name(value: object) -> str:
    """A name that can be part of tokens, groups and topics."""
    text = a_text(value)
    if not NAME.fullmatch(text):
        raise RefusedError(
            f"{shown(value)} is not a name; use 1 to 48 characters of A-Z a-z 0-9 _ . -"
        )
    return text


def a_topic(value: object) -> str:
    """A topic name that Kafka takes."""
    text = a_text(value)
    if not _TOPIC.fullmatch(text) or text in (".", ".."):
        raise RefusedError(
            f"{shown(value)} is not a topic name; Kafka takes 1 to 249 characters of"
            " A-Z a-z 0-9 . _ -"
        )
    return text


def a_pattern(value: object) -> str:
    """A regular expression over whole names, of topics or of fields."""
    text = a_text(value)
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise RefusedError(f"{shown(value)} is not a regular expression: {error}") from None
    return text


def a_database(value: object) -> str:
    """The name of a database."""
    text = a_text(value)
    if not _IDENTIFIER.fullmatch(text):
        raise RefusedError(f"{shown(value)} is not a database name; use A-Z a-z 0-9 _ -")
    return text


def a_target(value: object) -> tuple[str | None, str]:
    """`table` or `database.table`: the database if named, and the table."""
    parts = a_text(value).split(".")
    if len(parts) > 2 or not all(_IDENTIFIER.fullmatch(part) for part in parts):
        raise RefusedError(
            f"{shown(value)} is not a table; write table or database.table"
            " with characters of A-Z a-z 0-9 _ -"
        )
    return (parts[0] if len(parts) == 2 else None), parts[-1]


def a_size(minimum_bytes: int, maximum_bytes: int) -> BeforeValidator:
    """Bytes, as a number or with a unit."""

    def parse(value: object) -> int:
        if isinstance(value, str):
            return parse_size(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise RefusedError('is not a size; write it like 4096 or "64MiB"')

    return _between(minimum_bytes, maximum_bytes, parse, format_size)


def a_duration(minimum_seconds: float, maximum_seconds: float) -> BeforeValidator:
    """Seconds, from a number with a unit."""

    def parse(value: object) -> float:
        if isinstance(value, str):
            return parse_duration(value)
        raise RefusedError('is not a duration; write its unit, like "1s"')

    return _between(minimum_seconds, maximum_seconds, parse, format_duration)


def _between(
    minimum: Quantity,
    maximum: Quantity,
    parse: Callable[[object], Quantity],
    written: Callable[[Quantity], str],
) -> BeforeValidator:
    def read(value: object) -> Quantity:
        try:
            quantity = parse(value)
        except RefusedError as refusal:
            raise RefusedError(f"{shown(value)} {refusal}") from None
        if not minimum <= quantity <= maximum:
            bounds = f"{written(minimum)} to {written(maximum)}"
            raise RefusedError(f"{shown(value)} is out of range; use {bounds}")
        return quantity

    return BeforeValidator(read)


def a_broker_list(value: object) -> str:
    """`host:port`, several separated by commas."""
    text = a_text(value)
    for broker in text.split(","):
        match = _BROKER.fullmatch(broker.strip())
        if match is None or not 1 <= int(match[1] or 9092) <= 65535:
            raise RefusedError(
                f"{shown(value)} is not a list of brokers; write host:port,host:port"
            )
    return ",".join(broker.strip() for broker in text.split(","))


def a_replica_url(value: object) -> str:
    """The base URL of a replica's HTTP port, without a trailing slash."""
    text = a_text(value)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise RefusedError(f"{shown(value)} is not a URL; write it like http://host:8123") from None
    if "@" in text:
        raise RefusedError(
            f"{shown(value)} carries credentials; move them to clickhouse.user and"
            " clickhouse.password"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise RefusedError(f"{shown(value)} is not an HTTP URL; write it like http://host:8123")
    if port is None or port == 0:
        example = "https://host:8443" if parts.scheme == "https" else "http://host:8123"
        raise RefusedError(f"{shown(value)} names no port; write it like {example}")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise RefusedError(f"{shown(value)} must end after the port; settings are Sluice's to send")
    return f"{parts.scheme}://{parts.netloc}"


def a_registry_url(value: object) -> str:
    """The base URL of a schema registry, with its path; of several replicas of one, a list of them.

    :returns: one text, commas between several URLs.
    """
    if isinstance(value, list):
        if not value:
            raise RefusedError("must not be empty")
        return ",".join(a_registry_url(each) for each in value)
    text = a_text(value)
    try:
        parts = urlsplit(text)
    except ValueError:
        raise RefusedError(f"{shown(value)} is not a URL; write it like http://host:8081") from None
    if "@" in text:
        raise RefusedError(
            f"{shown(value)} carries credentials; move them to user and password in [registry]"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or "," in text:
        raise RefusedError(
            f"{shown(value)} is not an HTTP URL; write it like http://host:8081, or several as "
            '["http://one:8081", "http://two:8081"]'
        )
    if parts.query or parts.fragment:
        raise RefusedError(f"{shown(value)} must end after its path")
    return text.rstrip("/")


def a_listen_address(value: object) -> tuple[str, int]:
    """host:port to listen on; port 0 takes a free one."""
    host, _, port = a_text(value).rpartition(":")
    if not host or not re.fullmatch(r"[0-9]{1,5}", port, re.ASCII) or int(port) > 65535:
        raise RefusedError(f"{shown(value)} is not an address; write it like 127.0.0.1:9464")
    return host.strip("[]"), int(port)


def beside_the_file(name: str, info: ValidationInfo) -> str:
    """Relative names start from the folder of the configuration file."""
    return str((info.context or {})["folder"] / name)


Text = Annotated[str, BeforeValidator(a_text)]
SecretText = Annotated[Secret, PlainValidator(a_secret)]
Name = Annotated[str, BeforeValidator(a_name)]
Topic = Annotated[str, BeforeValidator(a_topic)]
Pattern = Annotated[str, BeforeValidator(a_pattern)]
DatabaseName = Annotated[str, BeforeValidator(a_database)]
Brokers = Annotated[str, BeforeValidator(a_broker_list)]
Url = Annotated[str, BeforeValidator(a_replica_url)]
RegistryUrl = Annotated[str, BeforeValidator(a_registry_url)]
FileName = Annotated[Text, AfterValidator(beside_the_file)]
