"""Claims against the tables of a real server, in a real store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sluice.claims.owners import NOBODY, Owners
from sluice.clickhouse.http import Server
from sluice.core.errors import ConfigurationError, TransientError
from sluice.core.load_spec import TableSpec
from sluice.driver.claims_rebuild import RebuildFailedError
from sluice.driver.claims_rebuild import rebuild as rebuild_elsewhere
from sluice.driver.specs import access_of
from sluice.ops.claims import check, holders, keyed_tables, rebuild
from tests.cli.support import run
from tests.clickhouse.test_recent import age_parts
from tests.ops.claims_scene import WINDOW_SECONDS, Claiming
from tests.support.kafka import Kafka


@pytest.fixture
def claiming(kafka: Kafka, tmp_path: Path, server: Server, database: str) -> Iterator[Claiming]:
    made = Claiming(kafka, tmp_path, server, database)
    yield made
    made.close()


def now_s() -> int:
    return int(time.time())


def rebuilt(claiming: Claiming, since_ms: int | None = None) -> tuple[int, int, int]:
    tables = keyed_tables(claiming.configuration)
    (found,) = rebuild(claiming.configuration, tables, since_ms)
    assert found.entries == ("orders",)
    return found.rows, found.claimed, found.others


def test_lost_claims_are_made_again_for_the_messages_that_had_them(claiming: Claiming) -> None:
    claiming.insert({5: 50, 6: 60})
    claiming.insert({7: 70})
    assert rebuilt(claiming) == (3, 3, 0)
    keys, owners = claiming.keys(50, 60, 70, 80), claiming.owners(5, 6, 7, 9)
    with claiming.store() as store:
        others = claiming.owners(105, 106, 107, 9)
        end = now_s() + 60
        assert (store.claim(keys, others, end, now_s()) == owners).all()
        # For a whole window from now on
        later = now_s() + WINDOW_SECONDS - 60
        assert (store.claim(keys[:3], others[:3], later, later) == owners[:3]).all()
    assert rebuilt(claiming) == (3, 3, 0)


def test_who_has_a_key_keeps_it(claiming: Claiming) -> None:
    claiming.insert({5: 50, 6: 60})
    with claiming.store() as store:
        store.claim(claiming.keys(60), claiming.owners(2), now_s() + 100, now_s())
        assert rebuilt(claiming) == (2, 1, 1)
        found, is_held = holders(store, claiming.keys(50, 60, 70))
        assert is_held.tolist() == [True, True, False]
        assert (found[:2] == claiming.owners(5, 2)).all()


def test_rows_of_others_belong_to_nobody_and_count(claiming: Claiming) -> None:
    claiming.insert({5: 50}, source="by hand")
    assert rebuilt(claiming) == (1, 1, 0)
    with claiming.store() as store:
        found = store.claim(claiming.keys(50), claiming.owners(9), now_s() + 9, now_s())
    assert found.tobytes() == NOBODY


def test_only_what_came_lately_is_claimed(claiming: Claiming) -> None:
    claiming.server.execute(f"SYSTEM STOP MERGES {claiming.database}.orders")
    claiming.insert({5: 50, 6: 60})
    age_parts(claiming.server, claiming.database, "orders", WINDOW_SECONDS + 100)
    claiming.server.execute(f"SYSTEM STOP MERGES {claiming.database}.orders")
    claiming.insert({8: 80})
    assert rebuilt(claiming, (now_s() - 30) * 1000) == (1, 1, 0)
    assert rebuilt(claiming) == (1, 1, 0)
    assert rebuilt(claiming, 0) == (3, 3, 0)


def test_a_question_leaves_no_claim(claiming: Claiming) -> None:
    keys = claiming.keys(50)
    with claiming.store() as store:
        for _ in range(2):
            _, is_held = holders(store, keys)
            assert not is_held.any()
        mine = claiming.owners(5)
        assert (store.claim(keys, mine, now_s() + 100, now_s() - 50) == mine).all()
        found, is_held = holders(store, keys)
        assert is_held.all()
        assert (found == mine).all()


def test_what_is_missing_or_wrong_is_found_and_mended(claiming: Claiming) -> None:
    claiming.insert({4: 40, 5: 50, 6: 60, 7: 70})
    claiming.recorded(5, 8, (now_s() - 60) * 1000)
    tables = keyed_tables(claiming.configuration)
    with claiming.store() as store:
        end = now_s() + WINDOW_SECONDS
        store.claim(claiming.keys(50, 60), claiming.owners(5, 3), end, now_s())
    (found,) = check(claiming.configuration, tables)
    assert (found.rows, found.claimed, found.unclaimed, found.others, found.older) == (
        4,
        1,
        1,
        1,
        1,
    )
    first, second = sorted(found.examples)
    assert first == (f"{claiming.topic}[0] offset 6: offset 3 of partition 0 has its key; id = 60")
    assert second == f"{claiming.topic}[0] offset 7: nobody has its key; id = 70"
    rebuild(claiming.configuration, tables)
    (found,) = check(claiming.configuration, tables)
    assert (found.claimed, found.unclaimed, found.others) == (2, 0, 1)


def test_ranges_from_before_the_window_are_not_judged(claiming: Claiming) -> None:
    claiming.insert({5: 50})
    claiming.recorded(5, 8, (now_s() - WINDOW_SECONDS) * 1000)
    (found,) = check(claiming.configuration, keyed_tables(claiming.configuration))
    assert (found.rows, found.older, found.unclaimed) == (1, 1, 0)


def test_the_commands_say_what_they_did(
    claiming: Claiming, capsys: pytest.CaptureFixture[str]
) -> None:
    claiming.insert({5: 50})
    claiming.recorded(5, 6, now_s() * 1000)
    path = str(claiming.path)
    ended = run(capsys, "claims", "check", path)
    assert (ended.status, "nobody has its key; id = 50" in ended.out) == (1, True)
    ended = run(capsys, "claims", "rebuild", path, "--since", "1h", "--json")
    (body,) = json.loads(ended.out)
    assert (ended.status, body["rows"], body["claimed"]) == (0, 1, 1)
    ended = run(capsys, "claims", "check", path, "--table", "orders")
    assert (ended.status, "nobody has its key" in ended.out.split("\n", 1)[1]) == (0, False)


def test_entries_that_deduplicate_nothing_are_no_tables(claiming: Claiming) -> None:
    with pytest.raises(ConfigurationError, match="no table entry"):
        keyed_tables(claiming.configuration, entry="others")
    (keyed,) = keyed_tables(claiming.configuration, "dc1", "orders")
    assert keyed.window_seconds == WINDOW_SECONDS


def made_again(claiming: Claiming, table: TableSpec | None = None) -> None:
    """As a driver has it done, by the table of a load spec."""
    with claiming.store() as store:
        run = store.run()
    access = access_of(claiming.configuration)
    rebuild_elsewhere(claiming.path, access, table or claiming.table, 0, run)


def owners_of_50(claiming: Claiming) -> tuple[Owners, bool]:
    with claiming.store() as store:
        found, is_held = holders(store, claiming.keys(50))
    return found, bool(is_held.all())


def test_a_driver_has_it_done_by_a_process_of_its_own(claiming: Claiming) -> None:
    claiming.insert({5: 50})
    made_again(claiming)
    found, is_held = owners_of_50(claiming)
    assert is_held
    assert (found == claiming.owners(5)).all()


def test_a_driver_hears_why_it_failed(claiming: Claiming) -> None:
    claiming.insert({5: 50})
    access, table = access_of(claiming.configuration), claiming.table
    (claiming.path.parent / "sluice-claims").mkdir()
    (claiming.path.parent / "sluice-claims" / "stranger").write_text("x")
    with pytest.raises(RebuildFailedError, match="stranger"):
        rebuild_elsewhere(claiming.path, access, table, 0, "any@0")
    assert issubclass(RebuildFailedError, TransientError)


def test_an_empty_table_takes_no_process(
    claiming: Claiming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.driver.children.sys.executable", "/nothing")
    made_again(claiming)
    made_again(claiming, replace(claiming.table, table="dropped"))
    made_again(claiming, replace(claiming.table, shards=("gone",)))
    claiming.insert({5: 50})
    with pytest.raises(FileNotFoundError):
        made_again(claiming)


def test_what_the_file_says_by_now_does_not_count(claiming: Claiming) -> None:
    """It may name another table for the entry, or none: claims are of the one that was loaded."""
    claiming.insert({5: 50})
    table = claiming.table
    claiming.server.execute(f"CREATE TABLE {claiming.database}.later AS {table.target}")
    text = claiming.path.read_text()
    entry = f'[[table]]\nname = "orders"\ntopics = ["{claiming.topic}"]\n'
    claiming.path.write_text(text.replace(entry, f'{entry}target = "later"\n'))
    assert claiming.path.read_text() != text
    made_again(claiming, table)
    found, is_held = owners_of_50(claiming)
    assert is_held
    assert (found == claiming.owners(5)).all()


def test_claims_are_not_made_again_in_another_store_than_the_drivers(claiming: Claiming) -> None:
    claiming.insert({5: 50})
    access, table = access_of(claiming.configuration), claiming.table
    with claiming.store() as store:
        run = store.run()
    with pytest.raises(RebuildFailedError, match=f"run {run}, and the driver's is run other@0"):
        rebuild_elsewhere(claiming.path, access, table, 0, "other@0")
    assert not owners_of_50(claiming)[1]


def test_a_large_table_is_read_in_chunks(
    claiming: Claiming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.verify.stored_keys.CHUNK_ROWS", 1000)
    claiming.server.execute(
        f"INSERT INTO {claiming.database}.orders SELECT number, 'x', '{claiming.topic}', 0, "
        f"number, 0, '{claiming.pipeline}/dc1/{claiming.topic_id}/orders/0' FROM system.numbers "
        "LIMIT 200000"
    )
    assert rebuilt(claiming) == (200_000, 200_000, 0)
    with claiming.store() as store:
        found, _ = holders(store, claiming.keys(0, 199_999))
    assert (found == np.concatenate([claiming.owners(0), claiming.owners(199_999)])).all()
