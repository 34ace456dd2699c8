"""Metrics of the replicas, as the driver last read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.driver.ports import Replicas

#: name -> help; a value for each replica
_GAUGES = {
    "sluice_replica_healthy": "0 while blocks go to this replica last: it is behind, or away.",
    "sluice_replica_answers": "1 if it answered the last reading.",
    "sluice_replica_delay_seconds": "How far it is behind the others, the worst of its tables.",
    "sluice_replica_queue": "Entries that it still has to replicate, the worst of its tables.",
    "sluice_replica_missing": "Replicas of a table that are not active, as this one sees it.",
}


def replica_metrics(loops: Iterable[tuple[str, Replicas | None]]) -> Iterator[Metric]:
    """Of all loops, by name; a replica that does not answer has no delay and no queue."""
    families = {
        name: GaugeMetricFamily(name, text, labels=["connector", "shard", "replica"])
        for name, text in _GAUGES.items()
    }
    differs = GaugeMetricFamily(
        "sluice_cluster_differs",
        "1 while system.clusters has other shards than this driver started with.",
        labels=["connector"],
    )
    for loop, replicas in loops:
        if replicas is None:
            continue
        differs.add_metric([loop], float(replicas.differs != ""))
        for state in replicas.current():
            condition = state.health.condition
            values: tuple[float | None, ...] = (
                float(not state.health.is_behind),
                float(condition is not None),
                None if condition is None else float(condition.delay_seconds),
                None if condition is None else float(condition.queue),
                None
                if condition is None or condition.total is None or condition.active is None
                else float(condition.total - condition.active),
            )
            for family, value in zip(families.values(), values, strict=True):
                if value is not None:
                    family.add_metric([loop, state.shard, state.url], value)
    yield from families.values()
    yield differs
