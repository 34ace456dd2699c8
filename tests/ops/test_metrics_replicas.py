"""What the metrics say of replicas, by the driver's last reading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.core.replicas import Condition, ReplicaHealth
from sluice.driver.ports import ReplicaState
from sluice.ops.metrics import replica_metrics


@dataclass
class Read:
    states: Sequence[ReplicaState]
    differs: str = ""

    def current(self) -> Sequence[ReplicaState]:
        return self.states


def values(*loops: tuple[str, Read | None, Sequence[str]]) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in replica_metrics(loops)
        for sample in family.samples
    }


def test_each_replica_has_its_values_and_one_that_is_away_has_no_delay() -> None:
    well = Condition(delay_seconds=3, queue=7, active=2, total=3)
    read = Read(
        [
            ReplicaState("s1", "http://a:1", ReplicaHealth(well)),
            ReplicaState("s1", "http://b:1", ReplicaHealth(None, "it does not answer")),
        ],
        "it has the shard s2",
    )
    a, b = ("loop", "s1", "http://a:1"), ("loop", "s1", "http://b:1")
    assert values(("loop", read, ["http://b:1"]), ("not yet", None, [])) == {
        ("sluice_replica_frozen", *a): 0.0,
        ("sluice_replica_frozen", *b): 1.0,
        ("sluice_replica_healthy", *a): 1.0,
        ("sluice_replica_answers", *a): 1.0,
        ("sluice_replica_delay_seconds", *a): 3.0,
        ("sluice_replica_queue", *a): 7.0,
        ("sluice_replica_missing", *a): 1.0,
        ("sluice_replica_healthy", *b): 0.0,
        ("sluice_replica_answers", *b): 0.0,
        ("sluice_cluster_differs", "loop"): 1.0,
    }
