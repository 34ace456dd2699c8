"""`sluice init`: writes a commented configuration file, or one that fits a topic."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cli.arguments import (
    CommandParser,
    Subparsers,
    UsageError,
    a_positive_number,
    add_command,
)
from sluice.cli.exit import ExitStatus

if TYPE_CHECKING:
    from sluice.ops.init_topic import Wanted

FILE_NAME = "sluice.toml"
_SAMPLES = 1_000
_PASSWORD = "CLICKHOUSE_PASSWORD"


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "init",
        execute,
        f"write a commented {FILE_NAME}, or one that fits a topic, with its CREATE TABLE",
        "sluice init --from-topic orders --brokers localhost:9092 > create.sql",
    )
    parser.add_argument("--force", action="store_true", help="replace the file that is there")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path(FILE_NAME),
        help=f"the file to write (default: {FILE_NAME})",
    )
    _add_topic(parser)


def _add_topic(parser: CommandParser) -> None:
    group = parser.add_argument_group(
        "from a topic",
        "Looks at some messages, and at the server if one is named; changes nothing there.",
    )
    group.add_argument("--from-topic", metavar="TOPIC", help="the topic to look at")
    group.add_argument("--brokers", metavar="HOST:PORT,…", help="its Kafka cluster")
    group.add_argument(
        "--property",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="of librdkafka, e.g. sasl.password='${KAFKA_PASSWORD}'; may be repeated",
    )
    group.add_argument(
        "--clickhouse", metavar="URL", default="", help="server that the table will be on"
    )
    group.add_argument(
        "--user",
        default="default",
        help=f"of ClickHouse; its password is taken from the variable {_PASSWORD}",
    )
    group.add_argument(
        "--table", metavar="[DATABASE.]NAME", help="the table (default: called like the topic)"
    )
    group.add_argument(
        "--samples",
        metavar="N",
        type=a_positive_number,
        default=_SAMPLES,
        help=f"messages to look at (default: {_SAMPLES:,})",
    )


def execute(arguments: argparse.Namespace) -> int:
    path: Path = arguments.output
    if arguments.from_topic is None:
        from sluice.config.example import EXAMPLE

        _write(path, EXAMPLE, force=arguments.force)
        print(f"Wrote {path}. Edit it, then: sluice doctor {path}")
        return ExitStatus.DONE
    return _from_topic(arguments, path)


def _from_topic(arguments: argparse.Namespace, path: Path) -> int:
    import logging

    wanted = _wanted(arguments)
    if path.exists() and not arguments.force:
        raise _is_there(path)
    from sluice.config import load
    from sluice.core.errors import ConfigurationError
    from sluice.ops.init_topic import propose

    proposal = propose(wanted)
    _write(path, proposal.configuration, force=arguments.force)
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


def _wanted(arguments: argparse.Namespace) -> Wanted:
    """What the arguments say, checked like the keys of the file that they will stand in."""
    from sluice.config.findings import RefusedError
    from sluice.config.interpolation import interpolate
    from sluice.config.rules import refuse_kafka_property
    from sluice.config.values import a_broker_list, a_replica_url, a_target, a_topic
    from sluice.ops.init_topic import Wanted

    if arguments.brokers is None:
        raise UsageError("--from-topic needs --brokers", "--brokers HOST:PORT")
    option = ""
    written: dict[str, str] = {}
    try:
        option = "--from-topic"
        topic = a_topic(arguments.from_topic)
        option = "--brokers"
        brokers = a_broker_list(arguments.brokers)
        option = "--clickhouse"
        clickhouse = a_replica_url(arguments.clickhouse) if arguments.clickhouse else ""
        option = "--table"
        database, table = a_target(arguments.table) if arguments.table else (None, None)
        option = "--property"
        for pair in arguments.property:
            name, separator, value = pair.partition("=")
            if not separator:
                raise RefusedError(f'"{name}" is not NAME=VALUE')
            refusal = refuse_kafka_property(name)
            if refusal is not None:
                raise RefusedError(f"{name} {refusal}")
            written[name] = value
        properties = {k: str(interpolate(v, os.environ)) for k, v in written.items()}
    except RefusedError as refusal:
        raise UsageError(f"{option}: {refusal}", "sluice init --help") from None
    return Wanted(
        topic=topic,
        brokers=brokers,
        clickhouse=clickhouse,
        user=arguments.user,
        password=os.environ.get(_PASSWORD, ""),
        database=database,
        table=table,
        samples=arguments.samples,
        written=written,
        properties=properties,
    )


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
