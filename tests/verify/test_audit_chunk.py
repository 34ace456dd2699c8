"""Judging offsets, against a judgement that looks at one offset at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sluice.core.ranges import TopicPartition
from sluice.core.receipts import DeadLetter
from sluice.core.records import Kind, Record, encode
from sluice.verify.audit_chunk import (
    EXAMPLES_MAX,
    Chunk,
    Held,
    TableAudit,
    counts_of,
    flags_of,
    note,
)
from sluice.verify.audit_source import History, histories_of

#: valued, assigned, rows by `_row` (0 or 1), dead letters
offsets = st.tuples(
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(0, 3), st.integers(0, 2)),
    st.integers(0, 3),
)
BEGIN = 1000


def judged(
    cases: list[tuple[bool, bool, tuple[int, int], int]], copies: int, settled: int, size: int
) -> TableAudit:
    """All cases as consecutive offsets, in chunks of a size."""
    tally = TableAudit()
    for at in range(0, len(cases), size):
        part = cases[at : at + size]
        chunk = Chunk(
            BEGIN + at,
            np.array([case[0] for case in part], np.bool_),
            np.array([case[1] for case in part], np.bool_),
        )
        held = Held(
            np.array([sum(case[2]) for case in part], np.int32),
            np.array([sum(n > 0 for n in case[2]) for case in part], np.int32),
            np.array([case[3] for case in part], np.int32),
        )
        tally.judge(chunk, held, copies, settled)
    return tally


@given(st.lists(offsets, max_size=30), st.integers(1, 2), st.integers(0, 30), st.integers(1, 30))
def test_against_one_offset_at_a_time(
    cases: list[tuple[bool, bool, tuple[int, int], int]], copies: int, ahead: int, size: int
) -> None:
    settled = BEGIN + ahead
    # What is not settled cannot be assigned.
    cases = [(v, a and i < ahead, rows, dead) for i, (v, a, rows, dead) in enumerate(cases)]
    expected = dict.fromkeys(
        ("loaded", "dead_lettered", "missing", "doubled", "foreign", "later", "given_up"), 0
    )
    missing_at: list[int] = []
    for index, (valued, assigned, by_row, dead) in enumerate(cases):
        rows = sum(by_row)
        if not valued:
            expected["foreign"] += rows + dead
            continue
        dead_letters = min(dead, copies)
        kinds = max(1, sum(n > 0 for n in by_row))
        wanted = (copies - dead_letters) * kinds
        expected["dead_lettered"] += dead_letters
        expected["loaded"] += min(rows, wanted)
        expected["doubled"] += max(0, rows - wanted) + dead - dead_letters
        absent = max(0, wanted - rows)
        if index >= ahead:
            expected["later"] += absent
        elif assigned:
            expected["missing"] += absent
            missing_at += [BEGIN + index] if absent else []
        else:
            expected["given_up"] += absent
    tally = judged(cases, copies, settled, size)
    assert expected == {
        "loaded": tally.loaded,
        "dead_lettered": tally.dead_lettered,
        "missing": tally.missing,
        "doubled": tally.doubled,
        "foreign": tally.foreign,
        "later": tally.not_yet_loaded,
        "given_up": tally.given_up,
    }
    if len(tally.missing_at) < EXAMPLES_MAX:
        assert [o for begin, end in tally.missing_at for o in range(begin, end)] == missing_at
    whole = judged(cases, copies, settled, max(1, len(cases)))
    assert whole == tally


def test_a_message_in_the_table_and_in_the_dead_letters_is_doubled() -> None:
    tally = judged([(True, True, (1, 0), 1)], 1, BEGIN + 1, 1)
    assert (tally.dead_lettered, tally.loaded, tally.doubled) == (1, 0, 1)
    tally = judged([(True, True, (1, 0), 1)], 2, BEGIN + 1, 1)
    assert (tally.dead_lettered, tally.loaded, tally.doubled) == (1, 1, 0)


def test_examples_are_intervals_and_few() -> None:
    intervals: list[tuple[int, int]] = []
    note(intervals, 10, np.array([True, True, False, True]))
    note(intervals, 14, np.array([True, False, False, False]))
    assert intervals == [(10, 12), (13, 15)]
    note(intervals, 100, np.arange(100) % 2 == 0)
    assert len(intervals) == EXAMPLES_MAX and intervals[-1] == (114, 115)


@given(st.lists(st.integers(0, 60), max_size=40), st.integers(0, 50), st.integers(1, 20))
def test_counts_of_a_chunk(values: list[int], begin: int, length: int) -> None:
    counted = counts_of(begin, length, np.sort(np.array(values, np.uint64)))
    assert counted.tolist() == [values.count(begin + i) for i in range(length)]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=4),
    st.integers(0, 30),
    st.integers(1, 20),
)
def test_flags_of_a_chunk(spans: list[tuple[int, int]], begin: int, length: int) -> None:
    intervals = [(first, first + size) for first, size in spans]
    flags = flags_of(begin, length, intervals)
    for index, flag in enumerate(flags.tolist()):
        assert flag == any(b <= begin + index < e for b, e in intervals)


def record(
    begin: int, why: str = "", connector: str = "dc1", partition: int = 0
) -> dict[str, object]:
    body: dict[str, object] = {
        "type": "record",
        "connector": connector,
        "topic": "orders",
        "partition": partition,
        "begin": begin,
        "end": begin + 5,
    }
    return body | ({"why": why} if why else {})


def recorded(
    begin: int, why: str = "", generation: int = 0, topic_id: str = "new", at_ms: int = 0
) -> dict[str, object]:
    """The same with its record."""
    made = Record(Kind.SETTLE, 1, 0, begin, begin, "o", generation, topic_id, "f" * 16, 0, 0)
    return record(begin, why) | {"metadata": encode(made), "at_ms": at_ms}


def letter(
    offset: int, generation: int | None = 0, topic_id: str = "new", at_ms: int = 0
) -> DeadLetter:
    made = DeadLetter("orders", 0, offset, None, None, b"", (), "json", "bad", "orders")
    return made._replace(generation=generation, topic_id=topic_id, attempted_at_ms=at_ms)


def history(*entries: dict[str, object]) -> History:
    return histories_of("dc1", entries)[TopicPartition("orders", 0)]


def test_where_the_rows_must_be() -> None:
    chain = [record(10), record(10), record(15), record(20)]
    assert history(*chain).assigned(20) == [(10, 20)]
    others = [record(0, connector="dc2"), record(0, partition=1), {"type": "load_spec"}]
    assert history(*others, *chain).assigned(20) == [(10, 20)]
    # A gap in the chain is no excuse: only a person's decision is.
    assert history(record(10), record(40)).assigned(40) == [(10, 40)]
    adopted = history(*chain, record(50, "adopt --offset 50"), record(60))
    assert adopted.assigned(60) == [(10, 20), (50, 60)]
    resolved = history(*chain, record(25, "resolve --as loaded"), record(30))
    assert resolved.assigned(30) == [(10, 30)]
    rewound = history(*chain, record(50, "adopt"), record(5, "rewind --to 5"), record(70))
    assert rewound.assigned(70) == [(5, 70)]
    half = history(*chain, record(50, "adopt"), record(30, "rewind --to 30"), record(70))
    assert half.assigned(70) == [(10, 20), (30, 70)]
    assert history(record(10)).assigned(10) == []


def test_dead_letters_of_before_a_rewind_are_none_of_what_is_loaded_again() -> None:
    """Nor are messages of no rows, of which the fixed load spec may make some."""
    chain = [recorded(10), recorded(20) | {"empty_by_table": {"orders": [[12, 14], [16, 18]]}}]
    rewound = history(*chain, recorded(17, "rewind --to 17", 1, at_ms=70), recorded(20, "", 1))
    assert rewound.empty == {"orders": [(12, 14), (16, 17)]}
    assert rewound.knows(letter(16)) and rewound.knows(letter(17, 1))
    assert not rewound.knows(letter(17)) and not rewound.knows(letter(19))
    # Older versions did not say the generation.
    assert not rewound.knows(letter(17, None, at_ms=69)) and rewound.knows(
        letter(17, None, at_ms=70)
    )
    assert rewound.knows(letter(16, None, at_ms=69))
    # Of what was rewound before the first entry that is read only its records tell.
    later = history(recorded(17, "", 1), recorded(20, "", 1))
    assert later.knows(letter(17, 1)) and not later.knows(letter(17))


def test_what_is_said_of_a_topic_that_was_created_again_is_of_another_log() -> None:
    old = [recorded(0, topic_id="old"), recorded(90, topic_id="old")]
    again = history(*old, recorded(5, "adopt --offset 5", 1, at_ms=70), recorded(9, "", 1))
    assert again.assigned(9) == [(5, 9)]
    assert not again.knows(letter(7, 0, "old")) and not again.knows(letter(3, 0, "old"))
    assert again.knows(letter(7, 1))
    assert not again.knows(letter(7, None, "", at_ms=69)) and again.knows(
        letter(7, None, "", at_ms=70)
    )
