"""`sluice prove`: whether a ClickHouse server does what Sluice believes of it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.cli.arguments import Subparsers, UsageError, a_positive_number, add_command, add_json
from sluice.cli.exit import ExitStatus
from sluice.cli.output import print_json
from sluice.cli.stopping import stop_on_signals
from sluice.cli.tables import cell_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.clickhouse.access import ClickHouseAccess
    from sluice.prove.findings import Result

_DATABASE = "sluice_prove"
#: The default of Replicated tables before 25.9.
_WINDOW = 1000
_PASSWORD = "CLICKHOUSE_PASSWORD"


def add(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "prove",
        execute,
        "find out on your own ClickHouse servers whether they do what the promise rests on, in a "
        "scratch database that is dropped again",
        "sluice prove http://a:8123 http://b:8123",
    )
    parser.add_argument(
        "servers", metavar="SERVER", nargs="*", help="URL of a server; several: replicas of a shard"
    )
    parser.add_argument(
        "--config", metavar="CONFIG", type=Path, help="take servers and login from this file"
    )
    parser.add_argument("--shard", metavar="NAME", help="with --config: the replicas of this shard")
    parser.add_argument(
        "--user",
        default="default",
        help=f"its password is taken from the variable {_PASSWORD} (default: default)",
    )
    parser.add_argument(
        "--database", default=_DATABASE, help=f"the scratch database (default: {_DATABASE})"
    )
    parser.add_argument(
        "--window",
        type=a_positive_number,
        default=_WINDOW,
        metavar="N",
        help=f"entries that the scratch tables' windows keep (default: {_WINDOW})",
    )
    add_json(parser)


def execute(arguments: argparse.Namespace) -> int:
    from sluice.prove.running import prove
    from sluice.prove.scratch import StoppedError, look_at_servers

    access, urls = _access(arguments)
    places = look_at_servers(access, urls)
    results: list[Result] = []
    if not arguments.json:
        told = ", ".join(f"{each.url} ({each.capabilities.version_text})" for each in places)
        print(f"In the scratch database {arguments.database}, on {told}:")
    with stop_on_signals() as stop:
        try:
            for result in prove(access, places, arguments.database, arguments.window, stop):
                results.append(result)
                if not arguments.json:
                    _print_result(result)
        except StoppedError:
            raise KeyboardInterrupt from None
    if arguments.json:
        print_json(
            {
                "servers": [
                    {
                        "url": each.url,
                        "version": each.capabilities.version_text,
                        "tokens": each.capabilities.tokens,
                    }
                    for each in places
                ],
                "database": arguments.database,
                "window": arguments.window,
                "results": results,
            }
        )
    else:
        _print_sum(results)
    failed = any(result.verdict == "fails" for result in results)
    return ExitStatus.BROKEN if failed else ExitStatus.DONE


def _access(arguments: argparse.Namespace) -> tuple[ClickHouseAccess, tuple[str, ...]]:
    """How to reach the servers, and their URLs.

    :raises UsageError: no servers are named, or too many.
    """
    from sluice.clickhouse.access import ClickHouseAccess

    if arguments.config is None:
        if not arguments.servers:
            raise UsageError("no server is named", "sluice prove http://localhost:8123")
        urls = tuple(arguments.servers)
        password = os.environ.get(_PASSWORD, "")
        return ClickHouseAccess({"": urls}, arguments.user, password, "single"), urls
    if arguments.servers:
        raise UsageError("servers stand beside --config", "Name servers, or a file that does.")
    from sluice.config import load
    from sluice.driver.texts import access_of

    access = access_of(load(arguments.config, os.environ))
    names = [*access.shards]
    shard = arguments.shard or (names[0] if len(names) == 1 else "")
    if shard not in access.shards:
        said = f"there is no shard {shard}" if shard else "the servers are of several shards"
        raise UsageError(said, f"Name one with --shard: {', '.join(names)}.")
    return access, access.shards[shard]


def _print_result(result: Result) -> None:
    print(f"{result.verdict:16}{result.experiment} ({result.tables}): {result.fact}")
    print(f"                server:  {cell_text(result.server_did)}")
    word = "promise" if result.depends else "no promise"
    print(f"                {word}: {result.promise}", flush=True)


def _print_sum(results: Sequence[Result]) -> None:
    counts = {
        verdict: sum(result.verdict == verdict for result in results)
        for verdict in ("holds", "fails", "not applicable")
    }
    seconds = sum(result.seconds for result in results)
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    print(f"{told}; in {seconds:.0f} s. The scratch database is dropped.")
