"""What a design needs: blocks, driver, transactions, ZooKeeper, workers. Pure.

A *design* is a load and how it is cut. All partitions are taken to be alike and busy: the worst for
the driver. Seconds of CPU are those of the machine that the constants were measured on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sluice.core.packing import RANGES_OF_TASK
from sluice.testbed.scale.constants import Constants
from sluice.testbed.scale.sizes import Sizes

#: Share of a core or of a slot that is planned with; the rest is for bursts and repeats.
USED_SHARE = 0.7
DAY = 86_400


@dataclass(frozen=True, slots=True)
class Design:
    """A load, and how it is cut into blocks.

    :param partitions: of all topics together.
    :param shards_of_range: shards that the rows of one range may go to.
    :param shards: that the tables are in, all together.
    :param quorum: replicas that must have a block; 1: no quorum.
    :param clickhouse_partitions: of a block.
    :param ensembles: ZooKeeper ensembles that the shards are divided among.
    """

    name: str
    topics: int
    partitions: int
    rows_per_second: float
    row_bytes: int
    shards: int
    replicas: int
    shards_of_range: int
    max_messages: int
    max_delay_seconds: float
    quorum: int = 2
    clickhouse_partitions: int = 1
    ensembles: int = 1
    lease_seconds: float = 600.0
    range_bytes_max: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a design needs. Rates are for each second and for all drivers together, unless said.

    :param shards_of_block: blocks that a range becomes, on average: no block without rows.
    :param parts_of_table: in one table and shard, and so on each of its replicas.
    :param parts_of_shard: in one shard, all tables.
    :param window: deduplication window in which a lost task holds nobody up: what is inserted
        within its lease must stay below half of it.
    :param drivers: processes, each with topics of its own.
    :param slots: of Spark, of all drivers together.
    :param batch_ranges: of a driver; what one job brings back, one transaction settles.
    :param batch_seconds: of the driver's Python, for one such batch.
    :param look_seconds: between two looks at the ends of a driver's partitions.
    :param transaction_bytes: of offsets with metadata in a batch; `sends` is how many requests.
    :param offsets_bytes_a_day: into the one partition of __consumer_offsets of a driver's group.
    :param ledger_bytes_a_day: of all drivers, before the client's lz4.
    """

    rows_of_range: float
    ranges: float
    shards_of_block: float
    blocks: float
    rows_of_block: float
    parts_of_table: float
    parts_of_shard: float
    window: int
    zookeeper_calls: float
    drivers: int
    driver_cores: float
    slots: int
    batch_ranges: int
    batch_seconds: float
    look_seconds: float
    transaction_bytes: int
    sends: int
    offsets_bytes_a_day: float
    ledger_bytes_a_day: float
    driver_bytes: float
    worker_bytes: float
    objections: tuple[str, ...]


def estimate(design: Design, constants: Constants, sizes: Sizes) -> Estimate:
    """What the design needs, and what speaks against it."""
    each = design.rows_per_second / design.partitions
    full = min(design.max_messages, design.range_bytes_max // design.row_bytes)
    rows_of_range = max(1.0, min(full, each * design.max_delay_seconds))
    ranges = design.rows_per_second / rows_of_range
    shards_of_block = _occupied(design.shards_of_range, rows_of_range)
    blocks = ranges * shards_of_block
    parts = blocks * design.clickhouse_partitions
    tables_in_shards = design.topics * design.shards_of_range
    parts_of_table = parts / tables_in_shards
    slots = max(1, math.ceil(worker_cores(design, ranges, blocks, constants) / USED_SHARE))
    share = max(1 / RANGES_OF_TASK, rows_of_range / full)
    drivers, batch_ranges = _drivers(design, ranges, slots, share, constants)
    jobs = ranges / batch_ranges
    # Where little comes, a range is settled by one record and the next one intended by another.
    transaction_bytes = 2 * batch_ranges * sizes.offset_send
    calls = blocks * design.clickhouse_partitions * constants.calls(design.replicas, design.quorum)
    result = Estimate(
        rows_of_range=rows_of_range,
        ranges=ranges,
        shards_of_block=shards_of_block,
        blocks=blocks,
        rows_of_block=design.rows_per_second / blocks,
        parts_of_table=parts_of_table,
        parts_of_shard=parts / min(design.shards, tables_in_shards),
        window=math.ceil(2 * parts_of_table * design.lease_seconds),
        zookeeper_calls=calls,
        drivers=drivers,
        driver_cores=driver_cores(design.partitions, ranges, jobs, drivers, constants),
        slots=slots,
        batch_ranges=batch_ranges,
        batch_seconds=constants.batch + batch_ranges * constants.range,
        look_seconds=_look_seconds(design.partitions / drivers, constants),
        transaction_bytes=transaction_bytes,
        sends=math.ceil(transaction_bytes / sizes.send_max),
        offsets_bytes_a_day=2 * ranges / drivers * sizes.offset_stored * DAY,
        ledger_bytes_a_day=(ranges * sizes.ledger_range + blocks * sizes.ledger_block) * DAY,
        driver_bytes=constants.driver_bytes
        + design.partitions / drivers * constants.partition_bytes
        + constants.jvm_bytes,
        worker_bytes=constants.worker_bytes,
        objections=(),
    )
    return _judged(result, design, constants)


def worker_cores(design: Design, ranges: float, blocks: float, constants: Constants) -> float:
    """Cores that are busy in workers: with rows, with ranges, with further blocks of a range."""
    return (
        design.rows_per_second * constants.row_worker
        + ranges * constants.range_worker
        + max(0.0, blocks - ranges) * constants.block_worker
    )


def driver_cores(
    partitions: int, ranges: float, jobs: float, drivers: int, constants: Constants
) -> float:
    """Cores that the Python of one driver takes: its looks at the ends, batches, ranges."""
    looks = partitions / drivers * constants.look / _look_seconds(partitions / drivers, constants)
    return looks + (jobs * constants.batch + ranges * constants.range) / drivers


def _drivers(
    design: Design, ranges: float, slots: int, share: float, constants: Constants
) -> tuple[int, int]:
    """As few as have less than one core of Python each, and how many ranges a batch of one has.

    A driver's batches are its jobs, of as many tasks as it has slots.
    """
    drivers = 1
    while True:
        own = max(1, slots // drivers)
        most = math.ceil(design.partitions / drivers)
        batch_ranges = max(1, min(most, int(own / share)))
        cores = driver_cores(design.partitions, ranges, ranges / batch_ranges, drivers, constants)
        if cores <= USED_SHARE or drivers >= design.topics:
            return drivers, batch_ranges
        drivers = min(design.topics, max(drivers + 1, math.ceil(drivers * cores / USED_SHARE / 2)))


def _look_seconds(partitions: float, constants: Constants) -> float:
    """Looks take a tenth of the loop's time at most, and are made every 50 ms at most."""
    return max(0.05, 10 * partitions * constants.look_wall)


def _occupied(shards: int, rows: float) -> float:
    """Of so many shards, how many get any of the rows."""
    return max(1.0, shards * (1.0 - math.pow(1.0 - 1.0 / shards, rows)))


def _judged(found: Estimate, design: Design, constants: Constants) -> Estimate:
    calls = found.zookeeper_calls / design.ensembles
    against = [
        (
            design.shards_of_range > constants.shards_max,
            f"refused: {design.shards_of_range:,} shards of a range, "
            f"{constants.shards_max} are the most",
        ),
        (
            found.rows_of_block < constants.rows_of_block_min,
            f"blocks of {found.rows_of_block:,.0f} rows",
        ),
        (
            found.parts_of_table > constants.parts_of_table_max,
            f"{found.parts_of_table:,.1f} parts/s in each table and shard",
        ),
        (
            calls > constants.calls_max,
            f"{calls:,.0f} calls/s in a ZooKeeper ensemble",
        ),
        (
            found.driver_cores > USED_SHARE,
            f"{found.driver_cores:,.1f} cores of Python in a driver that cannot be divided",
        ),
    ]
    return replace(found, objections=tuple(text for is_so, text in against if is_so))
