"""`sluice resolve`, `adopt` and `rewind`: what only a person can decide.

Each plans first, shows the plan, asks, and only then acts.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sluice.cli.arguments import (
    Subparsers,
    UsageError,
    add_command,
    add_configuration,
    an_offset,
    an_offset_or_time,
    load_configuration,
)
from sluice.cli.confirm import confirm
from sluice.cli.exit import ExitStatus

if TYPE_CHECKING:
    from sluice.config import Configuration
    from sluice.ops.decisions import Plan


def add(subparsers: Subparsers) -> None:
    where = "--connector dc1 --topic orders --partition 3"
    resolve = add_command(
        subparsers,
        "resolve",
        execute_resolve,
        "say whether a range in doubt was loaded",
        f"sluice resolve sluice.toml {where} --as probe",
    )
    _add_partitions(resolve)
    resolve.add_argument(
        "--as",
        dest="outcome",
        required=True,
        choices=("loaded", "not-loaded", "probe"),
        help="its rows are all in the table; none are; or look at the lineage columns",
    )
    adopt = add_command(
        subparsers,
        "adopt",
        execute_adopt,
        "go on from an offset after a foreign hand changed the group",
        f"sluice adopt sluice.toml {where} --offset 1200",
    )
    _add_partitions(adopt)
    adopt.add_argument("--offset", required=True, type=an_offset, help="the next offset to load")
    rewind = add_command(
        subparsers,
        "rewind",
        execute_rewind,
        "load again from an offset or a time, under new tokens",
        f"sluice rewind sluice.toml {where} --to 2026-01-31T00:00:00Z",
    )
    _add_partitions(rewind)
    rewind.add_argument(
        "--to",
        required=True,
        metavar="OFFSET|TIME",
        type=an_offset_or_time,
        help="the next offset to load, or a time with its zone",
    )


def execute_resolve(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    selection = selection_of(configuration, arguments)
    from sluice.ops.decisions import plan_resolve

    plan = plan_resolve(configuration, outcome=arguments.outcome, **selection)
    return _decide(configuration, arguments, plan)


def execute_adopt(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    selection = selection_of(configuration, arguments)
    from sluice.ops.decisions import plan_adopt

    plan = plan_adopt(configuration, offset=arguments.offset, **selection)
    return _decide(configuration, arguments, plan)


def execute_rewind(arguments: argparse.Namespace) -> int:
    configuration = load_configuration(arguments)
    selection = selection_of(configuration, arguments)
    from sluice.ops.decisions import plan_rewind

    plan = plan_rewind(configuration, to=arguments.to, **selection)
    return _decide(configuration, arguments, plan)


def _add_partitions(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument("--connector", required=True, help="the connector's name")
    parser.add_argument("--topic", required=True, help="the topic")
    parser.add_argument(
        "--partition",
        required=True,
        nargs="+",
        action="extend",
        type=an_offset,
        metavar="N",
        help="one or more partitions; may be repeated",
    )
    parser.add_argument("--yes", action="store_true", help="do it without asking")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="even while the owner's lease runs; the owner is fenced",
    )


def selection_of(configuration: Configuration, arguments: argparse.Namespace) -> dict[str, Any]:
    """The partitions that the decision is about.

    :raises ConfigurationError: the connector is not configured.
    :raises UsageError: the connector does not have this topic.
    """
    connector = configuration.connector(arguments.connector)
    if not configuration.reads(connector.name, arguments.topic):
        raise UsageError(
            f'{configuration.path}: connector[{connector.name}].topics: "{arguments.topic}"'
            " is not among them",
            f"Name one of: {', '.join(connector.topics) or connector.topic_pattern}.",
        )
    return {
        "connector": arguments.connector,
        "topic": arguments.topic,
        "partitions": tuple(sorted(set(arguments.partition))),
        "take_over": arguments.take_over,
    }


def _decide(configuration: Configuration, arguments: argparse.Namespace, plan: Plan) -> int:
    from sluice.ops.decisions import apply

    if not confirm(plan.steps, arguments.yes):
        return ExitStatus.BROKEN
    apply(configuration, plan)
    return ExitStatus.DONE
