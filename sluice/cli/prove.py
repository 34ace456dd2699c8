"""`sluice prove`: whether a ClickHouse server does what Sluice believes of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import (
    UsageError,
    a_positive_number,
    command,
    json_option,
    load_configuration,
)
from sluice.cli.exit import ExitStatus, stop_on_signals
from sluice.cli.output import cell_text, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.clickhouse.access import ClickHouseAccess
    from sluice.prove.findings import Result

_PASSWORD = "CLICKHOUSE_PASSWORD"


@command("prove", "sluice prove http://a:8123 http://b:8123")
@click.argument(
    "servers",
    metavar="SERVER…",
    nargs=-1,
    help="URL of a server; several: replicas of a shard",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="CONFIG",
    help="take servers and login from this file",
)
@click.option("--shard", metavar="NAME", help="with --config: the replicas of this shard")
@click.option(
    "--user",
    default="default",
    help=f"its password is taken from the variable {_PASSWORD}",
)
@click.option("--database", default="sluice_prove", help="the scratch database")
@click.option(
    "--window",
    type=a_positive_number,
    default=1000,  # of Replicated tables before 25.9
    help="entries that the scratch tables' windows keep",
)
@json_option
def prove(
    servers: tuple[str, ...],
    config: Path | None,
    shard: str | None,
    user: str,
    database: str,
    window: int,
    as_json: bool,
) -> int:
    """Find out whether ClickHouse servers do what the promise rests on.

    It experiments on your own servers, in a scratch database that is dropped again.
    """
    from sluice.prove import running
    from sluice.prove.scratch import StoppedError, look_at_servers

    access, urls = _access(servers, config, shard, user)
    places = look_at_servers(access, urls)
    results: list[Result] = []
    if not as_json:
        told = ", ".join(f"{each.url} ({each.capabilities.version_text})" for each in places)
        print(f"In the scratch database {database}, on {told}:")
    with stop_on_signals() as stop:
        try:
            for result in running.prove(access, places, database, window, stop):
                results.append(result)
                if not as_json:
                    _print_result(result)
        except StoppedError:
            raise KeyboardInterrupt from None
    if as_json:
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
                "database": database,
                "window": window,
                "results": results,
            }
        )
    else:
        _print_sum(results)
    failed = any(result.verdict == "fails" for result in results)
    return ExitStatus.BROKEN if failed else ExitStatus.DONE


def _access(
    servers: tuple[str, ...], config: Path | None, shard: str | None, user: str
) -> tuple[ClickHouseAccess, tuple[str, ...]]:
    """How to reach the servers, and their URLs.

    :raises UsageError: no servers are named, or too many.
    """
    from sluice.clickhouse.access import ClickHouseAccess

    if config is None:
        if not servers:
            raise UsageError("no server is named", "sluice prove http://localhost:8123")
        password = os.environ.get(_PASSWORD, "")
        return ClickHouseAccess({"": servers}, user, password, "single"), servers
    if servers:
        raise UsageError("servers stand beside --config", "Name servers, or a file that does.")
    from sluice.driver.specs import access_of

    access = access_of(load_configuration(config))
    names = [*access.shards]
    shard = shard or (names[0] if len(names) == 1 else "")
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
