"""`sluice bench`: rows a second, and where the time goes."""

from __future__ import annotations

import argparse
import math
from dataclasses import fields
from pathlib import Path

from sluice.cli.arguments import (
    CommandParser,
    Subparsers,
    a_duration_seconds,
    a_positive_number,
    a_server,
    add_command,
    add_json,
)
from sluice.testbed.local.bench_settings import ORDER_FORMATS, BenchSettings

_DEFAULTS = BenchSettings()


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "bench",
        execute,
        "measure rows a second and CPU microseconds a row by process",
        "sluice bench --rows 3000000 --rates 1000,10000 --compare before.json",
    )
    _add_number(parser, "--rows", _DEFAULTS.rows, "messages in each round")
    parser.add_argument(
        "--server",
        type=a_server,
        default=_DEFAULTS.server,
        metavar="embedded|URL",
        help="where the rows go (default: embedded)",
    )
    _add_number(parser, "--rounds", _DEFAULTS.rounds, "medians are over these")
    parser.add_argument(
        "--unsafe-no-dedup",
        action="store_true",
        help="load tables that cannot deduplicate; for comparison only",
    )
    parser.add_argument(
        "--replicated",
        action="store_true",
        help="load ReplicatedMergeTree tables; the server needs ZooKeeper",
    )
    _add_shape(parser)
    _add_load(parser)
    _add_looks(parser)
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from sluice.testbed.local.bench import run_bench

    values = vars(arguments)
    names = {field.name for field in fields(BenchSettings)} - {"as_json"}
    settings = BenchSettings(**{name: values[name] for name in names}, as_json=arguments.json)
    return int(run_bench(settings))


def _add_shape(parser: CommandParser) -> None:
    """What the messages are like, and where they go."""
    parser.add_argument(
        "--message-bytes",
        type=a_positive_number,
        metavar="N",
        help="bytes of an average message; a String column is made longer "
        "(default: what the columns take, 193 for 9)",
    )
    _add_number(parser, "--columns", _DEFAULTS.columns, "columns, beyond the first 9 of all types")
    _add_number(parser, "--partitions", _DEFAULTS.partitions, "partitions of the topic")
    _add_number(
        parser, "--tables", _DEFAULTS.tables, "tables that each message is loaded into, each"
    )
    parser.add_argument(
        "--bad-share",
        type=_a_share,
        default=_DEFAULTS.bad_share,
        metavar="SHARE",
        help="share of broken messages in the rounds, like 0.001 (default: 0)",
    )


def _add_load(parser: CommandParser) -> None:
    """How the pipeline is driven."""
    _add_number(parser, "--range-messages", _DEFAULTS.range_messages, "messages in a range at most")
    parser.add_argument(
        "--partial-ranges",
        action="store_true",
        help="ranges are due after --max-delay, however few messages they have; "
        "else a round is cut into full ones",
    )
    parser.add_argument(
        "--max-delay",
        type=_a_duration,
        default=_DEFAULTS.max_delay,
        metavar="TIME",
        help="how long a message may wait for a full range (default: 500ms)",
    )
    parser.add_argument(
        "--sort", action="store_true", help="workers sort the blocks by the table's sorting key"
    )
    parser.add_argument(
        "--reader",
        type=_a_reader,
        default=_DEFAULTS.reader,
        metavar="librdkafka|wire",
        help="what reads the ranges (default: librdkafka)",
    )
    parser.add_argument(
        "--format",
        choices=ORDER_FORMATS,
        default=_DEFAULTS.format,
        help="of the messages (default: JSONEachRow)",
    )
    parser.add_argument(
        "--rates",
        type=_numbers,
        default=_DEFAULTS.rates,
        metavar="N,N",
        help="messages a second; the latency is measured at each (default: 1000)",
    )
    for name, of in (
        ("latency", "producing at each rate"),
        ("idle", "looking at an idle pipeline"),
        ("backlog", "being away, for the time to drain"),
    ):
        default: float = getattr(_DEFAULTS, f"{name}_seconds")
        parser.add_argument(
            f"--{name}-seconds",
            type=_seconds,
            default=default,
            metavar="N",
            help=f"seconds of {of} (default: {default:g})",
        )
    parser.add_argument(
        "--drain",
        action="store_true",
        help="measure draining the first rate's backlog too, not only extrapolate it",
    )


def _add_looks(parser: CommandParser) -> None:
    """What else is shown."""
    parser.add_argument(
        "--flame",
        type=Path,
        metavar="FILE",
        help="write a flame graph (SVG) of one worker in one more round; needs py-spy",
    )
    parser.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare with a run stored by --json"
    )


def _add_number(parser: CommandParser, option: str, default: int, what: str) -> None:
    parser.add_argument(
        option,
        type=a_positive_number,
        default=default,
        metavar="N",
        help=f"{what} (default: {default:,})",
    )


def _a_reader(text: str) -> str:
    # Here, so that the help does not load the model of the configuration.
    from sluice.config.model import READERS

    if text not in READERS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(READERS)}")
    return text


def _a_share(text: str) -> float:
    """0 or more, and below 1."""
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0 to below 1")
    return share


def _seconds(text: str) -> float:
    """A number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _a_duration(text: str) -> str:
    """A duration with its unit above 0, as it stands in the configuration."""
    if a_duration_seconds(text) <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not above 0")
    return text


def _numbers(text: str) -> tuple[int, ...]:
    """Numbers from 1, with commas between; underscores may group digits."""
    return tuple(a_positive_number(part) for part in text.split(","))
