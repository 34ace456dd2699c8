"""A log that is cut below what was loaded, and filled again with other messages.

As after an unclean leader election, or a power failure of the last replica in sync: here the last
batches of a partition's file are removed while its broker is down.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.core.ranges import EpochOffset, Range, TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.errors import RangeVanishedError, UnreadRangeError
from sluice.kafka.log import Cuts, SourceLog, find_cuts
from sluice.kafka.reader import Wanted
from sluice.kafka.readers import Reader, make_reader
from sluice.kafka.recorder import RENEWED_AFTER_SECONDS
from sluice.testbed.local.running import Broker
from tests.support.world import Truth, World, assert_exact, wait_for

CUT = 500


def cut_log(broker: Broker, topic: str, offset: int) -> None:
    """Remove a partition's batches from an offset on; the broker is down."""
    folder = broker.folder / "log" / f"{topic}-0"
    (segment,) = folder.glob("*.log")
    held, at = segment.read_bytes(), 0
    while at < len(held):
        base, length = struct.unpack_from(">qi", held, at)
        if base >= offset:
            break
        at += 12 + length
    assert base == offset, "no batch begins there"
    segment.write_bytes(held[:at])
    for index in (*folder.glob("*.index"), *folder.glob("*.timeindex"), *folder.glob("*.snapshot")):
        index.unlink()
    # So that the broker looks at its logs, as after a loss of power.
    for kept in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (Path(broker.folder) / "log" / kept).unlink(missing_ok=True)
    (broker.folder / "log" / "replication-offset-checkpoint").unlink(missing_ok=True)


def fill(world: World, truth: Truth) -> None:
    """Two batches, so that the log can be cut between them."""
    for first in (0, CUT):
        world.produce("orders", CUT, truth, partitions=1, first=first)


@pytest.mark.long
@pytest.mark.parametrize("reader", ["librdkafka", "native"])
def test_it_was_cut_while_no_driver_ran(fragile_world: World, reader: str) -> None:
    """500 messages were never loaded, and audit and verify found nothing."""
    world = fragile_world
    world.create_topic("orders", 1)
    world.create_table("orders")
    before, after = Truth(), Truth()
    fill(world, before)
    configuration = world.configure({"orders": ["orders"]}, connector=f'reader = "{reader}"')
    world.drain(configuration)
    world.broker.stop()
    cut_log(world.broker, "orders", CUT)
    world.broker.start()
    world.produce("orders", 900, after, partitions=1, first=10_000)
    assert after.good[0][0] == (CUT, 10_000)

    stopped = world.run(configuration, "--until-caught-up")
    assert stopped.wait() == 1, stopped.text()[-4000:]
    assert "the log was cut below what is recorded, up to offset 1000 of leader epoch" in (
        stopped.text()
    )
    assert "broker end offset is 500" in stopped.text()
    assert_exact(world, "orders", before)

    # As the hint says.
    world.execute(f"ALTER TABLE orders DELETE WHERE _offset >= {CUT} SETTINGS mutations_sync = 2")
    where = ["--connector", "dc1", "--topic", "orders", "--partition", "0"]
    adopted = world.sluice("adopt", str(configuration), *where, "--offset", str(CUT), "--yes")
    assert adopted.returncode == 0, adopted.stdout + adopted.stderr
    world.drain(configuration)
    now = Truth()
    now.good[0] = sorted(before.good[0])[:CUT] + after.good[0]
    assert_exact(world, "orders", now)


def test_it_was_cut_while_a_driver_ran(fragile_world: World) -> None:
    """Its partition stops, and the others go on; nor is a range read from it that begins before the
    cut, ends behind it, and was recorded before."""
    world = fragile_world
    world.create_topic("orders", 1)
    world.create_topic("others", 1)
    for table in ("orders", "others"):
        world.create_table(table)
    before, others = Truth(), Truth()
    fill(world, before)
    configuration = world.configure({"orders": ["orders"], "others": ["others"]})
    driver = world.run(configuration)
    world.wait_for_rows("orders", 2 * CUT, driver)
    began = time.monotonic()
    settled = '"kind":"settle"'
    wait_for(lambda: settled in str(world.ledger()).replace("'", '"').replace(" ", ""), 60, settled)
    source = TopicPartition("orders", 0)
    recorded = _end(world, source)
    assert recorded.offset == 2 * CUT
    assert find_cuts(_access(world), {source: recorded}) == Cuts()
    world.broker.stop()
    cut_log(world.broker, "orders", CUT)
    world.broker.start()
    world.produce("orders", 900, Truth(), partitions=1, first=10_000)
    # A younger producer is kept although it has lost its broker, and may hang for half a minute.
    wait_for(lambda: time.monotonic() > began + RENEWED_AFTER_SECONDS, 30, "that it is made anew")
    world.produce("others", 900, others, partitions=1, first=20_000)
    words = "the log was cut below what is recorded, up to offset 1000 of leader epoch"
    wait_for(lambda: words in driver.text(), 120, words)
    world.wait_for_rows("others", others.rows, driver)
    driver.signal(15)
    assert driver.wait() == 1, driver.text()[-4000:]
    assert_exact(world, "orders", before)
    assert_exact(world, "others", others)
    assert_no_range_is_read(world, source, recorded)


def test_nothing_is_read_that_came_before_the_log_was_cut(fragile_world: World) -> None:
    """A consumer that goes on with the next range has its messages already: those that were cut off
    since, while the leader that vouches for this range has others there."""
    world = fragile_world
    world.create_topic("orders", 1)
    fill(world, Truth())
    source = TopicPartition("orders", 0)
    ways = [KafkaAccess("dc1", world.broker.brokers, {}, each) for each in ("librdkafka", "native")]
    before, kept = _end(world, source), [make_reader(access) for access in ways]
    for reader in kept:
        assert len(_values(reader, Range(source, 0, 400), before.epoch)) == 400
    world.broker.stop()
    cut_log(world.broker, "orders", CUT)
    world.broker.start()
    world.produce("orders", 900, Truth(), partitions=1, first=10_000)
    wait_for(lambda: _end(world, source).offset == CUT + 900, 30, "the second filling")
    now = _end(world, source)
    assert now.epoch > before.epoch
    following = Range(source, 400, 800)
    for access, reader in zip(ways, kept, strict=True):
        new = make_reader(access)
        assert find_cuts(access, {source: EpochOffset(following.begin, before.epoch)}) == Cuts()
        assert _values(reader, following, now.epoch) == _values(new, following, now.epoch)
        reader.close()
        new.close()


def _values(reader: Reader, block_range: Range, epoch: int) -> list[bytes]:
    values: list[bytes] = []
    wanted = [Wanted(block_range, epoch)]
    reader.read_ranges(wanted, 1 << 30, lambda found, _: values.extend(found))
    return values


def assert_no_range_is_read(world: World, source: TopicPartition, recorded: EpochOffset) -> None:
    """Of the epoch that was recorded, from the log that was filled again."""
    wait_for(lambda: _end(world, source).offset == CUT + 900, 30, "the second filling")
    now = _end(world, source)
    assert now.epoch > recorded.epoch
    access = _access(world)
    assert "broker end offset is 500" in find_cuts(access, {source: recorded}).found[source]
    assert find_cuts(access, {source: EpochOffset(CUT, recorded.epoch)}) == Cuts()
    assert find_cuts(access, {source: now}) == Cuts()
    for name in ("librdkafka", "native"):
        reader = make_reader(KafkaAccess("dc1", world.broker.brokers, reader=name))

        def deliver(values: list[bytes], offsets: Sequence[int]) -> None:
            """Nobody looks."""

        def read(begin: int, end: int, epoch: int) -> int:
            wanted = [Wanted(Range(source, begin, end), epoch)]
            return reader.read_ranges(wanted, 1 << 30, deliver)[0].messages  # noqa: B023

        assert read(0, CUT, recorded.epoch) == CUT
        assert read(400, 800, now.epoch) == 400
        with pytest.raises(UnreadRangeError) as unread:
            read(400, 800, recorded.epoch)
        assert isinstance(unread.value.reason, RangeVanishedError)
        assert "the log was cut, and filled again" in str(unread.value.reason)
        reader.close()


def _access(world: World) -> KafkaAccess:
    return KafkaAccess("dc1", world.broker.brokers)


def _end(world: World, source: TopicPartition) -> EpochOffset:
    admin = make_admin(_access(world))
    until = time.monotonic() + 30
    while source.topic not in admin.list_topics(timeout=10).topics:
        assert time.monotonic() < until, f"no topic {source.topic}"
    return SourceLog(admin).epoch_ends([source])[source]
