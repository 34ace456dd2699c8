"""`sluice bench`: rows a second, and where the time goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from sluice.cli.arguments import (
    Function,
    a_duration_seconds,
    a_positive_number,
    a_server,
    command,
    json_option,
    parameter_type,
)
from sluice.core.load_spec import Delivery
from sluice.testbed.local.bench_settings import ORDER_FORMATS, BenchSettings

_DEFAULTS = BenchSettings()


@parameter_type("auto|native|librdkafka")
def a_reader(text: str) -> str:
    """What reads the ranges."""
    # Here, so that the help does not load the model of the configuration.
    from sluice.config import Reader

    if text not in get_args(Reader):
        raise ValueError(f"is none of {', '.join(get_args(Reader))}")
    return text


@parameter_type("SHARE")
def a_share(text: str) -> float:
    """0 or more, and below 1."""
    share = _number(text)
    if not 0 <= share < 1:
        raise ValueError("is not a share from 0 to below 1")
    return share


@parameter_type("N")
def some_seconds(text: str) -> float:
    """A number of seconds above 0."""
    seconds = _number(text)
    if not 0 < seconds < math.inf:
        raise ValueError("is not a number of seconds above 0")
    return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@parameter_type("DURATION")
def a_duration(text: str) -> str:
    """A duration with its unit above 0, as it stands in the configuration."""
    if a_duration_seconds(text) <= 0:
        raise ValueError("is not above 0")
    return text


@parameter_type("N,N")
def some_numbers(text: str) -> tuple[int, ...]:
    """Numbers from 1, with commas between; underscores may group digits."""
    return tuple(a_positive_number(part) for part in text.split(","))


def _setting(option: str, what: str, **named: Any) -> Callable[[Function], Function]:
    """An option with the default of the setting that is called like it; a number from 1."""
    default = getattr(_DEFAULTS, option.removeprefix("--").replace("-", "_"))
    return click.option(
        option, **{"type": a_positive_number, "default": default, "help": what, **named}
    )


def _flag(option: str, what: str) -> Callable[[Function], Function]:
    return click.option(option, is_flag=True, help=what)


@command("bench", "sluice bench --rows 3000000 --rates 1000,10000 --compare before.json")
@_setting("--rows", "messages in each round")
@_setting("--server", "where the rows go", type=a_server)
@_setting("--rounds", "medians are over these")
@_flag("--replicated", "load ReplicatedMergeTree tables; the server needs ZooKeeper")
@_setting(
    "--message-bytes",
    "bytes of an average message; a String column is made longer "
    "(default: what the columns take, 193 for 9)",
)
@_setting("--columns", "columns, beyond the first 9 of all types")
@_setting("--topics", "topics that the messages go to in turn, all into the same tables")
@_setting("--partitions", "partitions of each topic")
@_setting("--tables", "tables that each message is loaded into, each")
@_setting("--bad-share", "share of broken messages in the rounds, like 0.001", type=a_share)
@_setting("--range-messages", "messages in a range at most")
@_flag(
    "--partial-ranges",
    "ranges are due after --max-delay, however few messages they have; "
    "else a round is cut into full ones",
)
@click.option(
    "--deduplicate",
    default=_DEFAULTS.deduplicate,
    metavar="STORE",
    help='know orders again by their id, with claims in this store: "local", or the URL of a Redis',
)
@_setting("--delivery", "how blocks come into the tables", type=click.Choice(get_args(Delivery)))
@_setting("--max-delay", "how long a message may wait for a full range", type=a_duration)
@_flag("--sort", "workers sort the blocks by the table's sorting key")
@_setting("--reader", "what reads the ranges", type=a_reader)
@_setting("--format", "of the messages", type=click.Choice(ORDER_FORMATS))
@_setting("--rates", "messages a second; the latency is measured at each", type=some_numbers)
@_setting("--latency-seconds", "seconds of producing at each rate", type=some_seconds)
@_setting("--idle-seconds", "seconds of looking at an idle pipeline", type=some_seconds)
@_setting("--backlog-seconds", "seconds of being away, for the time to drain", type=some_seconds)
@_flag(
    "--producer-alone",
    "measure the broker when the driver is gone, too: what it takes for the producer alone",
)
@_flag("--drain", "measure draining the first rate's backlog too, not only extrapolate it")
@click.option(
    "--flame",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="write a flame graph (SVG) of one worker in one more round; needs py-spy",
)
@click.option(
    "--compare",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="compare with a run stored by --json",
)
@json_option
def bench(**settings: Any) -> int:
    """Measure rows a second and CPU microseconds a row by process."""
    from sluice.testbed.local.bench import run_bench

    return int(run_bench(BenchSettings(**settings)))
