"""What of the staging tables a driver drops, and when."""

from __future__ import annotations

from dataclasses import replace

from sluice.clickhouse.access import ClickHouseAccess
from sluice.clickhouse.moving import Claim, PartFacts, left_to_move, moved_parts
from sluice.clickhouse.staging import Marker, StagingTable, attempt_of, marker_name, parsed
from sluice.core.lease import has_expired
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind
from sluice.driver.staging import Settled, StagingCollector, is_settled, to_drop
from tests.driver.loop_world import World

LEASE_MS, NOW_MS = 60_000, 1_800_000_000_000
SOURCE = TopicPartition("a", 3)
MINE = attempt_of(NOW_MS, b"\x01\x02\x03\x04")
OTHER = attempt_of(NOW_MS, b"\x05\x06\x07\x08")
NAME = marker_name("t", "token")
MARKER = Marker(MINE, "", "p/c/topicid/e/1", "a", 3, 100, 200, 5, "sum", NOW_MS)
RUN = "0123456789abcdef"


def table(suffix: str = "") -> StagingTable:
    found = parsed(NAME + suffix)
    assert found is not None
    return found


def drops(now_ms: int, *tables: StagingTable, marker: Marker | None = MARKER) -> list[StagingTable]:
    """Where the range was first seen settled at NOW_MS."""
    markers = {} if marker is None else {NAME: marker}
    return to_drop(tables, markers, {NAME: NOW_MS}, LEASE_MS, now_ms)


def test_names_say_what_they_are_of() -> None:
    claim = Claim(OTHER, 0x1F, RUN)
    assert table().attempt == "" and table().marker == NAME and table().table == "t"
    assert table(f"_{MINE}").claim is None
    claimed = table(f"_{MINE}{claim.suffix}")
    assert (claimed.attempt, claimed.claim) == (MINE, claim)
    behind = table(f"_{MINE}_t12{claim.suffix}")
    assert (behind.attempt, behind.behind, behind.claim) == (MINE, 12, claim)
    assert table(f"_{MINE}_v3").is_view
    assert NOW_MS < claimed.deadline_ms <= NOW_MS + 1000
    assert parsed("t") is None and parsed("t__sluice_x") is None


def test_a_marker_stays_for_a_lease_after_its_range_is_settled() -> None:
    assert drops(NOW_MS + LEASE_MS, table()) == []
    late_ms = NOW_MS + LEASE_MS + 11_000
    assert has_expired(NOW_MS + LEASE_MS, late_ms) and drops(late_ms, table()) == [table()]
    longer = replace(MARKER, deadline_ms=late_ms)
    assert drops(late_ms, table(), marker=longer) == []


def test_a_marker_of_a_range_in_doubt_stays() -> None:
    late_ms = NOW_MS + 100 * LEASE_MS
    assert to_drop([table(), table(f"_{MINE}")], {NAME: MARKER}, {}, LEASE_MS, late_ms) == []


def test_what_was_filled_for_nothing_goes_after_its_lease_and_before_the_marker() -> None:
    mine, other = table(f"_{MINE}"), table(f"_{OTHER}")
    soon_ms, late_ms = NOW_MS + 9_000, NOW_MS + 12_000
    assert drops(soon_ms, other, marker=None) == drops(soon_ms, other) == []
    assert drops(late_ms, other, marker=None) == drops(late_ms, mine, other) == [other]
    last_ms = NOW_MS + LEASE_MS + 12_000
    assert drops(last_ms, table(), mine, other) == [mine, other, table()]
    behind, view = table(f"_{OTHER}_t1"), table(f"_{OTHER}_v1")
    assert drops(late_ms, other, behind, view) == [view, other, behind]


def test_a_range_is_settled_by_who_loads_it_in_its_generation_or_a_later_one() -> None:
    at = Settled("topicid", 1, 200)

    def settled(found: Settled, connector: str = "c") -> bool:
        return is_settled(MARKER, {SOURCE: found}, "p", connector)

    assert settled(at) and settled(replace(at, generation=2, position=0))
    assert not settled(replace(at, position=199))
    assert not settled(replace(at, generation=0, position=900))
    assert not settled(replace(at, topic_id="another")) and not settled(at, "d")
    assert not is_settled(MARKER, {}, "p", "c")


def test_parts_tell_what_was_moved() -> None:
    claim = Claim(MINE, 10, RUN)
    stored = [PartFacts("1_1_1_0", "1", 1, 0, 5, "aa", True)]

    def moved(*target: PartFacts, is_unique: bool = True) -> bool | None:
        return moved_parts(claim, stored, target, is_unique=is_unique)[stored[0]]

    before = PartFacts("1_10_10_0", "1", 10, 0, 5, "aa", True)
    other = PartFacts("2_11_11_0", "2", 11, 0, 5, "aa", True)
    assert moved() is False and moved(before, other) is False
    copy = PartFacts("1_11_11_0", "1", 11, 0, 5, "aa", False)
    assert moved(copy) is True
    assert moved(copy, is_unique=False) is None
    assert moved(replace(copy, content="bb")) is False
    assert moved(replace(copy, content="bb", level=1)) is None
    assert moved(replace(copy, content="bb", level=1), copy) is True


def test_a_uuid_tells_parts_of_equal_rows_apart() -> None:
    claim = Claim(MINE, 9, RUN)
    stored = [replace(PartFacts("1_1_1_0", "1", 1, 0, 5, "aa", True), uuid="u1")]
    equal = PartFacts("1_10_10_0", "1", 10, 0, 5, "aa", True)

    def moved(*target: PartFacts) -> bool | None:
        return moved_parts(claim, stored, target, is_unique=False)[stored[0]]

    assert moved(equal) is False
    assert moved(equal, replace(equal, number=11, uuid="u1")) is True
    # Taken out when it had arrived, and back after a power failure, as the new claim is.
    assert moved(replace(equal, number=5, uuid="u1")) is True
    # A merge hides nothing, as long as all that it was made of is listed.
    assert moved(equal, replace(equal, number=10, level=1)) is False
    assert moved(replace(equal, number=10, level=1)) is None
    assert moved(replace(equal, number=11, level=1)) is None
    assert moved(replace(equal, name="1_11_11_0_12", number=11, content="bb")) is None
    # What was merged beside the target may be of parts that were moved, and of others.
    stored[0] = replace(stored[0], level=1)
    assert moved(equal) is None


def test_rows_tell_what_is_left_to_move() -> None:
    assert left_to_move({"1": 5, "2": 6}, {}, 11) == ["1", "2"]
    assert left_to_move({"1": 5, "2": 6}, {"1": 5}, 11) == ["2"]
    assert left_to_move({"2": 6}, {"1": 5}, 11) == ["2"]
    assert left_to_move({"1": 5, "2": 6}, {"1": 4}, 11) is None
    assert left_to_move({"2": 6}, {}, 11) is None


def test_the_run_of_a_claim_is_known_to_two_seconds() -> None:
    claim = Claim(MINE, 0, f"{'a' * 8}00000010")
    assert claim.is_clear(f"{'a' * 8}00000012") and not claim.is_clear(f"{'a' * 8}00000013")
    assert not claim.is_clear(f"{'b' * 8}00000010")
    assert not Claim(MINE, 0, "0" * 16).is_clear("0" * 16)


def collector() -> StagingCollector:
    access = ClickHouseAccess({"s1": ("http://127.0.0.1:1",)}, "default", "", "single")
    spec = replace(World([SOURCE]).spec, pipeline="p", connector="c")
    made = StagingCollector(access, spec, LEASE_MS, lambda: NOW_MS)
    made._targets = {("d", "t", "s1")}
    return made


def test_a_marker_outlives_a_lease_that_was_longer_before_a_restart() -> None:
    """What `see` was told of a range in doubt holds when it is settled."""
    sees = collector()
    state = World([SOURCE]).settled(SOURCE)
    deadline_ms = NOW_MS + 10 * LEASE_MS
    state.record = replace(state.record, kind=Kind.INTEND, end=5, deadline_ms=deadline_ms)
    sees.see([state], NOW_MS)
    state.record = replace(state.record, kind=Kind.SETTLE, begin=5, deadline_ms=0)
    sees.see([state], NOW_MS + 2_000)
    assert sees._settled[SOURCE].until_ms == deadline_ms


def test_a_marker_outlives_the_lease_of_a_late_insert_from_before_a_restart() -> None:
    """Of a range that was settled then: its record says nothing of an attempt that is lost."""
    sees = collector()
    state = World([SOURCE]).settled(SOURCE)
    state.held_until_ms = NOW_MS + 10 * LEASE_MS
    sees.see([state], NOW_MS)
    assert sees._settled[SOURCE].until_ms == state.held_until_ms
