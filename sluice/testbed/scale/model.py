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
#: Of `driver/bundling.py`: a range of a larger part of a full one goes alone; bundles that are
#: loaded at once are not made smaller than this.
BUNDLED_SHARE_MAX = 0.5
BUNDLE_BYTES_MIN = 4 * 1024 * 1024
#: Of `driver/loop.py`: between two rounds, and looks take one part of so many of the loop's time.
#: Of `driver/monitor.py`: between two readings of all windows.
ROUND_SECONDS = 0.05
OBSERVE_SHARE = 10
READ_EVERY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Design:
    """A load, and how it is cut into blocks.

    :param partitions: of all topics together.
    :param entries: table entries that the topics are divided among, each with a table of its own.
    :param brokers: that lead the partitions, each as many.
    :param shards_of_entry: shards that its rows may go to.
    :param max_partitions: of a bundle; 1: each range has blocks of its own.
    :param quorum: replicas that must have a block; 1: no quorum.
    :param clickhouse_partitions: of a block.
    :param ensembles: ZooKeeper ensembles that the shards are divided among.
    """

    name: str
    topics: int
    partitions: int
    entries: int
    brokers: int
    rows_per_second: float
    row_bytes: int
    replicas: int
    shards_of_entry: int
    max_delay_seconds: float
    max_partitions: int = 1_000
    max_messages: int = 250_000
    max_bytes: int = 64 * 1024 * 1024
    quorum: int = 2
    clickhouse_partitions: int = 1
    ensembles: int = 1
    lease_seconds: float = 600.0

    @property
    def full(self) -> int:
        """Rows of a full range, and of a full bundle."""
        return min(self.max_messages, self.max_bytes // self.row_bytes)


@dataclass(frozen=True, slots=True)
class Cut:
    """How the rows become ranges and bundles. A range alone is a bundle of one.

    :param group: partitions that may be loaded together: of one entry, led by one broker, and of
        one driver.
    :param wait_seconds: until the rows of a partition are a range.
    :param members: ranges of a bundle.
    """

    group: float
    wait_seconds: float
    rows_of_range: float
    ranges: float
    members: float
    bundles: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a design needs. Rates are for each second and for all drivers together, unless said.

    :param shards_of_bundle: blocks that a bundle becomes, on average: no block without rows.
    :param parts_of_table: in one table and shard, and so on each of its replicas.
    :param window: deduplication window in which a lost task holds nobody up: what is inserted
        within its lease must stay below half of it.
    :param drivers: processes, each with topics of its own.
    :param slots: of Spark, of all drivers together.
    :param batch_ranges: of a driver; what one job brings back, one transaction settles.
    :param batch_seconds: of the driver's Python, for one such batch.
    :param look_seconds: between two looks at the ends of a driver's partitions.
    :param transaction_bytes: of offsets with metadata in a batch.
    :param offsets_bytes_a_day: into the one partition of __consumer_offsets of a driver's group.
    :param ledger_bytes_a_day: of all drivers, before the client's lz4.
    """

    cut: Cut
    shards_of_bundle: float
    blocks: float
    rows_of_block: float
    parts_of_table: float
    window: int
    zookeeper_calls: float
    drivers: int
    driver_cores: float
    slots: int
    batch_ranges: int
    batch_seconds: float
    look_seconds: float
    transaction_bytes: int
    offsets_bytes_a_day: float
    ledger_bytes_a_day: float
    driver_bytes: float
    worker_bytes: float
    objections: tuple[str, ...]


def estimate(design: Design, constants: Constants, sizes: Sizes) -> Estimate:
    """What the design needs, and what speaks against it."""
    drivers, slots, cut = _drivers(design, constants)
    batch_ranges = _batch_ranges(design, cut, drivers, slots)
    shards_of_bundle = occupied(design.shards_of_entry, cut.rows_of_range * cut.members)
    blocks = cut.bundles * shards_of_bundle
    parts = blocks * design.clickhouse_partitions
    parts_of_table = parts / (design.entries * design.shards_of_entry)
    # A range has a receipt of each block that it has rows in.
    receipts = cut.ranges * occupied(design.shards_of_entry, cut.rows_of_range)
    ledger = sizes.bundled if cut.members > 1 else sizes.alone
    result = Estimate(
        cut=cut,
        shards_of_bundle=shards_of_bundle,
        blocks=blocks,
        rows_of_block=design.rows_per_second / blocks,
        parts_of_table=parts_of_table,
        window=math.ceil(2 * parts_of_table * design.lease_seconds),
        zookeeper_calls=parts * constants.calls(design.replicas, design.quorum),
        drivers=drivers,
        driver_cores=driver_cores(design, cut, drivers, slots, constants),
        slots=slots,
        batch_ranges=batch_ranges,
        batch_seconds=constants.batch + batch_ranges * constants.range,
        look_seconds=look_seconds(design.partitions / drivers, constants),
        # Where little comes, a range is settled by one record and the next one intended by another.
        transaction_bytes=2 * batch_ranges * sizes.offset_send,
        offsets_bytes_a_day=2 * cut.ranges / drivers * sizes.offset_stored * DAY,
        ledger_bytes_a_day=(cut.ranges * ledger.range + receipts * ledger.receipt) * DAY,
        driver_bytes=constants.driver_bytes
        + design.partitions / drivers * constants.partition_bytes
        + constants.jvm_bytes,
        worker_bytes=constants.worker_bytes,
        objections=(),
    )
    return _judged(result, design, constants)


def cut_by(design: Design, drivers: int, slots: int, constants: Constants) -> Cut:
    """How the rows are cut, by as many drivers, each with as many slots of Spark."""
    each = design.rows_per_second / design.partitions
    alone = max(1.0, min(design.full, each * design.max_delay_seconds))
    group = design.partitions / (design.brokers * max(design.entries, drivers))
    if (
        design.max_partitions == 1
        or alone > BUNDLED_SHARE_MAX * design.full
        or group * min(1.0, each * design.max_delay_seconds) <= 1
    ):
        ranges = design.rows_per_second / alone
        return Cut(max(1.0, group), alone / each, alone, ranges, 1.0, ranges)
    # Nobody waits once as many partitions as a block may be of are enough for a whole one.
    enough = design.full * max(1.0, group / design.max_partitions)
    seen = look_seconds(design.partitions / drivers, constants)
    wait = min(design.max_delay_seconds, max(seen, enough / (each * group)))
    rows = max(1.0, each * group * wait)
    members = min(group, rows)
    # What waits is spread over the tasks that can run, unless it is too little for that.
    size = rows * design.row_bytes
    block_bytes = min(design.max_bytes, max(size / slots, BUNDLE_BYTES_MIN))
    parts = max(rows / design.full, members / design.max_partitions, size / block_bytes)
    count = min(members, max(1, math.ceil(parts - 1e-9)))
    ranges = design.rows_per_second / rows * members
    return Cut(group, wait, rows / members, ranges, members / count, ranges * count / members)


def worker_cores(design: Design, cut: Cut, constants: Constants) -> float:
    """Cores that are busy in workers: with rows, with bundles, with their further ranges and
    blocks."""
    blocks = cut.bundles * occupied(design.shards_of_entry, cut.rows_of_range * cut.members)
    return (
        design.rows_per_second * constants.row_worker
        + cut.bundles * constants.range_worker
        + max(0.0, cut.ranges - cut.bundles) * constants.member_worker
        + max(0.0, blocks - cut.bundles) * constants.block_worker
    )


def driver_cores(design: Design, cut: Cut, drivers: int, slots: int, constants: Constants) -> float:
    """Cores that the Python of one driver takes: its looks at the ends, at who is due and at the
    windows; batches, ranges."""
    own = design.partitions / drivers
    looks = own * constants.look / look_seconds(own, constants)
    # The loop goes round again a little after it has come round.
    rounds = own * constants.round / (ROUND_SECONDS + own * constants.round)
    tables = max(1.0, design.entries / drivers) * design.shards_of_entry
    windows = tables * constants.window / READ_EVERY_SECONDS
    jobs = cut.ranges / _batch_ranges(design, cut, drivers, slots)
    work = (jobs * constants.batch + cut.ranges * constants.range) / drivers
    return looks + rounds + windows + work


def look_seconds(partitions: float, constants: Constants) -> float:
    """Between two looks at the ends of so many partitions."""
    return max(ROUND_SECONDS, OBSERVE_SHARE * partitions * constants.look_wall)


def occupied(shards: int, rows: float) -> float:
    """Of so many shards, how many get any of the rows."""
    return max(1.0, shards * (1.0 - math.pow(1.0 - 1.0 / shards, rows)))


def _batch_ranges(design: Design, cut: Cut, drivers: int, slots: int) -> int:
    """A driver's batches are its jobs, of as many tasks as it has slots. A bundle is a task."""
    own = max(1, slots // drivers)
    most = math.ceil(design.partitions / drivers)
    if cut.members > 1:
        return max(1, min(most, int(own * cut.members)))
    share = max(1 / RANGES_OF_TASK, cut.rows_of_range / design.full)
    return max(1, min(most, int(own / share)))


def _drivers(design: Design, constants: Constants) -> tuple[int, int, Cut]:
    """As few as have less than one core of Python each, their slots, and how they cut."""
    drivers = 1
    while True:
        slots, cut = _slots(design, drivers, constants)
        cores = driver_cores(design, cut, drivers, slots, constants)
        if cores <= USED_SHARE or drivers >= design.topics:
            return drivers, slots, cut
        drivers += 1


def _slots(design: Design, drivers: int, constants: Constants) -> tuple[int, Cut]:
    """As few as have room for the work. More slots make smaller bundles, and so more work."""
    slots = 1
    while True:
        cut = cut_by(design, drivers, max(1, slots // drivers), constants)
        wanted = math.ceil(worker_cores(design, cut, constants) / USED_SHARE)
        if wanted <= slots:
            return slots, cut
        slots = wanted


def _judged(found: Estimate, design: Design, constants: Constants) -> Estimate:
    calls = found.zookeeper_calls / design.ensembles
    against = [
        (
            design.shards_of_entry > constants.shards_max,
            f"refused: {design.shards_of_entry:,} shards of an entry, "
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
