"""A real ZooKeeper (Debian's package) on a free port, for Replicated tables in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluice.testbed.local.cluster import zookeeper
from sluice.testbed.local.cluster.zookeeper import zookeeper_available

__all__ = ["run_zookeeper", "zookeeper_available"]


@contextmanager
def run_zookeeper() -> Iterator[int]:
    """Run ZooKeeper until the block ends; gives its port on 127.0.0.1."""
    with zookeeper.run_zookeeper() as running:
        yield running.port
