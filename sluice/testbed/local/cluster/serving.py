"""What `sluice local cluster` does: run a cluster until it is interrupted."""

from __future__ import annotations

from sluice.testbed.local.cluster.cluster import EXAMPLE_TABLE, Cluster, running_cluster
from sluice.testbed.local.lifetime import StopRequest


def run_cluster(shards: int, replicas: int) -> int:
    """Serve until SIGTERM or SIGINT, then end every process; the data goes with it.

    Prints the servers, a `[clickhouse]` section and a table once everything answers.

    :returns: 0, the exit status.
    :raises TerminalError: a program is not installed, or does not come up.
    """
    stop = StopRequest()
    with running_cluster(shards, replicas) as cluster:
        print(_introduction(cluster), flush=True)
        stop.wait()
    return 0


def _introduction(cluster: Cluster) -> str:
    lines = [
        f"{name} {server.settings.replica}  {server.url}  process {server.running.pid}"
        for name, servers in cluster.shards.items()
        for server in servers
    ]
    zookeeper = cluster.zookeeper
    lines.append(
        f"ZooKeeper  127.0.0.1:{zookeeper.port}  process {zookeeper.running.pid}",
    )
    return (
        "\n".join(lines)
        + f"\n\nFor a configuration (`sluice init` writes the rest):\n\n{cluster.section()}"
        + f"\nOr, with the replicas asked of the servers:\n\n{cluster.asking_section()}"
        + f"\nA table, to be made on every server:\n\n{EXAMPLE_TABLE}\n"
        + "\nCtrl-C ends all of it; the data goes with it."
    )
