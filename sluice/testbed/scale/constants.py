"""What was measured, each with the command that measured it; and what is only assumed.

2 cores shared with the broker, the server and other work: other machines are a little better or
worse. What decides at scale are the orders of magnitude.
"""

from __future__ import annotations

from dataclasses import dataclass

_SMALL = "sluice bench --reader native --partial-ranges --partitions 1000 --rows 256"
_BATCH = "python -m tests.driver.batch_cost --partitions 1000"
_ROUND = "sluice bench --rounds 1 --partitions 1000 --rows 1000"
_FEW = "sluice bench --rates 100 --rows 100 --range-messages 1"
_LARGE = "sluice bench --reader native"
_TABLES = "sluice bench --rates 20 --rows 80 --range-messages 5 --tables 100"
_IDLE = "python -m tests.driver.round_cost --partitions 10000"
_CALLS = "python -m sluice.testbed.local.cluster.zookeeper_calls"


@dataclass(frozen=True, slots=True)
class Measured:
    """One number.

    :param command: what measured it; "" for what is assumed.
    """

    value: float
    unit: str
    what: str
    command: str = ""


#: By field of `Constants`. `window` is what 99 more tables took of an idle driver: 3.9 % of a core
#: instead of 1.5 % (docs/PERFORMANCE.md, "Driver CPU against partitions and tables").
MEASURED: dict[str, Measured] = {
    "batch": Measured(0.017, "s", "driver's Python: a transaction and its Spark job", _FEW),
    "range": Measured(110e-6, "s", "driver's Python: a range, planned to settled", _BATCH),
    "look": Measured(1.7e-6, "s", "driver's Python: the last stable offset of a partition", _BATCH),
    "look_wall": Measured(4e-6, "s of wall time", "the same, waited for", _BATCH),
    "round": Measured(3.8e-6, "s", "driver's Python: a partition that waits, in a round", _IDLE),
    "window": Measured(240e-6, "s", "driver's Python: a table in a shard, each second", _TABLES),
    "row_worker": Measured(0.71e-6, "s", "a worker: a row of 193 bytes", _LARGE),
    "range_worker": Measured(0.0165, "s", "a worker: a range with its first block", _SMALL),
    "member_worker": Measured(200e-6, "s", "a worker: a further range of a bundle"),
    "block_worker": Measured(0.005, "s", "a worker: a further block of a range or bundle"),
    "driver_bytes": Measured(152e6, "bytes", "driver's Python with few partitions", _LARGE),
    "partition_bytes": Measured(12e3, "bytes", "driver's Python: a partition more", _SMALL),
    "jvm_bytes": Measured(526e6, "bytes", "driver's JVM, heap of 512 MB", _ROUND),
    "worker_bytes": Measured(540e6, "bytes", "a worker at its peak, blocks of 50 MB", _LARGE),
    "calls_first": Measured(16.7, "calls", "ZooKeeper: a block of one partition", _CALLS),
    "calls_replica": Measured(18.6, "calls", "the same: each further replica", _CALLS),
    "calls_quorum": Measured(12.4, "calls", "the same: two replicas, a quorum of two", _CALLS),
    "calls_quorum_replica": Measured(2.7, "calls", "the same: each further replica", _CALLS),
    "shards_max": Measured(256, "shards", "of an entry, by the configuration", "sluice doctor"),
    "rows_of_block_min": Measured(1000, "rows", "fewer are not worth a part"),
    "parts_of_table_max": Measured(1.0, "parts/s", "in a table and shard, for merges to keep up"),
    "calls_max": Measured(10_000, "calls/s", "of one ZooKeeper ensemble of three"),
}


@dataclass(frozen=True, slots=True)
class Constants:
    """The values of `MEASURED`, by its names."""

    batch: float
    range: float
    look: float
    look_wall: float
    round: float
    window: float
    row_worker: float
    range_worker: float
    member_worker: float
    block_worker: float
    driver_bytes: float
    partition_bytes: float
    jvm_bytes: float
    worker_bytes: float
    calls_first: float
    calls_replica: float
    calls_quorum: float
    calls_quorum_replica: float
    shards_max: float
    rows_of_block_min: float
    parts_of_table_max: float
    calls_max: float

    def calls(self, replicas: int, quorum: int) -> float:
        """ZooKeeper calls of all replicas together, for a block of one ClickHouse partition."""
        further = replicas - 1
        calls = self.calls_first + further * self.calls_replica
        if quorum > 1:
            calls += self.calls_quorum + max(0, further - 1) * self.calls_quorum_replica
        return calls


def measured_constants() -> Constants:
    """What was measured here."""
    return Constants(**{name: measured.value for name, measured in MEASURED.items()})
