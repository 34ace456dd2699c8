"""What a probe may conclude: one range loaded by hand, then looked for, on the real parts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sluice.clickhouse.vanishing import CannotTellError
from sluice.config import Configuration, load
from sluice.core.errors import TerminalError
from sluice.core.receipts import Failed, Loaded
from sluice.driver.probing import DoubledRowsError
from sluice.driver.specs import read_spec
from tests.support.range_task import Task, time_ms
from tests.support.world import COLUMNS, LINEAGE, Truth, World

MESSAGES = 200
WHOLE = ((0, MESSAGES),)


def produced(world: World, table: str, lineage: str = LINEAGE, more: str = "") -> str:
    """A table, and a topic of good messages. Readers are kept between tests, and the topic that
    one of them has read is another one in the next test."""
    world.execute(
        f"CREATE TABLE {table} ({COLUMNS}, {lineage}) ENGINE = MergeTree {more} ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    topic = f"orders-{table}-{world.name}"
    world.create_topic(topic, 1)
    world.produce(topic, MESSAGES, Truth(), partitions=1)
    return topic


def configured(world: World, entries: list[str], table: str, topic: str) -> Configuration:
    lines = dict.fromkeys(entries, f'target = "{table}"')
    path: Path = world.configure({name: [topic] for name in entries}, settings_of=lines)
    return load(path, {})


def task(configuration: Configuration, topic: str) -> Task:
    return Task(configuration, topic, MESSAGES, read_spec(configuration, "dc1"))


def loaded(one: Task) -> None:
    assert isinstance(outcome := one.load().outcome, Loaded), outcome


def test_two_entries_on_one_table_are_told_apart(world: World) -> None:
    """Of a range the first entry's block landed and the second's did not; or both did."""
    topic = produced(world, "two")
    both = task(configured(world, ["first", "second"], "two", topic), topic)
    first = replace(both, spec=replace(both.spec, tables=both.spec.tables[:1]))
    loaded(first)
    assert both.probe().rest == {"first": (), "second": WHOLE}
    loaded(both)
    found = both.probe()
    assert found.error is None and found.rest == {"first": (), "second": ()}
    assert world.count("two") == 2 * MESSAGES


def test_rows_of_another_pipeline_are_not_ours(world: World) -> None:
    topic = produced(world, "shared")
    ours = configured(world, ["all"], "shared", topic)
    other = replace(ours, pipeline="another")
    loaded(task(other, topic))
    assert task(other, topic).probe().rest == {"all": ()}
    assert task(ours, topic).probe().rest == {"all": WHOLE}


def test_what_was_loaded_before_a_rewind_is_not_what_comes_after_it(world: World) -> None:
    topic = produced(world, "again")
    before = task(configured(world, ["all"], "again", topic), topic)
    loaded(before)
    after = replace(before, generation=1)
    assert after.probe().rest == {"all": WHOLE}
    loaded(after)
    assert after.probe().rest == {"all": ()} == before.probe().rest


def test_without_the_column_a_probe_says_that_it_cannot_tell(world: World) -> None:
    topic = produced(world, "bare", LINEAGE.partition(", _source")[0])
    bare = task(configured(world, ["all"], "bare", topic), topic)
    loaded(bare)
    found = bare.probe()
    assert isinstance(found.error, CannotTellError)
    assert "has no lineage column _source" in str(found.error)
    # Added meanwhile: rows of before say nothing.
    world.execute("ALTER TABLE bare ADD COLUMN _source LowCardinality(String)")
    found = task(configured(world, ["all"], "bare", topic), topic).probe()
    assert isinstance(found.error, CannotTellError)
    assert "nobody can tell who loaded them" in str(found.error)


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("ALTER TABLE gone DELETE WHERE id % 2 SETTINGS mutations_sync = 1", "has changed rows"),
        ("DELETE FROM gone WHERE id % 2", "has changed rows"),
        ("ALTER TABLE gone MODIFY TTL ts + INTERVAL 900 DAY", "a TTL that deletes rows"),
        (
            "ALTER TABLE gone MODIFY SETTING enable_block_number_column = 1, "
            "enable_block_offset_column = 1",
            "takes lightweight updates and deletes",
        ),
    ],
)
def test_rows_that_were_deleted_are_not_missing(world: World, statement: str, why: str) -> None:
    topic = produced(world, "gone")
    one = replace(task(configured(world, ["all"], "gone", topic), topic), since_ms=time_ms())
    loaded(one)
    world.execute(statement)
    found = one.probe()
    assert isinstance(found.error, CannotTellError), found
    assert why in str(found.error)


def test_engines_that_merge_rows_are_not_probed(world: World) -> None:
    topic = "orders-sum"
    world.create_topic(topic, 1)
    world.produce(topic, MESSAGES, Truth(), partitions=1)
    for engine, key, may in (
        ("SummingMergeTree", "user_id", False),
        ("ReplacingMergeTree", "user_id", False),
        ("ReplacingMergeTree", "(id, _topic, _partition, _offset, _row, _source)", True),
    ):
        world.execute("DROP TABLE IF EXISTS sums")
        world.execute(
            f"CREATE TABLE sums ({COLUMNS}, {LINEAGE}) ENGINE = {engine} ORDER BY {key} "
            "SETTINGS non_replicated_deduplication_window = 100"
        )
        one = task(configured(world, ["all"], "sums", topic), topic)
        assert isinstance(one.load(is_first=True).outcome, Loaded)
        world.execute("OPTIMIZE TABLE sums FINAL")
        found = one.probe()
        assert (found.error is None) == may, (engine, found.error)
        assert may is False or found.rest == {"all": ()}


def halves_of(world: World, name: str) -> Task:
    """Each message has three rows, which the server stores in three parts; one that makes no row is
    among them."""
    topic = f"orders-{name}"
    world.execute(
        f"CREATE TABLE {name} (id UInt64, {LINEAGE}) ENGINE = MergeTree PARTITION BY id % 3 "
        "ORDER BY id SETTINGS non_replicated_deduplication_window = 100"
    )
    world.create_topic(topic, 1)

    def three(number: int) -> bytes:
        if number == 7:
            return b""
        return b"\n".join(b'{"id":%d}' % (3 * number + place) for place in range(3))

    world.produce(topic, MESSAGES, Truth(), partitions=1, make=three)
    path = world.configure({name: [topic]}, table_settings='rows = "many"')
    return task(load(path, {}), topic)


def wanted(name: str, world: World) -> None:
    ids = [3 * number + place for number in range(MESSAGES) if number != 7 for place in range(3)]
    found = world.query(f"SELECT groupArray(id) AS ids FROM (SELECT id FROM {name} ORDER BY id)")
    assert list(map(int, found[0]["ids"])) == ids


@pytest.mark.parametrize("lost", [(1,), (0, 2), (), (0, 1, 2)])
def test_messages_of_several_rows_over_clickhouse_partitions(
    world: World, lost: tuple[int, ...]
) -> None:
    """A server that dies between two parts of a block leaves some rows of each message: the others
    are loaded, each once."""
    name = "halves" + "_".join(map(str, lost))
    halves = halves_of(world, name)
    assert isinstance(halves.load(reservation=3).outcome, Loaded)
    for number in lost:
        world.execute(f"ALTER TABLE {name} DROP PARTITION {number}")
    for _ in range(2):  # after a restart of the driver it is looked for again
        found = halves.probe()
        assert found.error is None and found.rest == {name: WHOLE}, found
        outcome = halves.load(reservation=3, rest=found.rest, stored=found.stored).outcome
        assert isinstance(outcome, Loaded), outcome
        wanted(name, world)
    assert len(found.stored[name]) == MESSAGES - 1
    assert outcome.receipts == (), "nothing was missing any more"


def test_a_table_that_is_not_partitioned_any_more_may_have_parts_of_messages(world: World) -> None:
    """A part was lost, and then a table without ClickHouse partitions was put in its place."""
    halves = halves_of(world, "merged")
    assert isinstance(halves.load(reservation=3).outcome, Loaded)
    world.execute("ALTER TABLE merged DROP PARTITION 1")
    world.execute(
        f"CREATE TABLE whole (id UInt64, {LINEAGE}) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    world.execute("INSERT INTO whole SELECT * FROM merged")
    world.execute("DROP TABLE merged")
    world.execute("RENAME TABLE whole TO merged")
    today = replace(halves, spec=read_spec(halves.configuration, "dc1"))
    found = today.probe(in_parts=["merged"])
    assert found.error is None and found.rest == {"merged": WHOLE}, found
    outcome = today.load(rest=found.rest, stored=found.stored).outcome
    assert isinstance(outcome, Loaded), outcome
    wanted("merged", world)


def test_rows_that_its_messages_do_not_make_stop_a_probed_range(world: World) -> None:
    halves = halves_of(world, "strange")
    assert isinstance(halves.load(reservation=3).outcome, Loaded)
    world.execute(
        "INSERT INTO strange SELECT id, _topic, _partition, _offset, _row + 3, _source "
        "FROM strange WHERE _offset = 5 AND _row = 2"
    )
    found = halves.probe()
    outcome = halves.load(reservation=3, rest=found.rest, stored=found.stored).outcome
    assert isinstance(outcome, Failed) and isinstance(outcome.error, TerminalError), outcome
    assert "has 598 rows of these messages, of which they make only 597" in str(outcome.error)


def test_a_row_that_is_there_twice_is_not_probed_away(world: World) -> None:
    halves = halves_of(world, "twice")
    assert isinstance(halves.load(reservation=3).outcome, Loaded)
    world.execute("INSERT INTO twice SELECT * FROM twice WHERE _offset = 5 AND _row = 2")
    assert isinstance(halves.probe().error, DoubledRowsError)
