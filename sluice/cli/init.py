"""`sluice init`: writes a commented configuration file, or one that fits a topic."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from sluice.cli.arguments import UsageError, a_positive_number, command
from sluice.cli.exit import ExitStatus
from sluice.core.load_spec import Delivery

if TYPE_CHECKING:
    from sluice.core.errors import SluiceError
    from sluice.kafka.registry import RegistryAccess
    from sluice.ops.init_formats import FirstLine
    from sluice.ops.init_topic import Wanted

FILE_NAME = "sluice.toml"
_PASSWORD = "CLICKHOUSE_PASSWORD"
#: Of ClickHouse, old and new: an unknown user, a password that is wrong or missing.
_LOGIN_CODES = frozenset({192, 193, 194, 516})


@command("init", "sluice init --from-topic orders --brokers localhost:9092 > create.sql")
@click.option("--force", is_flag=True, help="replace the file that is there")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    default=Path(FILE_NAME),
    help="the file to write",
)
@click.option("--from-topic", metavar="TOPIC", help="the topic to look at")
@click.option("--brokers", metavar="HOST:PORT,…", help="its Kafka cluster")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="of librdkafka, e.g. sasl.password='${KAFKA_PASSWORD}'; may be repeated",
)
@click.option("--clickhouse", metavar="URL", default="", help="server that the table will be on")
@click.option(
    "--user",
    default="default",
    help=f"of ClickHouse; its password is taken from the variable {_PASSWORD}",
)
@click.option(
    "--table", metavar="[DATABASE.]NAME", help="the table (default: called like the topic)"
)
@click.option(
    "--delivery",
    type=click.Choice(get_args(Delivery)),
    default="block",
    help="how the table stores each message once (docs/DELIVERIES.md)",
)
@click.option("--registry", metavar="URL", default="", help="of the messages' schemas")
@click.option(
    "--registry-user",
    default="",
    help="of the registry; its password is taken from the variable REGISTRY_PASSWORD, a token "
    "for none from REGISTRY_TOKEN",
)
@click.option(
    "--first-line",
    type=click.Choice(["names", "values"]),
    help="what the first line of a message of CSV or TSV has, where the sample does not tell",
)
@click.option("--samples", type=a_positive_number, default=1_000, help="messages to look at")
def init(output: Path, force: bool, from_topic: str | None, **named: Any) -> int:
    """Write a commented sluice.toml, or one that fits a topic.

    With --from-topic it looks at some messages, and at the server if one is named, and changes
    nothing there. It prints a CREATE TABLE that fits the messages.
    """
    if from_topic is not None:
        return _from_topic(output, force, from_topic, **named)
    from sluice.config.example import EXAMPLE

    _write(output, EXAMPLE, force=force)
    print(f"Wrote {output}. Edit it, then: sluice doctor {output}")
    return ExitStatus.DONE


def _from_topic(path: Path, force: bool, topic: str, **named: Any) -> int:
    import logging

    wanted = _wanted(topic, **named)
    if path.exists() and not force:
        raise _is_there(path)
    from sluice.config import load
    from sluice.core.errors import ConfigurationError, SluiceError
    from sluice.ops.init_topic import propose

    try:
        proposal = propose(wanted)
    except SluiceError as error:
        error.hint = _hint(error)  # others speak of a file, which is not there yet
        raise
    _write(path, proposal.configuration, force=force)
    try:
        load(path, os.environ)
    except ConfigurationError:
        path.unlink()
        raise
    print(f"{proposal.statement};")
    logging.getLogger("sluice.init").info(
        "wrote %s. Create the table with the statement on stdout, then: sluice doctor %s",
        path,
        path,
    )
    return ExitStatus.DONE


def _hint(error: SluiceError) -> str:
    """What to do about what `init` was answered: what a file says stands in its options."""
    from sluice.clickhouse.reactions import ServerError
    from sluice.kafka.errors import (
        KafkaDeniedError,
        KafkaRefusedError,
        KafkaUnavailableError,
        RegistryRefusedError,
    )

    if isinstance(error, ServerError) and error.code in _LOGIN_CODES:
        return f"Give --user, and its password in the environment: export {_PASSWORD}=…"
    if isinstance(error, KafkaDeniedError):
        return (
            "Looking at a topic needs Read on it and Describe on the group sluice.reader; "
            "who logs in says --property sasl.username=…"
        )
    if isinstance(error, KafkaRefusedError):
        return (
            "Say how to log in by --property, e.g. --property security.protocol=SASL_SSL "
            "--property sasl.mechanism=… --property sasl.username=… "
            "--property sasl.password='${KAFKA_PASSWORD}'"
        )
    if isinstance(error, RegistryRefusedError):
        return (
            "Check --registry and --registry-user, and the variable REGISTRY_PASSWORD or "
            "REGISTRY_TOKEN."
        )
    if isinstance(error, KafkaUnavailableError):
        return (
            "Check --brokers: host and port of a broker that runs; a listener with TLS or a login "
            "needs --property security.protocol=…, too"
        )
    return error.hint


def _wanted(
    from_topic: str,
    *,
    brokers: str | None,
    properties: tuple[str, ...],
    clickhouse: str,
    user: str,
    table: str | None,
    samples: int,
    delivery: Delivery,
    registry: str,
    registry_user: str,
    first_line: FirstLine | None,
) -> Wanted:
    """What the arguments say, checked like the keys of the file that they will stand in."""
    from sluice.config.findings import RefusedError
    from sluice.config.interpolation import interpolate
    from sluice.config.properties import refuse_kafka_property
    from sluice.config.values import (
        a_broker_list,
        a_replica_url,
        a_target,
        a_topic,
    )
    from sluice.ops.init_topic import Wanted

    if brokers is None:
        raise UsageError("--from-topic needs --brokers", "--brokers HOST:PORT")
    option = ""
    written: dict[str, str] = {}
    try:
        option = "--from-topic"
        topic = a_topic(from_topic)
        option = "--brokers"
        broker_list = a_broker_list(brokers)
        option = "--clickhouse"
        url = a_replica_url(clickhouse) if clickhouse else ""
        option = "--registry"
        access = _registry(registry, registry_user)
        option = "--table"
        database, name_of_table = a_target(table) if table else (None, None)
        option = "--property"
        for pair in properties:
            name, separator, value = pair.partition("=")
            if not separator:
                raise RefusedError(f'"{name}" is not NAME=VALUE')
            refusal = refuse_kafka_property(name)
            if refusal is not None:
                raise RefusedError(f"{name} {refusal}")
            written[name] = value
        given = {name: str(interpolate(text, os.environ)) for name, text in written.items()}
    except RefusedError as refusal:
        raise UsageError(f"{option}: {refusal}", "sluice init --help") from None
    return Wanted(
        topic=topic,
        brokers=broker_list,
        clickhouse=url,
        user=user,
        password=os.environ.get(_PASSWORD, ""),
        database=database,
        table=name_of_table,
        samples=samples,
        delivery=delivery,
        written=written,
        properties=given,
        registry=access,
        first_line=first_line or "",
    )


def _registry(url: str, user: str) -> RegistryAccess | None:
    """How the registry of the arguments is reached; None: none is named.

    :raises RefusedError: the URL is none.
    """
    from sluice.config.values import a_registry_url
    from sluice.kafka.registry import RegistryAccess
    from sluice.ops.init_topic import REGISTRY_PASSWORD, REGISTRY_TOKEN

    if not url:
        return None
    if user:
        password = os.environ.get(REGISTRY_PASSWORD, "")
        return RegistryAccess(a_registry_url(url), user, password)
    return RegistryAccess(a_registry_url(url), token=os.environ.get(REGISTRY_TOKEN, ""))


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written: {error.strerror}", "Choose a folder that you may write to."
        ) from None


def _is_there(path: Path) -> UsageError:
    return UsageError(
        f"{path}: is there already", "Move it away, or replace it with `sluice init --force`."
    )
