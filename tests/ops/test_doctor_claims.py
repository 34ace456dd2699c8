"""What the doctor says where events are deduplicated."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.claims.port import StoreFacts
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts
from sluice.config import load
from sluice.core.claim_notes import STALE_MS, Part, Space, Writer, waiting_for
from sluice.core.claims import Deduplicate
from sluice.core.load_spec import Column, LoadSpec
from sluice.ops.claims import read_claims_status
from sluice.ops.doctor import examine
from sluice.ops.doctor_claims import (
    check_deduplicated,
    check_leases,
    check_room,
    check_store,
    why_claims_go,
)
from sluice.ops.doctor_decode import answer
from sluice.ops.doctor_findings import Examination, Finding
from tests.cli.support import run
from tests.decode.keys.support import keyed_table
from tests.ops.claims_scene import Claiming
from tests.ops.doctor_facts import ENTRY, FACTS, bad, plain
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka

HOURS = Deduplicate(("id",), 2 * 3600, "shop/shop.orders")
KEYED = replace(ENTRY, deduplicate=HOURS)
STORE = StoreFacts("0123456789abcdef", 1000, 50_000, 100_000_000)


@pytest.fixture
def claiming(
    kafka: Kafka, tmp_path: Path, embedded: Server, embedded_url: str
) -> Iterator[Claiming]:
    for database in fresh_database(embedded_url):
        made = Claiming(kafka, tmp_path, embedded, database)
        yield made
        made.close()


def found_in(facts: TableFacts) -> dict[str, Finding]:
    found = Examination("here")
    check_deduplicated(found, facts, KEYED)
    return bad(found)


def test_a_good_table_is_in_order() -> None:
    assert found_in(FACTS) == {}
    found = Examination("here")
    check_deduplicated(found, FACTS, ENTRY)
    assert found.findings == []


@pytest.mark.parametrize(
    ("changes", "levels", "what"),
    [
        ({"engine": "SummingMergeTree"}, {"deduplicate", "deduplicate-probe"}, "merges rows"),
        (
            {"engine": "ReplacingMergeTree", "sorting_key": "day"},
            {"deduplicate", "deduplicate-probe"},
            "sorting key has no",
        ),
        (
            {"engine": "ReplacingMergeTree", "sorting_key": "day, id"},
            {"deduplicate-probe"},
            "sorting key",
        ),
        (
            {"engine_full": "MergeTree ORDER BY id TTL d + toIntervalHour(1)"},
            {"deduplicate", "deduplicate-probe"},
            "TTL",
        ),
        (
            {"engine_full": "MergeTree ORDER BY id TTL d + toIntervalDay(1)"},
            {"deduplicate-probe"},
            "TTL",
        ),
        (
            {"engine_full": "MergeTree ORDER BY id TTL d"},
            {"deduplicate", "deduplicate-probe"},
            "TTL",
        ),
    ],
)
def test_rows_that_go_take_their_claims_with_them(
    changes: dict[str, str], levels: set[str], what: str
) -> None:
    found = found_in(plain(**changes))
    assert found.keys() == levels
    assert all(each.level == "warning" and what in each.what for each in found.values())


def test_a_row_has_to_say_of_which_message_it_is() -> None:
    columns = tuple(column for column in FACTS.columns if column.name != "_source")
    lacking = found_in(plain(columns=columns))["deduplicate"]
    assert (lacking.level, "ADD COLUMN `_source`" in lacking.fix) == ("error", True)
    number = found_in(plain(columns=(*columns, Column("_source", "UInt64"))))["deduplicate"]
    assert (number.level, "UInt64" in number.what) == ("error", True)


def test_replacing_that_takes_deleted_rows_out() -> None:
    facts = plain(
        engine="ReplacingMergeTree",
        engine_full="ReplacingMergeTree(version, is_deleted)",
        sorting_key="id, _topic, _partition, _offset, _row, _source",
    )
    assert "deleted rows" in why_claims_go(facts, HOURS)


def test_what_a_store_loses_is_a_warning() -> None:
    found = Examination("store")
    check_store(found, replace(STORE, loses="a power failure: the last second"))
    (warning,) = bad(found).values()
    assert (warning.level, "the last second" in warning.what) == ("warning", True)
    found = Examination("store")
    check_store(found, STORE)
    assert bad(found) == {}


@pytest.mark.parametrize(
    ("facts", "rows", "is_short"),
    [
        (STORE, 100_000, False),
        (STORE, 950_000, True),
        (replace(STORE, keys=200_000, used_bytes=10_000_000), 950_000, False),
        (replace(STORE, keys=200_000, used_bytes=10_000_000), 2_000_000, True),
        (replace(STORE, keys=1_900_000, used_bytes=95_000_000), 10, True),
        (replace(STORE, max_bytes=None), 1 << 40, False),
    ],
)
def test_whether_a_window_fits(facts: StoreFacts, rows: int, is_short: bool) -> None:
    found = Examination("store")
    check_room(found, facts, rows)
    assert bool(bad(found)) == is_short


def test_pipelines_of_one_scope_have_one_lease() -> None:
    found = Examination("store")
    check_leases(found, {"billing/dc1": 600_000}, 60_000)
    (warning,) = bad(found).values()
    assert warning.level == "warning"
    assert "billing/dc1 claims in the same scope with a lease of 600 s" in warning.what
    found = Examination("store")
    check_leases(found, {}, 60_000)
    assert bad(found) == {} and len(found.findings) == 1


def test_the_key_is_tried_in_the_engine() -> None:
    good = keyed_table(Column("id", "UInt64"), key=("id",))
    spec = LoadSpec("shop", "dc1", "x", 1, (good,))
    checks = {each.check: each for each in answer({"specs": [spec.canonical()], "keys": []})}
    assert checks["deduplicate-key"].level == "ok"
    wrong = replace(good, deduplicate=replace(HOURS, key=("rand() + id",)))
    spec = replace(spec, tables=(wrong,))
    checks = {each.check: each for each in answer({"specs": [spec.canonical()], "keys": []})}
    assert (checks["deduplicate-key"].level, "rand" in checks["deduplicate-key"].what) == (
        "error",
        True,
    )


def test_a_whole_pipeline_is_examined(claiming: Claiming) -> None:
    checks = {each.check: each for each in examine(claiming.configuration)}
    assert {"claims", "claims-kept", "claims-room", "deduplicate", "deduplicate-key"} <= set(checks)
    assert checks["claims"].level == "ok"
    assert checks["deduplicate"].level == "ok"


def test_a_store_that_cannot_be_used_is_an_error(claiming: Claiming) -> None:
    folder = claiming.path.parent / "sluice-claims"
    folder.mkdir()
    (folder / "stranger").write_text("x")
    checks = {each.check: each for each in examine(claiming.configuration)}
    assert (checks["claims"].level, checks["claims"].passing) == ("error", False)
    assert "stranger" in checks["claims"].what


def test_a_store_that_is_away_passes(claiming: Claiming) -> None:
    text = claiming.path.read_text().replace('"local"', '"redis://127.0.0.1:1"')
    claiming.path.write_text(text)
    checks = {each.check: each for each in examine(load(claiming.path, {}))}
    assert (checks["claims"].level, checks["claims"].passing) == ("error", True)


def test_status_says_how_the_store_is_doing(
    claiming: Claiming, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(capsys, "status", str(claiming.path))
    last = ended.out.strip().splitlines()[-1]
    assert ended.status == 0
    assert last.startswith("claims: local:")
    assert last.endswith("waits: nobody has claimed in it yet")
    now_ms = time.time_ns() // 1_000_000
    with claiming.store() as store:
        space = Space(store.run(), now_ms)
        part = Part(f"{claiming.pipeline}/{claiming.database}.orders/0a1b", "d.orders", 60)
        store.keep({f"space {part.name}": space.written()}, store.run())
    assert run(capsys, "status", str(claiming.path)).out.strip().endswith("bytes; open")
    with claiming.store() as store:
        gone = Part(part.space, "d.gone", 60)
        store.keep({f"space {gone.name}": Space("before", now_ms - 1).written()}, store.run())
    said = run(capsys, "status", str(claiming.path)).out.strip()
    scope = f"{claiming.pipeline}/{claiming.database}.orders"
    assert said.endswith(f"open; {scope} lacks claims of d.gone, which nobody loads now")
    text = claiming.path.read_text().replace('"local"', '"redis://127.0.0.1:1"')
    claiming.path.write_text(text)
    away = read_claims_status(load(claiming.path, {}))
    assert away is not None
    assert "cannot be used" in away.line()


@pytest.mark.parametrize(
    ("run", "alive_ms", "why"),
    [
        ("now", 1_000_000, ""),
        ("before", 1_000_000, "started again"),
        ("now", 1_000_000 - STALE_MS - 1000, "no driver keeps it up, for 61 s"),
        ("", 0, "nobody has claimed"),
    ],
)
def test_what_a_scope_waits_for(run: str, alive_ms: int, why: str) -> None:
    notes = {
        f"space {Part('a/b/0123', 'd.t', 60).name}": Space(run, alive_ms).written(),
        f"space {Part('a/b/c/0123', 'd.t', 60).name}": Space("now", 1_000_000).written(),
        "writer a/b/c run-1": Writer("a/b/c", "now", True, 1_000_000, 60, ()).written(),
    }
    found = waiting_for(notes, "now", ["a/b"], 1_000_000)
    assert bool(found["a/b"]) == bool(why)
    assert why in found["a/b"]
