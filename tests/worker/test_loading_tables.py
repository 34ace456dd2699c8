"""One range into several tables: what becomes a row, a dead letter, or is passed over, of which
entry, and what of it is inserted. Decoders and splitters are real, messages come from a list, and
blocks go nowhere."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sluice.core.dead_letters import PARKED
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import InDoubtError, TerminalError, TransientError
from sluice.core.formats import REGISTRY_OPTION
from sluice.core.ledger import Background, Rest, Stored
from sluice.core.load_spec import Column, LoadSpec, Route, Sharding, TableSpec
from sluice.core.ranges import Range, TopicPartition
from sluice.core.receipts import (
    DeadLetter,
    DeadLetterReason,
    Failed,
    Loaded,
    NeedsReservation,
    Outcome,
    Outdated,
    Receipt,
    TooHeavy,
)
from sluice.core.records import Kind, Record
from sluice.decode.version import decoder_version
from sluice.kafka.errors import RecreatedTopicError
from sluice.kafka.reader import RangeReader, ReadResult, Wanted
from sluice.worker import loading, staging
from sluice.worker.assignment import Assignment
from sluice.worker.errors import BlockRefusedError, OutdatedTextError
from sluice.worker.inserting import ShardBlock
from sluice.worker.worker_cache import WorkerCache
from tests.driver.loop_world import table_spec
from tests.worker.test_loading import NOWHERE

SOURCE = TopicPartition("t", 3)
LINEAGE = ("_topic", "_partition", "_offset", "_row")
COLUMNS = (
    Column("a", "UInt8"),
    Column("_topic", "String"),
    Column("_partition", "UInt32"),
    Column("_offset", "UInt64"),
    Column("_row", "UInt32"),
)


def a_table(entry: str, **changes: Any) -> TableSpec:
    made = replace(table_spec(entry, ("t",)), columns=COLUMNS, lineage=LINEAGE)
    return replace(made, **changes)


def by_header(entry: str) -> Route:
    return Route("header", "table", entry)


Message = tuple[bytes | None, str]


TOPIC_ID = "Zm9vYmFyYmE"


class Listed(RangeReader):
    """Gives messages of a list, of which each stands at the offset of its place.

    `now` are the ids of the topic that has the name after each reading; the last one stays.
    """

    def __init__(self, messages: Sequence[Message], heavy_at: int | None = None) -> None:
        self.messages = messages
        self.heavy_at = heavy_at
        self.kept: Mapping[int, bytes] = {}
        self.now = [TOPIC_ID]

    def topic_ids(self, sources: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        now = self.now.pop(0) if len(self.now) > 1 else self.now[0]
        return dict.fromkeys(sources, now)

    def read_ranges(  # type: ignore[override]
        self,
        wanted: Sequence[Wanted],
        bytes_max: int,
        deliver: Any,
        look: Any = None,
        *,
        tombstones: bool = False,
    ) -> tuple[ReadResult, ...]:
        (block_range,) = [one.block_range for one in wanted]
        inside = range(block_range.begin, block_range.end)
        there = [(o, *self.messages[o]) for o in inside if self.messages[o][0] is not None]
        if look is not None:
            look([(None, (("table", name.encode()),), 0) for _, _, name in there])
        deliver([value for _, value, _ in there], [offset for offset, _, _ in there])
        size = sum(len(value or b"") for _, value, _ in there)
        return (ReadResult(len(inside), size, len(inside) - len(there), self.heavy_at),)

    def dead_letters(
        self,
        block_range: Range,
        wanted: Mapping[int, Sequence[DeadLetterReason]],
        values: Mapping[int, bytes],
        bytes_max: int,
    ) -> tuple[DeadLetter, ...]:
        self.kept = dict(values)
        return tuple(
            DeadLetter(
                *("t", 3, offset, 0, None, values.get(offset), (), fault.reason, "", fault.entry),
                into=fault.into,
                facts=fault.facts,
            )
            for offset, faults in sorted(wanted.items())
            for fault in faults
        )


@dataclass
class Task:
    """Loads the whole list as one range."""

    tables: tuple[TableSpec, ...]
    reader: Listed
    unrouted: str = "ignore"
    commit: str = "table"
    reservation: int = 1
    rest: Rest = field(default_factory=dict)
    stored: Stored = field(default_factory=dict)
    is_first: bool = True
    letter_bytes_max: int = 1 << 20
    inserted: list[tuple[str, str, int]] = field(default_factory=list)
    refuses: dict[str, Exception] = field(default_factory=dict)

    def load(self, monkeypatch: pytest.MonkeyPatch, attempt: int = 0) -> Outcome:
        end = len(self.reader.messages)
        told = {"unrouted": self.unrouted, "commit": self.commit}
        spec = LoadSpec("p", "dc1", decoder_version(), 1 << 20, self.tables, **told)
        environment = replace(
            NOWHERE,
            specs={spec.digest(): spec.canonical()},
            dead_letter_bytes_max=self.letter_bytes_max,
        )
        record = Record(
            Kind.INTEND, 7, 1, 0, end, "me", 0, TOPIC_ID, spec.digest(), self.reservation, 1 << 50
        )
        shop = WorkerCache()
        key = f"{environment.kafka.connector}@{environment.kafka.brokers}"
        shop.readers = {(key, True): self.reader, (key, False): self.reader}
        monkeypatch.setattr(loading, "_cache", shop)
        monkeypatch.setattr(loading, "insert_block", self.insert)
        assignment = Assignment(
            Range(SOURCE, 0, end),
            record,
            Background(rest=self.rest, bytes_max=1 << 20, stored=self.stored),
            sent_at_ms=0,
            is_first=self.is_first,
        )
        (report,) = loading.load_bundle(environment, [assignment], attempt)
        assert (report.block_range, report.batch) == (assignment.block_range, 7)
        return report.outcome

    def insert(self, block: ShardBlock) -> Receipt:
        entry, shard = block.table.entry, block.shard
        refusal = self.refuses.get(f"{entry}/{shard}") or self.refuses.get(entry)
        if refusal is not None:
            raise refusal
        self.inserted.append((entry, shard, block.decoded.rows))
        return block.receipt("http://h", "token", insert_ms=1500, acknowledged_at_ms=0)


def good(number: int) -> bytes:
    return b'{"a":%d}' % number


def dead_letters(outcome: Outcome) -> list[tuple[int, str, str]]:
    assert isinstance(outcome, Loaded), outcome
    return [(letter.offset, letter.table, letter.reason) for letter in outcome.dead_letters]


def test_rows_dead_letters_and_tombstones_account_for_every_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    messages = [(good(1), ""), (None, ""), (b"{", ""), (b'{"a":300}', ""), (good(2), "")]
    task = Task((a_table("one"),), Listed(messages))
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert task.inserted == [("one", "s1", 2)]
    assert [offset for offset, _, _ in dead_letters(outcome)] == [2, 3]
    assert (outcome.messages, outcome.skipped, outcome.rows) == (5, 1, 2)
    assert (outcome.passed, outcome.empty, outcome.dropped_rows) == ({}, {}, {})
    assert outcome.stages.wait == 1.5


def test_a_range_that_needs_a_registry_which_is_configured_no_more_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was recorded when there was one; the entry has another format by now."""
    registry = ((REGISTRY_OPTION, "http://registry:8081"),)
    avro = replace(a_table("one"), format="AvroConfluent", options=registry)
    task = Task((avro,), Listed([(b"\0\0\0\0\7x", "")]))
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Failed) and isinstance(outcome.error, TerminalError)
    assert "schemas of the registry http://registry:8081 for table entry one" in str(outcome.error)
    assert 'Put [registry] with url = "http://registry:8081" back' in outcome.error.hint
    assert not task.inserted


def test_each_entry_has_its_own_rows_and_dead_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message may be bad for one and good for the other."""
    wide = replace(COLUMNS[0], type="UInt16")
    other = a_table("two", columns=(wide, *COLUMNS[1:]))
    task = Task((a_table("one"), other), Listed([(b'{"a":300}', ""), (good(1), ""), (b"x", "")]))
    outcome = task.load(monkeypatch)
    assert task.inserted == [("one", "s1", 1), ("two", "s1", 2)]
    assert [(o, table) for o, table, _ in dead_letters(outcome)] == [
        (0, "one"),
        (2, "one"),
        (2, "two"),
    ]


@pytest.mark.parametrize("after", [0, 1])
def test_what_was_read_of_a_topic_that_was_made_anew_is_no_row_and_no_dead_letter(
    monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """The originals of bad messages are read after the others were inserted."""
    listed = Listed([(good(1), ""), (b"{", "")])
    listed.now = [*[TOPIC_ID] * after, "another"]
    task = Task((a_table("one"),), listed)
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Failed) and isinstance(outcome.error, RecreatedTopicError)
    assert "its id is another now" in str(outcome.error)
    assert task.inserted == [("one", "s1", 1)] * after
    assert outcome.inserted_nothing == (not after)


@pytest.mark.parametrize("unrouted", ["ignore", "dead-letter"])
def test_routes_say_what_is_passed_over(monkeypatch: pytest.MonkeyPatch, unrouted: str) -> None:
    tables = (a_table("one", route=by_header("one")), a_table("two", route=by_header("two")))
    messages = [(good(1), "one"), (good(2), "two"), (good(3), "two"), (good(4), "none")]
    task = Task(tables, Listed(messages), unrouted)
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert task.inserted == [("one", "s1", 1), ("two", "s1", 2)]
    assert (outcome.passed, outcome.unrouted) == ({"one": 3, "two": 2}, 1)
    letter = [(3, "", "no-route")] if unrouted == "dead-letter" else []
    assert [(o, table) for o, table, _ in dead_letters(outcome)] == [(o, t) for o, t, _ in letter]


def test_of_a_rest_nothing_else_is_loaded_or_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier bounds what a probe's task loads by the rest."""
    tables = (a_table("one", route=by_header("one")), a_table("two", route=by_header("two")))
    messages = [(good(n), "one" if n % 2 else "two") for n in range(6)]
    task = Task(tables, Listed(messages), rest={"one": ((1, 2),), "two": ()})
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert task.inserted == [("one", "s1", 1)]
    assert outcome.passed == {}


def test_of_a_range_of_which_nothing_is_missing_what_no_entry_takes_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = (a_table("one", route=by_header("one")),)
    task = Task(
        tables, Listed([(good(1), "one"), (good(2), "none")]), "dead-letter", rest={"one": ()}
    )
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded) and task.inserted == []
    assert [(offset, reason) for offset, _, reason in dead_letters(outcome)] == [(1, "no-route")]


def test_of_a_rest_nothing_is_counted_as_passed_over_by_a_parked_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = (a_table("one", route=by_header("one"), parked=True),)
    messages = [(good(1), "one"), (good(2), "one"), (good(3), "two")]
    for rest, passed in (({}, {"one": 1}), ({"one": ((0, 1),)}, {})):
        outcome = Task(tables, Listed(messages), rest=rest).load(monkeypatch)
        assert isinstance(outcome, Loaded) and outcome.passed == passed
        assert [o for o, _, reason in dead_letters(outcome) if reason == PARKED] == (
            [0] if rest else [0, 1]
        )


def test_a_parked_entry_takes_nothing_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = Task((a_table("one", parked=True), a_table("two")), Listed([(good(1), "")] * 3))
    outcome = task.load(monkeypatch)
    assert task.inserted == [("two", "s1", 3)]
    assert dead_letters(outcome) == [(offset, "one", PARKED) for offset in range(3)]
    assert isinstance(outcome, Loaded) and outcome.passed == {}


def test_messages_of_several_rows_and_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    many = a_table("many", rows="many", bad_rows="drop-row")
    values = [b'[{"a":1},{"a":2}]', b"[]", b'[{"a":3},{"a":300}]', b"[]"]
    task = Task((many, a_table("one")), Listed([(value, "") for value in values]))
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert task.inserted == [("many", "s1", 3)]
    assert outcome.empty == {"many": ((1, 2), (3, 4))}
    assert outcome.passed == {"many": 2}
    assert outcome.dropped_rows == {"many": 1}
    assert [(o, table) for o, table, _ in dead_letters(outcome)] == [(o, "one") for o in range(4)]


def test_rows_that_are_stored_are_compared_when_no_field_waits_for_a_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then their message makes no rows under this load spec."""
    dynamic = DynamicColumns(allow=("n.*",), deny=())
    many = a_table("many", rows="many", dynamic=dynamic, unknown_fields="refuse")
    values = [b'[{"a":1,"new":1},{"a":2,"new":2}]', b'[{"a":3}]']
    found: Stored = {"many": ((0, 0, 1),)}
    task = Task((many,), Listed([(v, "") for v in values]), stored=found)
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Outdated) and list(outcome.fields) == ["many"], outcome
    known = replace(many, columns=(*COLUMNS, Column("new", "Nullable(Int64)")))
    task = Task((known,), Listed([(v, "") for v in values]), stored=found)
    assert isinstance(task.load(monkeypatch), Loaded)
    assert task.inserted == [("many", "s1", 2)]


def test_too_many_rows_of_any_entry_shorten_the_range_before_anything_is_inserted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [b'[{"a":1},{"a":2}]', b'[{"a":3},{"a":4}]', b'{"a":5}']
    roomy = a_table("roomy", rows="many", route=by_header("none"))
    tables = (a_table("first"), roomy, a_table("many", rows="many"))
    monkeypatch.setattr(loading.end_of_rows, "__defaults__", (3,))
    task = Task(tables, Listed([(value, "") for value in values]))
    outcome = task.load(monkeypatch)
    assert outcome == TooHeavy(1, sum(map(len, values)), by_rows=True)
    assert task.inserted == []


def test_values_too_large_when_decompressed_shorten_the_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sluice.decode.values.steps.RANGE_BYTES_MAX", 20)
    values = [gzip.compress(good(n)) for n in range(4)]
    packed = a_table("packed", decompress="gzip")
    task = Task((a_table("first"), packed), Listed([(value, "") for value in values]))
    assert task.load(monkeypatch) == TooHeavy(2, sum(map(len, values)), by_rows=True)
    assert task.inserted == []


def test_a_heavy_range_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Task((a_table("one"),), Listed([(good(1), ""), (good(2), "")], heavy_at=1))
    assert task.load(monkeypatch) == TooHeavy(1, 14)
    assert task.inserted == []


def test_every_shard_gets_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = a_table("one", shards=("s1", "s2"), sharding=Sharding("key", "a"))
    task = Task((table,), Listed([(good(n), "") for n in range(5)]))
    shards = {"s1": ("http://one",), "s2": ("http://two",)}
    monkeypatch.setattr(
        "tests.worker.test_loading_tables.NOWHERE",
        replace(NOWHERE, clickhouse=replace(NOWHERE.clickhouse, shards=shards)),
    )
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert sorted(task.inserted) == [("one", "s1", 3), ("one", "s2", 2)]
    assert outcome.stages.wait == 1.5, "they go side by side"
    assert outcome.rows == 5


def test_a_block_above_its_reservation_is_inserted_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = a_table("one", partition_key="a % 3")
    task = Task((key,), Listed([(good(n), "") for n in range(4)]), reservation=2)
    assert task.load(monkeypatch) == NeedsReservation("one", 3, inserted=False)
    assert task.inserted == []
    task.reservation = 3
    assert isinstance(task.load(monkeypatch), Loaded)


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("is_unstored", [True, False])
def test_a_refused_block_says_what_was_inserted_before(
    monkeypatch: pytest.MonkeyPatch, is_first: bool, is_unstored: bool
) -> None:
    """Only the first task that is sent a range knows that nobody inserted its block."""
    task = Task((a_table("one"), a_table("two")), Listed([(good(1), "")]), is_first=is_first)
    why = TerminalError("no such column")
    task.refuses["two"] = BlockRefusedError("two", why, is_unstored=is_unstored)
    outcome = task.load(monkeypatch)
    assert outcome == Failed(why, "two", is_first and is_unstored, ("one",))


def test_an_outdated_spec_says_what_was_inserted_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = (a_table("one"), a_table("two"), a_table("three"))
    task = Task(tables, Listed([(good(1), "")]))
    task.refuses["three"] = OutdatedTextError("three", "it has another column")
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Outdated)
    assert (outcome.entry, outcome.inserted) == ("three", ("one", "two"))
    assert "another column" in outcome.why


@pytest.mark.parametrize("error", [InDoubtError("cut"), TransientError("away"), ValueError("bug")])
def test_what_goes_wrong_is_an_outcome(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    task = Task((a_table("one"),), Listed([(good(1), "")]))
    task.refuses["one"] = error
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Failed) and not outcome.is_unstored and outcome.entry == ""
    if isinstance(error, ValueError):
        assert isinstance(outcome.error, TerminalError) and "ValueError: bug" in str(outcome.error)
    else:
        assert outcome.error is error


def test_originals_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond it are read again."""
    reader = Listed([(b"bad-%d" % n, "") for n in range(6)])
    task = Task((a_table("one"), a_table("two")), reader, letter_bytes_max=15)
    assert len(dead_letters(task.load(monkeypatch))) == 12
    assert reader.kept == {0: b"bad-0", 1: b"bad-1", 2: b"bad-2"}


def test_nothing_is_moved_before_all_tables_have_their_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `commit = "bundle"` (R21)."""
    steps: list[str] = []
    refused: set[str] = set()

    class Staged:
        def __init__(self, block: ShardBlock) -> None:
            self.block, self.entry = block, block.table.entry
            self.name = f"{self.entry}/{block.shard}"

        def seal(self) -> None:
            if self.entry in refused:
                raise BlockRefusedError(self.entry, TerminalError("no"), is_unstored=True)
            steps.append(f"seal {self.name}")

        def move(self) -> Receipt:
            steps.append(f"move {self.name}")
            return task.insert(self.block)

    monkeypatch.setattr(staging, "StagedBlock", Staged)
    tables = [replace(a_table(name), delivery="staged") for name in ("one", "two")]
    task = Task(tuple(tables), Listed([(good(1), ""), (good(2), "")]), commit="bundle")
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Loaded)
    assert steps == ["seal one/s1", "seal two/s1", "move one/s1", "move two/s1"]
    assert [(receipt.entry, receipt.rows) for receipt in outcome.receipts] == [
        ("one", 2),
        ("two", 2),
    ]

    steps.clear()
    refused.add("two")
    outcome = task.load(monkeypatch)
    assert isinstance(outcome, Failed) and outcome.entry == "two"
    assert steps == ["seal one/s1"] and outcome.inserted == ("one",)
