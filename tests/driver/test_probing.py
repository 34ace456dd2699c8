"""What a probe makes of several shards; with real servers: tests/e2e/test_shards.py."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ranges import Interval, intervals_of
from sluice.driver.probing import first_overlap

OFFSETS = st.sets(st.integers(0, 40), max_size=20)


@given(st.lists(OFFSETS, max_size=4))
def test_an_offset_in_two_shards_is_found(held: list[set[int]]) -> None:
    present: dict[str, tuple[Interval, ...]] = {
        f"s{place}": intervals_of(offsets) for place, offsets in enumerate(held)
    }
    twice = {
        offset
        for place, offsets in enumerate(held)
        for other in held[place + 1 :]
        for offset in offsets & other
    }
    found = first_overlap(present)
    assert (found is None) == (not twice)
    if found is not None:
        (begin, end), (first, second) = found
        inside = set(range(begin, end))
        assert begin == min(twice) and inside <= twice
        assert inside <= held[int(first[1:])] & held[int(second[1:])]
