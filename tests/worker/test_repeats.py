"""What a worker looks at before and after it sends a block that may be stored already, at a real
server: the driver's look may be as old as the lease."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.http import Server
from sluice.clickhouse.reactions import error_from_reply, reply_lost
from sluice.clickhouse.schema import describe_table
from sluice.clickhouse.window import read_server_run
from sluice.core.errors import InDoubtError
from sluice.core.server_runs import is_same_run
from sluice.kafka.clients import KafkaAccess
from sluice.testbed.local.running import ClickHouse, running_clickhouse, running_program
from sluice.worker import inserting
from sluice.worker.assignment import TaskEnvironment
from sluice.worker.errors import (
    BlockRefusedError,
    ForgottenError,
    NeedsReservationError,
    OtherVersionError,
)
from sluice.worker.failover import FailoverAttempt
from sluice.worker.worker_cache import WorkerCache
from tests.clickhouse.helpers import ProfiledServer
from tests.support.block_loader import ROWS, Loader
from tests.support.guarded import GuardedClickHouse


@pytest.fixture
def loader(embedded_server: ClickHouse) -> Iterator[Loader]:
    """Its blocks may all be repeats; their table has a view that writes to `sums`."""
    made = make_loader(embedded_server)
    yield made
    with Server(embedded_server.url) as server:
        for table in (f"{made.table}_view", f"{made.table}_sums", made.table):
            server.execute(f"DROP TABLE {table}")


def make_loader(running: ClickHouse, window: int = 100) -> Loader:
    table = f"t{uuid.uuid4().hex[:8]}"
    columns = "id UInt64, _topic String, _partition UInt32, _offset UInt64, _row UInt32"
    with Server(running.url) as server:
        for name, engine in (
            (table, "MergeTree"),
            (f"{table}_sums", "MergeTree PARTITION BY id % 10"),
        ):
            server.execute(
                f"CREATE TABLE {name} ({columns}) ENGINE = {engine} ORDER BY id "
                f"SETTINGS non_replicated_deduplication_window = {window}"
            )
        server.execute(
            f"CREATE MATERIALIZED VIEW {table}_view TO {table}_sums AS "
            f"SELECT * REPLACE (intDiv(id, 1000) AS id) FROM {table}"
        )
        loader = Loader([running], table, "", (running.url,))  # type: ignore[list-item]
        loader.servers_then = {"s1": read_server_run(server)}
    loader.is_first = False
    return loader


def stored(loader: Loader) -> tuple[int, int]:
    """Rows of the table, and of what its view writes to."""
    with Server(loader.urls[0]) as server:
        counts = [
            server.query(f"SELECT count() AS n FROM {table}")[0]["n"]
            for table in (loader.table, f"{loader.table}_sums")
        ]
    return counts[0], counts[1]


def test_a_repeat_that_all_windows_remember_is_sent(loader: Loader) -> None:
    for _ in range(2):
        loader.blocks = 0
        loader.insert()
    assert stored(loader) == (ROWS, ROWS)


def test_a_repeat_is_not_sent_once_the_window_of_a_view_moved(loader: Loader) -> None:
    with Server(loader.urls[0]) as server:
        for number in range(6):  # ten entries each, of which half of a hundred may be between
            rows = ", ".join(f"({10 * number + row})" for row in range(10))
            server.execute(f"INSERT INTO {loader.table}_sums (id) VALUES {rows}")
    with pytest.raises(ForgottenError, match=f"{loader.table}_sums on .* may not remember it"):
        loader.insert()
    assert stored(loader) == (0, 60)
    loader.is_first = True
    loader.insert()
    assert stored(loader) == (ROWS, 60 + ROWS)


def test_a_repeat_is_not_sent_where_a_merge_may_have_taken_what_a_window_knows(
    embedded_server: ClickHouse,
) -> None:
    made = make_loader(embedded_server)
    name = f"of_{made.table}"  # of the engine's `default` it does not say when tables were altered
    sums = f"{name}.sums"
    with Server(embedded_server.url) as server:
        server.execute(f"CREATE DATABASE {name}")
        server.execute(
            f"CREATE TABLE {sums} (id UInt64, amount Int64) ENGINE = SummingMergeTree ORDER BY id "
            "SETTINGS non_replicated_deduplication_window = 100"
        )
        server.execute(
            f"CREATE MATERIALIZED VIEW {name}.v TO {sums} AS SELECT id FROM default.{made.table}"
        )
        made.seconds_old = -100  # first sent more than a minute after the table was made
        with pytest.raises(ForgottenError, match=f"{sums} on .* may have lost what its window"):
            made.insert()
        server.execute(f"ALTER TABLE {sums} MODIFY SETTING remove_empty_parts = 0")
        made.insert()
        assert stored(made)[0] == ROWS
        made.seconds_old = 0  # while the table may have been as it was before
        with pytest.raises(ForgottenError, match="before the table was last altered"):
            made.insert()
        assert stored(made)[0] == ROWS
        server.execute(f"DROP DATABASE {name}")
        for table in (f"{made.table}_view", f"{made.table}_sums", made.table):
            server.execute(f"DROP TABLE {table}")


def refused_by_its_view(loader: Loader) -> BlockRefusedError:
    """What the first attempt at a block is told whose view throws for a value of it."""
    with Server(loader.urls[0]) as server:
        server.execute(
            f"ALTER TABLE {loader.table}_view MODIFY QUERY "
            f"SELECT * REPLACE (id + throwIf(id >= 0) AS id) FROM {loader.table}"
        )
    loader.is_first = True
    with pytest.raises(BlockRefusedError, match="the server answered the same block 3") as refused:
        loader.insert()
    assert stored(loader) == (ROWS, 0)
    return refused.value


def test_a_refused_block_whose_rows_a_profile_hides_is_not_unstored(loader: Loader) -> None:
    """It would be parked, and its replay would double the rows."""
    user = loader.cache.servers[loader.urls[0]] = ProfiledServer(loader.urls[0])
    user.profile = {
        "additional_table_filters": f"{{'default.{loader.table}': '_offset > 1000000000'}}"
    }
    refused = refused_by_its_view(loader)
    assert not refused.is_unstored and f"has {ROWS} rows of" in str(refused)


def test_a_refusal_is_final_where_rows_cannot_be_counted(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a large table that is not sorted by lineage it takes too long each time."""
    monkeypatch.setattr(inserting, "PRESENT_TIMEOUT_SECONDS", 1e-6)
    refused = refused_by_its_view(loader)
    assert not refused.is_unstored and "nobody knows what" in str(refused)


def test_seconds_count_in_the_worker_too(loader: Loader, monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded engine has no Replicated tables, whose windows forget by time."""
    monkeypatch.setattr(
        inserting,
        "describe_table",
        lambda *where: replace(describe_table(*where), window_seconds=600),
    )
    loader.seconds_old = 290
    loader.insert()
    loader.seconds_old = 310
    with pytest.raises(ForgottenError, match="may not remember it"):
        loader.insert()


def test_what_a_block_takes_behind_a_view_is_held_to_its_reservation(loader: Loader) -> None:
    """The server says that it takes more; a repeat with the reservation that it needs completes
    it."""
    with Server(loader.urls[0]) as server:
        server.execute(f"ALTER TABLE {loader.table}_view MODIFY QUERY SELECT * FROM {loader.table}")
    with pytest.raises(NeedsReservationError) as refused:
        loader.insert()
    assert (refused.value.need.entry, refused.value.need.entries) == (loader.table, 2)
    assert refused.value.need.views
    assert stored(loader) == (ROWS, 0)
    loader.blocks, loader.reservation = 0, 16
    loader.insert()
    assert stored(loader) == (ROWS, ROWS)


def test_an_answer_after_the_server_was_started_again_is_not_believed(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended between the look and the block, or while it stored the one before."""
    runs = [loader.servers_then["s1"], "another@1"]
    monkeypatch.setattr(inserting, "read_server_run", lambda server: runs.pop(0))
    with pytest.raises(ForgottenError, match="has the block, and that server was started again"):
        loader.insert()
    assert runs == []
    assert stored(loader) == (ROWS, ROWS)


def test_a_block_is_not_sent_again_to_a_server_that_was_started_again(tmp_path: Path) -> None:
    with running_clickhouse(tmp_path) as running:
        loader = make_loader(running)
        loader.insert()
        running.stop()
        running.start()
        loader.blocks = 0
        with pytest.raises(InDoubtError, match="was started again"):
            loader.insert()
        assert stored(loader) == (ROWS, ROWS)
        with Server(running.url) as server:
            assert not is_same_run(loader.servers_then["s1"], read_server_run(server))
            loader.servers_then = {"s1": read_server_run(server)}
        loader.insert()
        with Server(running.url) as server:
            assert is_same_run(loader.servers_then["s1"], read_server_run(server))


def test_an_error_that_may_lack_a_part_is_reported_whatever_becomes_of_the_block(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [
        reply_lost("u", "insert", "CONNECTION_LOST", "cut", False),
        error_from_reply(
            url="u",
            what="insert",
            status=500,
            header_code="1001",
            text="Code: 1001. filesystem error: in rename",
            read_only=False,
        ),
    ]

    def insert(*_: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(Server, "insert", insert)
    for may_lack_part in (False, True):
        loader.cache.begin_range()
        with pytest.raises(InDoubtError):
            loader.insert()
        assert loader.cache.may_lack_part is may_lack_part


def test_servers_that_know_blocks_by_other_hashes_have_other_profiles(tmp_path: Path) -> None:
    """So a block in doubt at one of them is not offered to the other, of one version."""
    program = GuardedClickHouse(tmp_path / "clickhouse" / "data")
    told = []
    for hashes in ("old_separate_hashes", "new_unified_hash"):
        program.more = f"<insert_deduplication_version>{hashes}</insert_deduplication_version>"
        with running_program(program) as own:
            access = ClickHouseAccess({"s1": (own.url,)}, "default", "", "single")
            environment = TaskEnvironment("p", KafkaAccess("dc1", "127.0.0.1:1"), access, {})
            profile = WorkerCache().profile(environment, own.url, 1, deduplicates=True)
            assert str(profile) == f"{profile.version} with tokens and {hashes}"
        told.append(str(profile))
    attempt = FailoverAttempt(30.0)
    attempt.admit("http://a", told[0])
    attempt.doubt = InDoubtError("no answer")
    with pytest.raises(OtherVersionError, match="new_unified_hash"):
        attempt.admit("http://b", told[1])
