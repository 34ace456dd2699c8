"""A quick slice of `python -m tests.decode.fuzz`, which goes on for as long as one likes."""

from __future__ import annotations

import random

import pytest

from sluice.decode.sequential import row_binary
from tests.decode.fuzz.attack import Attack, Tally, shrunk
from tests.decode.fuzz.subjects import ALL, subjects_of
from tests.support.examples import examples


@pytest.mark.parametrize("table_format", ALL)
def test_mutants_among_good_messages(table_format: str) -> None:
    tally = Tally()
    # Of several ways to read a format the second one: any number of rows, all or nothing.
    subject = subjects_of(table_format)[:2][-1]
    attacking = Attack(subject, random.Random(f"slice {table_format}"), alone_one_in=20)
    attacking.batch(8 if subject.by_file else 20, tally)
    assert tally.failures == []
    assert tally.became["bad"] > 0, "mutants that harm nobody attack nothing"


@pytest.mark.slow
@pytest.mark.examples
@pytest.mark.parametrize("table_format", ALL)
def test_many_mutants_in_all_ways(table_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of RowBinary's messages the longer ones are left to the engine.
    monkeypatch.setattr(row_binary, "_CUT_BYTES_MAX", 260)
    for number, subject in enumerate(subjects_of(table_format)):
        tally = Tally()
        attacking = Attack(subject, random.Random(f"{table_format} {number}"), alone_one_in=20)
        attacking.batch(examples(30 if subject.by_file else 240), tally)
        assert tally.failures == []
        # With drop-row, a message of bad rows only is an empty one.
        assert tally.became["bad"] + tally.became["empty"] > 0, "these mutants harm nobody"


def test_a_failure_is_shrunk_to_what_it_needs() -> None:
    values = [bytes([number]) for number in range(100)]
    assert shrunk(values, lambda some: {b"\x07", b"\x50"} <= set(some)) == [b"\x07", b"\x50"]


def test_a_neighbour_that_suffers_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subjects_of("RowBinary")[0]
    attacking = Attack(subject, random.Random(3))
    honest = attacking.outcomes

    def lying(values: list[bytes]) -> list[tuple[str, ...]]:
        found = honest(values)
        return [("bad", "x"), *found[1:]] if len(values) > 30 else found

    monkeypatch.setattr(attacking, "outcomes", lying)
    tally = Tally()
    attacking.batch(40, tally)
    assert len(tally.failures) == 1
    assert "a good message suffers" in tally.failures[0]
