"""Real servers of Redis on free ports: alone, replicas, sentinels, a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from sluice.claims.connection import Reply
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.redis_server import RedisServer
from tests.support.children import running

__all__ = ["RedisServer", "run_cluster", "run_redis"]


def run_redis(*settings: str, password: str = "") -> AbstractContextManager[RedisServer]:
    """A server until the block ends.

    :param settings: lines of redis.conf.
    """
    return running(lambda folder: RedisServer(folder, *settings, password=password))


@contextmanager
def run_cluster(nodes: int = 3) -> Iterator[list[RedisServer]]:
    """A cluster without replicas, whose slots are dealt evenly."""
    with ExitStack() as stack:
        servers = []
        for _ in range(nodes):
            (bus,) = free_ports(1)
            settings = ("cluster-enabled yes", "cluster-node-timeout 2000", "appendonly yes")
            servers.append(stack.enter_context(run_redis(*settings, f"cluster-port {bus}")))
            servers[0].ask("CLUSTER", "MEET", "127.0.0.1", str(servers[-1].port), str(bus))
        share = 16_384 // nodes
        for number, server in enumerate(servers):
            end = 16_383 if number == nodes - 1 else (number + 1) * share - 1
            server.ask("CLUSTER", "ADDSLOTSRANGE", str(number * share), str(end))
        for server in servers:
            server.wait_until(
                lambda server=server: b"cluster_state:ok" in _text(server.ask("CLUSTER", "INFO"))  # type: ignore[misc]
            )
            # It may stand for seconds, and is away for nobody. Before, they found together sooner.
            server.ask("CONFIG", "SET", "cluster-node-timeout", "30000")
        yield servers


def _text(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply
