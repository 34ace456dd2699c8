"""The content check finds what is wrong; a check that cannot fail proves nothing."""

from __future__ import annotations

import numpy as np

from sluice.testbed.chaos.content import ROW, ContentReport, Rows, compare, compare_events
from sluice.testbed.chaos.sending import Truth


def truth_of(events: dict[int, list[tuple[int, int]]], broken: set[tuple[int, int]]) -> Truth:
    truth = Truth()
    for partition, pairs in events.items():
        for offset, identity in pairs:
            truth.offsets[partition].append(offset)
            truth.identities[partition].append(identity)
    truth.broken = broken
    return truth


EVENTS = {0: [(2, 20), (0, 10), (1, 15)], 1: [(0, 11), (5, 12)]}
BROKEN = {(0, 3), (1, 1)}


def judged(
    changed: dict[int, list[tuple[int, int]]], dead_letters: list[tuple[int, int]] | None = None
) -> ContentReport:
    table = {**EVENTS, **changed}

    def rows_of(partition: int) -> Rows:
        return np.array(sorted(table.get(partition, [])), ROW)

    return compare(
        truth_of(EVENTS, BROKEN), rows_of, sorted(BROKEN) if dead_letters is None else dead_letters
    )


def test_what_is_exact_is_called_so() -> None:
    report = judged({})
    assert report.is_exact
    assert (report.loaded, report.dead_letters, report.examples) == (5, 2, ())


def test_a_lost_row() -> None:
    report = judged({0: [(0, 10), (2, 20)]})
    assert (report.lost, report.loaded, report.is_exact) == (1, 4, False)
    assert report.examples == ("lost: partition 0, 1 offsets: 1",)


def test_a_partition_that_was_lost() -> None:
    report = judged({1: []})
    assert (report.lost, report.loaded, report.is_exact) == (2, 3, False)


def test_doubled_rows() -> None:
    report = judged({1: [(0, 11), (5, 12), (5, 12), (5, 12)]})
    assert (report.doubled, report.loaded, report.is_exact) == (2, 5, False)


def test_a_row_where_none_must_be() -> None:
    assert (judged({0: [*EVENTS[0], (3, 99)]}).foreign, judged({3: [(0, 1)]}).foreign) == (1, 1)
    assert not judged({3: [(0, 1)]}).is_exact


def test_a_row_with_the_content_of_another() -> None:
    report = judged({0: [(0, 15), (1, 10), (2, 20)]})
    assert (report.altered, report.lost, report.is_exact) == (2, 0, False)


def test_dead_letters() -> None:
    assert judged({}, [(0, 3)]).dead_letters_missing == 1
    assert judged({}, [(0, 3), (1, 1), (1, 1)]).dead_letters_doubled == 1
    assert judged({}, [(0, 3), (1, 1), (0, 0)]).dead_letters_foreign == 1
    for dead_letters in ([(0, 3)], [(0, 3), (1, 1), (1, 1)], [(0, 3), (1, 1), (0, 0)]):
        assert not judged({}, dead_letters).is_exact


#: The event 20 comes three times, 11 twice; 12 once.
SENT = {0: [(0, 20), (1, 11), (2, 20)], 1: [(0, 20), (1, 12)], 2: [(4, 11)]}


def judged_by_event(table: dict[int, list[tuple[int, int]]]) -> ContentReport:
    return compare_events(
        truth_of(SENT, BROKEN),
        lambda partition: np.array(sorted(table.get(partition, [])), ROW),
        sorted(BROKEN),
    )


def test_each_event_is_one_row_of_any_of_its_messages() -> None:
    for table in (
        {0: [(0, 20), (1, 11)], 1: [(1, 12)]},
        {1: [(0, 20), (1, 12)], 2: [(4, 11)]},
    ):
        report = judged_by_event(table)
        assert report.is_exact
        assert (report.loaded, report.dead_letters, report.examples) == (3, 2, ())


def test_an_event_that_was_lost() -> None:
    report = judged_by_event({0: [(0, 20)], 1: [(1, 12)]})
    assert (report.lost, report.loaded, report.is_exact) == (1, 2, False)
    assert report.examples == ("lost: event 11, sent at 0/1, 2/4",)


def test_an_event_that_was_doubled() -> None:
    report = judged_by_event({0: [(0, 20), (1, 11), (2, 20)], 1: [(0, 20), (1, 12)]})
    assert (report.doubled, report.loaded, report.is_exact) == (2, 3, False)
    assert report.examples == ("doubled: event 20, sent at 0/0, 0/2, 1/0",)
    assert judged_by_event({0: [(0, 20), (1, 11)], 1: [(1, 12), (1, 12)]}).doubled == 1


def test_rows_that_no_message_of_an_event_makes() -> None:
    good = {0: [(0, 20), (1, 11)], 1: [(1, 12)]}
    assert judged_by_event({**good, 3: [(7, 12)]}).foreign == 1
    report = judged_by_event({**good, 1: [(1, 20)]})
    assert (report.altered, report.lost, report.doubled) == (1, 1, 0)
    assert not report.is_exact
