"""What a task does about claims: real decoders, real keys, claims in memory; blocks go nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.claims.owners import NOBODY, Keys, Owners, read_offsets, written_offsets
from sluice.claims.port import StoreAwayError
from sluice.claims.stores import StoreAccess
from sluice.core import rests
from sluice.core.claims import CLAIMS, Deduplicate, WhatOfDuplicates
from sluice.core.dead_letters import DUPLICATE
from sluice.core.ledger import Background
from sluice.core.load_spec import Column, LoadSpec, TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import Duplicates, Failed, Loaded, Outcome, Receipt
from sluice.core.records import Kind, Record
from sluice.decode.messages.decoded import Block
from sluice.decode.version import decoder_version
from sluice.worker import loading
from sluice.worker.assignment import Assignment
from sluice.worker.inserting import ShardBlock
from sluice.worker.worker_cache import WorkerCache
from tests.claims.memory import Kept, MemoryStore
from tests.driver.loop_world import table_spec
from tests.worker.test_loading import NOWHERE
from tests.worker.test_loading_tables import TOPIC_ID, Listed

SINCE_MS, WINDOW = 1_000_000_000, 3_600
ACCESS = StoreAccess("redis://nowhere:1/0")
COLUMNS = (
    Column("id", "String"),
    Column("n", "UInt8"),
    Column("_topic", "String"),
    Column("_partition", "UInt32"),
    Column("_offset", "UInt64"),
    Column("_row", "UInt32"),
    Column("_source", "String"),
)


def a_table(**changes: Any) -> TableSpec:
    made = replace(
        table_spec("one", ("t",)),
        columns=COLUMNS,
        lineage=tuple(column.name for column in COLUMNS[2:]),
        deduplicate=Deduplicate(("id",), WINDOW, "p/d.one"),
        require=("id",),
    )
    return replace(made, **changes)


def event(name: str, number: int = 0) -> bytes:
    return b'{"id":"%s","n":%d}' % (name.encode(), number)


class Unsteady(MemoryStore):
    """Is another one after so many calls, or is away."""

    def __init__(self, kept: Kept, *, changes_after: int = 1 << 30, away: bool = False) -> None:
        super().__init__(kept)
        self.changes_after = changes_after
        self.away = away
        self.asked: list[tuple[int, int]] = []

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        if self.away:
            raise StoreAwayError("the store is away")
        self.asked.append((until_s, now_s))
        found = super().claim(keys, owners, until_s, now_s)
        if len(self.asked) >= self.changes_after:
            self.kept.drawn = "another"
        return found


@dataclass
class Task:
    """Loads a list as one range of partition 3, or of another one."""

    messages: Sequence[bytes | None]
    store: MemoryStore
    tables: tuple[TableSpec, ...] = field(default_factory=lambda: (a_table(),))
    partition: int = 3
    generation: int = 0
    run: str = ""
    since_ms: int = SINCE_MS
    blocks: list[Block] = field(default_factory=list)

    def load(self, monkeypatch: pytest.MonkeyPatch) -> Outcome:
        end = len(self.messages)
        spec = LoadSpec("p", "dc1", decoder_version(), 1 << 20, self.tables)
        environment = replace(NOWHERE, specs={spec.digest(): spec.canonical()}, claims=ACCESS)
        record = Record(
            *(Kind.INTEND, 7, 1, 0, end, "me", self.generation, TOPIC_ID),
            *(spec.digest(), 1, 1 << 50),
        )
        cache = WorkerCache()
        key = f"{environment.kafka.connector}@{environment.kafka.brokers}"
        listed = Listed([(value, "") for value in self.messages])
        cache.readers = {(key, True): listed, (key, False): listed}
        cache.stores = {ACCESS: self.store}
        monkeypatch.setattr(loading, "_cache", cache)
        monkeypatch.setattr(loading, "insert_block", self.insert)
        assignment = Assignment(
            Range(TopicPartition("t", self.partition), 0, end),
            record,
            Background(
                since_ms=self.since_ms,
                bytes_max=1 << 20,
                servers={CLAIMS: self.run or self.store.run()},
            ),
            sent_at_ms=0,
            is_first=True,
        )
        (report,) = loading.load_bundle(environment, [assignment], 0)
        return report.outcome

    def insert(self, block: ShardBlock) -> Receipt:
        self.blocks.append(block.decoded)
        return block.receipt("http://h", "token", insert_ms=1, acknowledged_at_ms=0)

    @property
    def offsets(self) -> list[list[int]]:
        """Of the rows of each block."""
        return [block.offsets.tolist() for block in self.blocks]


@pytest.fixture
def kept() -> Iterator[Kept]:
    yield Kept()


def duplicates(outcome: Outcome) -> tuple[int, int, object]:
    assert isinstance(outcome, Loaded), outcome
    found = outcome.duplicates["one"]
    return found.rows, found.messages, list(map(list, rests.read(found.offsets)))


def test_of_equal_events_the_first_one_is_a_row(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [event("a", 1), event("b"), event("a", 2), None, b"{", event("b"), event("c")]
    task = Task(messages, MemoryStore(kept))
    outcome = task.load(monkeypatch)
    assert task.offsets == [[0, 1, 6]]
    assert duplicates(outcome) == (2, 2, [[2, 3], [5, 6]])
    assert isinstance(outcome, Loaded)
    assert (outcome.passed, outcome.skipped, len(outcome.dead_letters)) == ({"one": 2}, 1, 1)
    counts = outcome.claimed["one"]
    assert (counts.rows, counts.in_ranges, counts.before) == (5, 2, 0) and counts.seconds > 0


def test_a_repeat_makes_the_same_rows(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was claimed in between, and in whichever generation: owners are places."""
    messages = [event("a"), event("b"), event("a")]
    first = Task(messages, MemoryStore(kept))
    first.load(monkeypatch)
    other = Task([event("b"), event("d")], MemoryStore(kept), partition=4)
    other.load(monkeypatch)
    again = Task(messages, MemoryStore(kept), generation=1)
    again.load(monkeypatch)
    assert first.offsets == again.offsets == [[0, 1]]
    assert other.offsets == [[1]]


def test_a_range_of_duplicates_only_inserts_nothing(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    Task([event("a"), event("b")], MemoryStore(kept)).load(monkeypatch)
    task = Task([event("b"), event("a")], MemoryStore(kept), partition=4)
    outcome = task.load(monkeypatch)
    assert duplicates(outcome) == (2, 2, [[0, 2]])
    assert task.blocks == [] and isinstance(outcome, Loaded)
    counts = outcome.claimed["one"]
    assert (counts.rows, counts.in_ranges, counts.before) == (2, 0, 2)


def test_a_bad_message_claims_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    Task([b'{"id":"a","n":300}', b'{"n":1}'], MemoryStore(kept)).load(monkeypatch)
    assert kept.claims == {}


def test_what_holds_is_judged_by_when_the_range_was_intended(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on between two attempts, and they must make the same rows."""
    store = Unsteady(kept)
    Task([event("a")], store).load(monkeypatch)
    within = Task([event("a")], store, partition=4, since_ms=SINCE_MS + 1000 * WINDOW)
    within.load(monkeypatch)
    after = Task([event("a")], store, partition=4, since_ms=SINCE_MS + 1000 * (WINDOW + 1))
    after.load(monkeypatch)
    since_s = SINCE_MS // 1000
    assert store.asked[0] == (since_s + WINDOW, since_s)
    assert (within.offsets, after.offsets) == ([], [[0]])


def test_two_entries_of_one_table_make_one_row_of_a_message(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = a_table(entry="two")
    task = Task([event("a")], MemoryStore(kept), (a_table(), other))
    outcome = task.load(monkeypatch)
    assert len(task.blocks) == 1
    assert isinstance(outcome, Loaded) and outcome.duplicates["two"].messages == 1


@pytest.mark.parametrize(
    ("mode", "into"), [("dead-letter", "dead-letters"), ("topic", "duplicates")]
)
def test_copies_of_duplicates_say_which_key_and_whose_it_is(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, mode: WhatOfDuplicates, into: str
) -> None:
    """They count as duplicates, as without copies."""
    table = a_table(deduplicate=Deduplicate(("id", "n"), WINDOW, "p/d.one", duplicates=mode))
    Task([event("b"), event("c")], MemoryStore(kept), (table,)).load(monkeypatch)
    messages = [event("a"), event("a"), event("d"), b"{", event("c")]
    task = Task(messages, MemoryStore(kept), (table,), partition=4)
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert task.offsets == [[0, 2]]
    assert duplicates(outcome) == (2, 2, [[1, 2], [4, 5]])
    assert [letter.offset for letter in outcome.dead_letters] == [3]
    assert outcome.passed == {"one": 2}
    assert [(copy.offset, copy.reason, copy.into, dict(copy.facts)) for copy in outcome.copies] == [
        (
            *(offset, DUPLICATE, into),
            {"duplicate-key": f'["{name}", "0"]', "duplicate-of": f"Zm9vYmFyYmE/{place}"},
        )
        for offset, name, place in ((1, "a", "4/0"), (4, "c", "3/1"))
    ]


def test_a_copy_names_no_message_of_a_row_that_others_wrote(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    deduplicate = Deduplicate(("id",), WINDOW, "p/d.one", duplicates="topic")
    store = MemoryStore(kept)
    Task([event("a")], store, (a_table(deduplicate=deduplicate),)).load(monkeypatch)
    kept.claims = {key: (NOBODY, until) for key, (_, until) in kept.claims.items()}
    task = Task([event("a")], store, (a_table(deduplicate=deduplicate),), partition=4)
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    (copy,) = outcome.copies
    assert dict(copy.facts) == {"duplicate-key": '["a"]'}


def test_a_message_of_several_rows_loses_those_that_are_duplicates(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = [
        event("a") + b"\n" + event("b"),
        event("b") + b"\n" + event("c"),
        event("a") + event("c"),
    ]
    task = Task(messages, MemoryStore(kept), (a_table(rows="many"),))
    outcome = task.load(monkeypatch)
    assert task.offsets == [[0, 0, 1]]
    assert duplicates(outcome) == (3, 1, [[2, 3]])


@pytest.mark.parametrize("changes_after", [0, 1])
def test_nothing_is_inserted_under_another_run_of_the_store(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, changes_after: int
) -> None:
    """Before it claims, and after: claims of the run before may be lost."""
    store = Unsteady(kept, changes_after=1)
    task = Task([event("a")], store, run="before@0" if changes_after == 0 else "")
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Failed) and outcome.inserted_nothing
    assert "run" in str(outcome.error) and task.blocks == []
    assert len(store.asked) == changes_after


def test_a_store_that_is_away_is_waited_for(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Task([event("a")], Unsteady(kept, away=True)).load(monkeypatch)
    assert isinstance(outcome, Failed) and outcome.inserted_nothing


def test_a_store_that_goes_away_later_leaves_the_range_in_doubt(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table before has its block."""
    before = a_table(entry="none", deduplicate=None, require=())
    task = Task([event("a")], Unsteady(kept, away=True), (before, a_table()))
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Failed) and not outcome.inserted_nothing
    assert len(task.blocks) == 1


@given(st.sets(st.integers(0, 40_000), max_size=3_000))
def test_offsets_are_written_as_the_ledger_reads_them(offsets: set[int]) -> None:
    ordered = sorted(offsets)
    written = Duplicates(0, 0, written_offsets(np.array(ordered, np.uint64)))
    found = [n for begin, end in rests.read(written.offsets) for n in range(begin, end)]
    assert found == read_offsets(written.offsets).tolist() == ordered
