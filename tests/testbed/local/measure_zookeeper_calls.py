"""How often servers call ZooKeeper for each block that is inserted.

`python -m tests.testbed.local.measure_zookeeper_calls` starts a cluster of installed servers
for each number of replicas, inserts blocks one after the other, and counts by the servers' own
counters.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from sluice.clickhouse.http import Server
from sluice.core.errors import SluiceError
from sluice.testbed.local.cluster.cluster import Cluster, running_cluster

_TABLE = "zookeeper_calls"
_ROWS = 1000
_BLOCKS = 20
#: How long servers without work are watched: what they call then is taken off.
_IDLE_SECONDS = 5.0
_SETTLED_SECONDS = 0.5
_COUNTER = "ZooKeeperTransactions"


@dataclass(frozen=True, slots=True)
class Case:
    """What is inserted.

    :param quorum: replicas that must have a block before it is acknowledged; 1: no quorum.
    :param partitions: ClickHouse partitions of each block.
    :param merges: whether parts are merged meanwhile.
    """

    replicas: int
    quorum: int
    partitions: int
    merges: bool = False


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls for each block, of all replicas together; what the servers do at rest is taken off.

    :param inserting: of them, by the server that was sent the blocks.
    :param by_kind: of all, like {"Multi": 3.0}. A Multi is one call of several operations.
    :param idle: calls a second of one server at rest.
    """

    case: Case
    total: float
    inserting: float
    by_kind: dict[str, float] = field(default_factory=dict)
    idle: float = 0.0


def cases(replicas: int) -> list[Case]:
    """What is measured with so many replicas."""
    quorums = (1, 2) if replicas > 1 else (1,)
    found = [Case(replicas, quorum, n) for quorum in quorums for n in (1, 10)]
    return [*found, Case(replicas, 1, 1, merges=True)]


def measure(
    cluster: Cluster, case: Case, blocks: int = _BLOCKS, idle_seconds: float = _IDLE_SECONDS
) -> Calls:
    """Insert blocks into a new table of the cluster's first shard, and count.

    :param idle_seconds: how long its servers are watched at rest before.
    :raises SluiceError: a server does not answer.
    """
    servers = [Server(server.url) for server in next(iter(cluster.shards.values()))]
    name = f"{_TABLE}_{case.quorum}_{case.partitions}_{int(case.merges)}"
    try:
        for server in servers:
            server.execute(_create_table(name, case))
        _insert(servers[0], name, case, 0)  # the first block of a table makes nodes once
        _rest(servers, name)
        before, began = _read(servers), time.monotonic()
        time.sleep(idle_seconds)
        idle = _grown(before, _read(servers))
        idle_seconds = time.monotonic() - began
        before, began = _read(servers), time.monotonic()
        for number in range(1, blocks + 1):
            _insert(servers[0], name, case, number)
        _rest(servers, name)
        share = (time.monotonic() - began) / idle_seconds
        grown = _grown(before, _read(servers))
        net = [
            {kind: (count - share * rest.get(kind, 0)) / blocks for kind, count in of_one.items()}
            for of_one, rest in zip(grown, idle, strict=True)
        ]
        for server in servers:
            server.execute(f"DROP TABLE {name}")
    finally:
        for server in servers:
            server.close()
    kinds = {kind for of_one in net for kind in of_one} - {_COUNTER}
    by_kind = {kind: sum(of_one.get(kind, 0.0) for of_one in net) for kind in sorted(kinds)}
    return Calls(
        case=case,
        total=sum(of_one.get(_COUNTER, 0.0) for of_one in net),
        inserting=net[0].get(_COUNTER, 0.0),
        by_kind={kind.removeprefix("ZooKeeper"): n for kind, n in by_kind.items() if n >= 0.05},
        idle=sum(rest.get(_COUNTER, 0) for rest in idle) / idle_seconds / len(servers),
    )


def _create_table(name: str, case: Case) -> str:
    # Without merges none are planned; STOP MERGES would leave those that are planned in the queue.
    merges = "" if case.merges else " SETTINGS max_replicated_merges_in_queue = 0"
    return (
        f"CREATE TABLE {name} (id UInt64) ENGINE = "
        f"ReplicatedMergeTree('/clickhouse/tables/{name}', '{{replica}}') "
        f"PARTITION BY id % {case.partitions} ORDER BY id{merges}"
    )


def _insert(server: Server, name: str, case: Case, number: int) -> None:
    """One block, with rows in each of its partitions."""
    settings = {"insert_quorum": str(case.quorum)} if case.quorum > 1 else None
    numbers = f"SELECT number + {number * _ROWS} FROM system.numbers LIMIT {_ROWS}"
    server.execute(f"INSERT INTO {name} {numbers}", settings=settings)


def _rest(servers: Sequence[Server], name: str) -> None:
    """Wait until each replica has everything."""
    for server in servers:
        server.execute(f"SYSTEM SYNC REPLICA {name}")
    time.sleep(_SETTLED_SECONDS)


def _read(servers: Sequence[Server]) -> list[dict[str, int]]:
    sql = (
        "SELECT event, value FROM system.events WHERE event LIKE 'ZooKeeper%' "
        "AND event NOT LIKE '%Microseconds' AND event NOT LIKE '%Bytes%' "
        "AND event != 'ZooKeeperWatchResponse'"  # no call, and not among the transactions
    )
    return [{row["event"]: int(row["value"]) for row in one.query(sql)} for one in servers]


def _grown(before: list[dict[str, int]], after: list[dict[str, int]]) -> list[dict[str, int]]:
    return [
        {kind: count - old.get(kind, 0) for kind, count in new.items()}
        for old, new in zip(before, after, strict=True)
    ]


def table(found: Sequence[Calls]) -> Iterator[str]:
    """The lines of a table, for docs/SCALE.md."""
    yield "| replicas | quorum | partitions | calls a block | inserting server | by kind |"
    yield "|---|---|---|---|---|---|"
    for calls in found:
        case = calls.case
        kinds = ", ".join(f"{kind} {count:.1f}" for kind, count in calls.by_kind.items())
        merges = " (and merges)" if case.merges else ""
        yield (
            f"| {case.replicas} | {case.quorum if case.quorum > 1 else 'none'} | "
            f"{case.partitions}{merges} | {calls.total:.1f} | {calls.inserting:.1f} | {kinds} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print.

    :returns: an exit status.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.testbed.local.measure_zookeeper_calls")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--blocks", type=int, default=_BLOCKS, help="inserted for each line")
    parsed = parser.parse_args(arguments)
    found: list[Calls] = []
    try:
        for replicas in parsed.replicas:
            with running_cluster(1, replicas) as cluster:
                found += [measure(cluster, case, parsed.blocks) for case in cases(replicas)]
    except SluiceError as error:
        print(f"sluice: {error.message}. Try: {error.hint}", file=sys.stderr)
        return 1
    for line in table(found):
        print(line)
    print(f"A server at rest: {max(calls.idle for calls in found):.1f} calls a second at most.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
