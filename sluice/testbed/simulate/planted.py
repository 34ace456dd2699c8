"""Bugs on purpose: each breaks one rule in the real code, and the simulator has to notice.

A simulator that finds nothing proves nothing until it is shown what it would find.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from sluice.clickhouse import window
from sluice.core.budget import TargetShard
from sluice.core.errors import InDoubtError
from sluice.core.ranges import Range
from sluice.core.receipts import DeadLetter, Failed, TaskReport, TooHeavy
from sluice.core.records import Kind
from sluice.core.tokens import block_token
from sluice.driver import (
    changes,
    connector,
    monitor,
    recording,
    repeating,
    report_handler,
    round_planner,
    schema_decision,
    start,
)
from sluice.driver.ports import ShardWindow
from sluice.driver.record_updates import Budget, RecordPlanner
from sluice.driver.state import Answered, Holds, PartitionState
from sluice.kafka import reader, recorder, transactions
from sluice.kafka.dead_letters import wrap
from sluice.kafka.errors import KafkaUnavailableError
from sluice.testbed.simulate import wire
from sluice.testbed.simulate.clients import SimulatedLog, SimulatedProducer
from sluice.testbed.simulate.decoding import DecodedRows, VersionedDecoder
from sluice.testbed.simulate.kafka import Stored
from sluice.testbed.simulate.planted_claims import CLAIM_BUGS
from sluice.testbed.simulate.planted_rules import BUNDLE_BUGS, RULE_BUGS
from sluice.testbed.simulate.planted_tables import REPLACING_BUGS, STAGING_BUGS, TABLE_BUGS
from sluice.testbed.simulate.planting import Bugs, patched
from sluice.worker import bundle, inserting, leases

#: All but those of a fleet, by name.
PLANTED = Bugs()


@PLANTED.instead_of(inserting, "_insert_into")
def settle_before_acknowledgement(
    real: Any, block: inserting.ShardBlock, url: str, token: str, *more: Any
) -> Any:
    """An insert without an answer counts as loaded."""
    try:
        return real(block, url, token, *more)
    except InDoubtError:
        return block.receipt("", token, insert_ms=0, acknowledged_at_ms=0)


def _token_of(change: Callable[[dict[str, Any]], dict[str, Any]]) -> AbstractContextManager[None]:
    real = block_token
    return patched((bundle, "block_token", lambda **parts: real(**change(parts))))


@PLANTED.plant
def token_without_table() -> AbstractContextManager[None]:
    """Two tables' blocks of one range share a token (H18)."""
    return _token_of(lambda parts: {**parts, "entry": "", "target": ""})


@PLANTED.plant
def token_without_partition() -> AbstractContextManager[None]:
    """Equal ranges of two partitions share a token."""

    def change(parts: dict[str, Any]) -> dict[str, Any]:
        wanted: Range = parts["block_range"]
        source = wanted.source._replace(partition=0)
        return {**parts, "block_range": Range(source, wanted.begin, wanted.end)}

    return _token_of(change)


@PLANTED.plant
def token_with_attempt() -> AbstractContextManager[None]:
    """Each attempt inserts under a token of its own."""
    numbers = itertools.count()
    return _token_of(lambda parts: {**parts, "pipeline": f"p{next(numbers)}"})


@PLANTED.plant
def probe_token_without_digest() -> AbstractContextManager[None]:
    """What a probe found missing is loaded under the token of the whole range (H18)."""
    return _token_of(lambda parts: {**parts, "rest": ""})


@PLANTED.plant
def other_cut_on_replay() -> AbstractContextManager[None]:
    """A repeat reads one message less, as if rows decided the cut (H9)."""
    seen: set[Range] = set()

    def cut(_: Any, block_range: Range) -> Range:
        if block_range in seen and block_range.span > 1:
            return replace(block_range, end=block_range.end - 1)
        seen.add(block_range)
        return block_range

    return _reading(cut)


@PLANTED.plant
def replay_beyond_the_range() -> AbstractContextManager[None]:
    """A repeat reads on to what is there by now."""
    seen: set[Range] = set()

    def extend(self: Any, block_range: Range) -> Range:
        if block_range not in seen:
            seen.add(block_range)
            return block_range
        world = reader.make_consumer(self._access, "")._world  # type: ignore[attr-defined]
        end = min(block_range.end + 2, world.broker.log(block_range.source).stable_end)
        return replace(block_range, end=max(end, block_range.end))

    return _reading(extend)


def _reading(changed: Callable[[Any, Range], Range]) -> AbstractContextManager[None]:
    """Other ranges are read."""
    real = reader.RangeReader.read_ranges

    def read_ranges(self: Any, wanted: Sequence[reader.Wanted], *more: Any, **named: Any) -> Any:
        others = [replace(w, block_range=changed(self, w.block_range)) for w in wanted]
        return real(self, others, *more, **named)

    return patched((reader.RangeReader, "read_ranges", read_ranges))


@PLANTED.instead_of(bundle, "require_topics")
def whoever_has_the_name_is_read(real: Any, *_: Any) -> None:
    """What was read is taken for the recorded topic's, although it was deleted and made anew."""


@PLANTED.instead_of(recorder.Recorder, "finish_take_over")
def take_over_under_own_id(real: Any, self: Any, take_over: Any, commit: Any) -> None:
    """The first record is committed under the new owner's id (H1)."""
    take_over.producers.update(dict.fromkeys(take_over.producers, self.own_producer()))
    real(self, take_over, commit)


@PLANTED.plant
def take_over_without_fencing() -> AbstractContextManager[None]:
    """A take-over reads and records without initialising the old owner's id first."""

    def take_over(self: Any, sources: Any, owner_of: Any = None) -> Any:
        found = self.committed(sources)
        owners = {s: recorder._owner(s, now, owner_of) for s, now in found.items()}
        taken = recorder.TakeOver(found, owners, {})
        taken.producers.update(dict.fromkeys(set(owners.values())))
        return taken

    finish = recorder.Recorder.finish_take_over

    def late(self: Any, take_over: Any, commit: Any) -> None:
        for owner in take_over.producers:
            take_over.producers[owner] = self._initialised(owner)
        finish(self, take_over, commit)

    return patched(
        (recorder.Recorder, "take_over", take_over), (recorder.Recorder, "finish_take_over", late)
    )


@PLANTED.instead_of(recorder, "make_consumer")
def unstable_reads(real: Any, *_: Any, **__: Any) -> Any:
    """Offsets are read without waiting for open transactions (H5)."""
    return recorder.make_unstable_reader(None, "")  # type: ignore[attr-defined, arg-type]


@PLANTED.plant
def no_read_before_record() -> AbstractContextManager[None]:
    """What the group holds is not compared before a record (H2)."""
    return patched((recorder.Recorder, "differences", lambda self, expected: {}))


@PLANTED.instead_of(transactions, "_write")
def dead_letters_outside_transaction(real: Any, producer: SimulatedProducer, content: Any) -> None:
    """Dead letters are sent by themselves before the settle."""
    log = producer._world.broker.topics[content.names.dead_letter_topic][0]
    for letter in content.commit.dead_letters:
        names = content.names
        wrapped = wrap(names.dead_letter_topic, letter, names.dead_letter_bytes_max)
        log.append(Stored(wrapped.value, wrapped.key, tuple(wrapped.headers)))
    real(producer, replace(content, commit=replace(content.commit, dead_letters=())))


@PLANTED.instead_of(transactions, "wrap")
def dead_letters_uncut(_: Any, topic: str, letter: DeadLetter, message_bytes_max: int) -> Any:
    """A dead letter larger than its topic takes is not cut (H21)."""
    return wrap(topic, letter, 1 << 30)


@PLANTED.instead_of(round_planner, "settle")
def begin_instead_of_end(
    real: Any, state: PartitionState, owner: str, batch: int, now_ms: int
) -> Any:
    """A settle commits where its range began."""
    step = real(state, owner, batch, now_ms)
    record = replace(step.record, begin=state.record.begin, end=state.record.begin)
    return replace(step, record=record)


@PLANTED.plant
def lease_checked_too_early() -> AbstractContextManager[None]:
    """The lease is checked when the task starts, not before each insert."""
    real = leases.HeldLease.__init__

    def __init__(self: Any, *parts: Any) -> None:  # noqa: N807
        real(self, *parts)
        leases.HeldLease._check_now(self)  # type: ignore[attr-defined]

    leases.HeldLease._check_now = leases.HeldLease.check  # type: ignore[attr-defined]
    return patched(
        (leases.HeldLease, "__init__", __init__), (leases.HeldLease, "check", lambda *_: math.inf)
    )


@PLANTED.plant
def servers_clock_is_not_asked() -> AbstractContextManager[None]:
    """The lease is measured by the worker's clock alone (R9)."""
    return patched((wire.SimulatedServer, "clock_ms", lambda self: None))


@PLANTED.plant
def budget_in_blocks() -> AbstractContextManager[None]:
    """The window is counted in blocks, not in ClickHouse partitions of blocks (H7)."""
    real = VersionedDecoder.decode

    def decode(self: VersionedDecoder, *parts: Any) -> DecodedRows:
        return replace(real(self, *parts), clickhouse_partitions=1)

    def read_insert_counter(asked: Any, facts: Any) -> int:
        real_read(asked, facts)
        host = asked._world.clickhouse.hosts[asked.url]
        return int(host.tables[facts.table].blocks)

    real_read = window.read_insert_counter

    return patched(
        (VersionedDecoder, "decode", decode),
        (monitor, "read_insert_counter", read_insert_counter),
        (RecordPlanner, "reservation", lambda *_: 1),
    )


@PLANTED.plant
def insert_counters_of_the_repeat() -> AbstractContextManager[None]:
    """Each renewal takes new insert counters, as if nothing had been inserted before it."""
    real, see_real = RecordPlanner.renew, RecordPlanner.see_windows
    insert_counters: dict[str, int] = {}

    def see_windows(self: RecordPlanner, windows: Mapping[TargetShard, ShardWindow]) -> None:
        see_real(self, windows)
        insert_counters.update(
            {
                target_shard.key: window.state.insert_counter
                for target_shard, window in windows.items()
            }
        )

    def renew(
        self: RecordPlanner, state: PartitionState, now_ms: int, reservation: int | None = None
    ) -> Any:
        step = real(self, state, now_ms, reservation)
        before = step.background
        now = {
            key: insert_counters.get(key, insert_counter)
            for key, insert_counter in before.insert_counters.items()
        }
        return replace(step, background=replace(before, insert_counters=now, since_ms=now_ms))

    return patched((RecordPlanner, "see_windows", see_windows), (RecordPlanner, "renew", renew))


@PLANTED.plant
def todays_configuration() -> AbstractContextManager[None]:
    """A replay executes today's decoder and keys, whatever the record says (H10)."""
    return patched(
        (connector, "why_not_executable", lambda *_: None),
        (changes, "why_not_executable", lambda *_: None),
        (schema_decision, "why_not_executable", lambda *_: None),
    )


@PLANTED.instead_of(report_handler.ReportHandler, "_take_report")
def shorten_after_insert(
    real: Any, self: Any, state: PartitionState, report: TaskReport, now_ms: int
) -> Any:
    """A range is shortened although somebody may have inserted it."""
    effects = real(self, state, report, now_ms)
    failed = isinstance(report.outcome, Failed)
    if failed and state.stopped is None and state.block_range.span > 1:
        state.stage = Answered(TooHeavy(state.record.begin + 1, 0))
    return effects


@PLANTED.plant
def cached_watermark() -> AbstractContextManager[None]:
    """Ranges are planned up to the log's end, beyond what is stable (H20)."""
    return patched((SimulatedLog, "stable_ends", SimulatedLog.log_ends))


@PLANTED.instead_of(recording.RoundRecorder, "record")
def range_before_intent(real: Any, self: Any, steps: Any, now_ms: int) -> Any:
    """A range is loaded whose record was not committed (R1)."""
    before = {step.source: step for step in steps if step.record.kind is Kind.INTEND}
    done = real(self, steps, now_ms)
    if not done:
        for source, step in before.items():
            state = self._states[source]
            if state.stopped is None and state.loaded is None and not state.record.in_doubt:
                state.record = step.record
                done.append(state)
    return done


@PLANTED.instead_of(recorder.Recorder, "_find_out")
def unknown_commit_is_lost(_: Any, self: Any, commit: Any, expected: Any) -> None:
    """A commit of unknown outcome counts as not committed (H6)."""
    raise KafkaUnavailableError("the transaction was not committed")


@PLANTED.plant
def window_never_forgets() -> AbstractContextManager[None]:
    """A range in doubt is always repeated, whatever the windows say (H7)."""
    return patched(
        (Budget, "take_again", lambda *_: True),
        (repeating, "why_forgotten", lambda *_: ""),
        (inserting, "_require_remembered", lambda *_: None),
    )


@PLANTED.instead_of(Holds, "at")
def no_late_inserts(real: Any, self: Holds, *parts: Any) -> Any:
    """Late inserts of settled ranges are forgotten by the budget (R10)."""
    return real(Holds(ended=self.ended), *parts)


@PLANTED.plant
def stop_on_half_a_view() -> AbstractContextManager[None]:
    """Group and ledger are compared although somebody recorded in between (R4)."""
    return patched((start, "_refuse_change", lambda *_: None))


for _bugs in (BUNDLE_BUGS, TABLE_BUGS, REPLACING_BUGS, RULE_BUGS, CLAIM_BUGS, STAGING_BUGS):
    PLANTED.update(_bugs)
