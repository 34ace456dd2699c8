"""What the doctor says of tables that keep one of equal rows (R22)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sluice.clickhouse.schema import TableFacts
from sluice.core.load_spec import LINEAGE_TYPES
from sluice.ops.doctor import past_windows
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.doctor_tables import check_delivery, check_entry, check_table
from tests.config.support import MINIMAL, findings_of, load_text
from tests.ops.doctor_facts import FACTS, NEEDS, NEW, bad

KEY = ", ".join(LINEAGE_TYPES)
KEPT = replace(
    FACTS,
    engine="ReplicatedReplacingMergeTree",
    engine_full=f"ReplicatedReplacingMergeTree('/t', 'r') ORDER BY (id, {KEY})",
    sorting_key=f"id, {KEY}",
    window_blocks=0,
)
LAST = replace(
    KEPT,
    engine_full="ReplicatedReplacingMergeTree('/t', 'r', _offset, gone) ORDER BY id "
    "SETTINGS allow_experimental_replacing_merge_with_cleanup = 1",
    sorting_key="id",
)


def examined(folder: Path, more: str, facts: TableFacts = KEPT) -> dict[str, Finding]:
    configuration = load_text(folder, MINIMAL + more)
    (entry,) = configuration.tables
    found = Examination("here")
    needs = replace(NEEDS, window=("default", "orders") not in past_windows(configuration))
    check_table(found, facts, NEW, needs)
    check_entry(found, facts, NEW, entry)
    check_delivery(found, facts, configuration, entry)
    return bad(found)


def test_such_a_table_needs_no_window(tmp_path: Path) -> None:
    assert examined(tmp_path, 'delivery = "replacing"\n') == {}


def test_it_is_proposed_where_the_table_is_refused_for_its_window(tmp_path: Path) -> None:
    found = examined(tmp_path, "")
    assert found["window"].level == "error"
    assert found["delivery"].level == "warning"
    assert found["delivery"].fix == 'delivery = "replacing" in its [[table]]'
    # A table that does not fit gets no such advice.
    assert "delivery" not in examined(tmp_path, "", replace(KEPT, sorting_key="id"))


def test_a_table_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    found = examined(tmp_path, 'delivery = "replacing"\n', replace(KEPT, sorting_key="id"))
    assert found["delivery"].level == "error" and "which a repeat changes" in found["delivery"].what


def test_merges_that_take_deleted_keys_out_for_good_are_told(tmp_path: Path) -> None:
    (finding,) = examined(tmp_path, 'delivery = "replacing"\n', LAST).values()
    assert (finding.check, finding.level) == ("cleanup", "warning")
    assert "comes up to 600 s late" in finding.what


def test_what_the_file_refuses(tmp_path: Path) -> None:
    for line, what in (
        ('delivery = "exact"', "exact"),
        ('tombstones = "delete"', 'needs delivery = "replacing"'),
    ):
        (finding,) = findings_of(tmp_path, f"{MINIMAL}{line}\n")
        assert line.partition(" ")[0] in finding and what in finding
