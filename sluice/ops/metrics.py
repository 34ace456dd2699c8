"""Metrics of a running pipeline and of the replicas that it watches, in Prometheus' text format.

Everything is read from the loops when it is asked for; nothing is counted twice. Those of each
partition, of which there may be thousands, are written as text: the library takes ten times as
long. Those of how a driver gets on are what `/status` says, as numbers that alerts can judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from sluice import __version__
from sluice.core.claims import CLAIMS
from sluice.core.receipts import IGNORED_FIELDS_MAX
from sluice.driver.counters import Accounted, Blocks, Counters, Histogram, Inserted
from sluice.driver.loop import ConnectorLoop
from sluice.driver.ports import Replicas
from sluice.driver.state import PartitionState
from sluice.ops.proof import Proof, ProofNow
from sluice.ops.running import LAGS, ConnectorNow, FleetNow, TableNow, Verdict, behind_seconds

Loops = Sequence[Callable[[], ConnectorLoop | None]]

#: name -> (what a loop has counted, help)
_COUNTERS: dict[str, tuple[Callable[[Counters], float], str]] = {
    "sluice_messages": (
        lambda counters: counters.messages,
        "Messages in settled ranges, tombstones included.",
    ),
    "sluice_rows": (lambda counters: counters.rows, "Rows in settled blocks, all tables."),
    "sluice_bytes": (
        lambda counters: counters.bytes,
        "Bytes of keys and values in settled ranges.",
    ),
    "sluice_blocks": (
        lambda counters: counters.blocks,
        "Blocks acknowledged by ClickHouse and settled.",
    ),
    "sluice_batches": (
        lambda counters: counters.batches,
        "Transactions that recorded intents or settles.",
    ),
    "sluice_dead_letters": (lambda counters: counters.dead_letters, "Dead letters written."),
    "sluice_tombstones": (lambda counters: counters.skipped, "Messages without a value, skipped."),
    "sluice_unrouted_messages": (
        lambda counters: counters.unrouted,
        "Messages that no table entry takes, skipped or dead letters.",
    ),
    "sluice_dropped_rows": (
        lambda counters: counters.dropped_rows,
        "Bad rows of messages whose other rows were loaded.",
    ),
    "sluice_renewed_ranges": (
        lambda counters: counters.retries,
        "Ranges sent again under a new lease.",
    ),
    "sluice_failovers": (
        lambda counters: counters.failovers,
        "Blocks that another replica took than the one at its turn.",
    ),
    "sluice_locked_inserts": (
        lambda counters: counters.locked_inserts,
        "Blocks sent under the insert lock of their table.",
    ),
    "sluice_insert_lock_wait_seconds": (
        lambda counters: counters.insert_lock_wait_seconds,
        "Time that settled blocks waited for the insert lock.",
    ),
    "sluice_unlocked_inserts": (
        lambda counters: counters.unlocked_inserts,
        "Blocks sent without the insert lock, since the lock's ZooKeeper was away.",
    ),
    "sluice_insert_locks_lost": (
        lambda counters: counters.insert_locks_lost,
        "Insert locks whose ZooKeeper session ended while the block was sent.",
    ),
    "sluice_probes": (
        lambda counters: counters.probes,
        "Ranges that were looked for in their tables.",
    ),
}

#: name -> (what of a table entry, help)
_OF_BLOCKS: dict[str, tuple[Callable[[Blocks], Histogram], str]] = {
    "sluice_block_insert_seconds": (
        lambda blocks: blocks.seconds,
        "Until a server had acknowledged a block.",
    ),
    "sluice_block_rows": (
        lambda blocks: blocks.rows,
        "Rows of a block; of one of a bundle, those of its first range.",
    ),
}

#: name -> (what was inserted, help); a value for each table, shard and replica, so
#: that their rates are the insert rates that each server sees.
_INSERTED: dict[str, tuple[Callable[[Inserted], float], str]] = {
    "sluice_table_blocks": (
        lambda inserted: inserted.blocks,
        "Settled blocks, by the replica that acknowledged them.",
    ),
    "sluice_table_parts": (
        lambda inserted: inserted.parts,
        "Parts that these blocks became: one for each ClickHouse partition of a block.",
    ),
    "sluice_table_rows": (lambda inserted: inserted.rows, "Rows of these blocks."),
    "sluice_table_bytes": (
        lambda inserted: inserted.bytes,
        "Bytes of these blocks as sent, in Native format.",
    ),
}


class LoopCollector(Collector):
    """Reads all loops; what is told of each partition is `partition_text`."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        loops = [loop for loop in (get() for get in self._loops) if loop is not None]
        yield from self._counters(loops)
        yield from replica_metrics(
            (loop.name, loop.replicas, loop.freezing.replicas) for loop in loops
        )

    def _counters(self, loops: list[ConnectorLoop]) -> Iterator[Metric]:
        for name, (counted, text) in _COUNTERS.items():
            family = CounterMetricFamily(name, text, labels=["connector"])
            for loop in loops:
                family.add_metric([loop.name], float(counted(loop.counters)))
            yield family
        failures = CounterMetricFamily(
            "sluice_failures",
            "Ranges that came back unloaded, by error: ClickHouse's name for it, or Sluice's.",
            labels=["connector", "error"],
        )
        unloaded = CounterMetricFamily(
            "sluice_unloaded_ranges",
            "Ranges that came back unloaded without an error, and are sent again: untried, since "
            "the task was held up before it came to them; too_heavy, too many bytes or rows; "
            "bundle_too_heavy, the same of ranges together; reservation, a block needs more of a "
            "window; outdated, the table or what is known of it changed.",
            labels=["connector", "why"],
        )
        memory = GaugeMetricFamily(
            "sluice_worker_memory_bytes_max",
            "Largest resident memory of a worker.",
            labels=["connector"],
        )
        held_back = GaugeMetricFamily(
            "sluice_held_back_ranges",
            "Ranges that wait because max_inflight_inserts are in flight at a replica.",
            labels=["connector"],
        )
        for loop in loops:
            held_back.add_metric([loop.name], float(loop.held_back))
            for error, count in list(loop.counters.failures.items()):
                failures.add_metric([loop.name, error], float(count))
            for why, count in loop.counters.unloaded.items():
                unloaded.add_metric([loop.name, why], float(count))
            memory.add_metric([loop.name], float(loop.counters.worker_memory_bytes_max))
        yield failures
        yield unloaded
        yield memory
        yield held_back
        yield from _waits(loops)
        yield from _crowding(loops)
        yield from _inserted(loops)
        yield _end_to_end(loops)
        yield from _times(loops)
        yield from _out(loops)
        yield from _dead_letters(loops)
        yield from _claims(loops)
        yield from _accounted(loops)


def _waits(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """What is waited for without an attempt, so that no failure counts."""
    windows = GaugeMetricFamily(
        "sluice_window_unreadable",
        "1 while no replica says what a table's deduplication window holds, since they, or their "
        "ZooKeeper, are away: the table's ranges wait.",
        labels=["connector", "table", "shard"],
    )
    kafka = GaugeMetricFamily(
        "sluice_kafka_unanswered",
        "1 while the connector's Kafka does not answer: all ranges wait.",
        labels=["connector"],
    )
    records = GaugeMetricFamily(
        "sluice_consecutive_record_failures",
        "Transactions in a row that could not be committed: nothing is settled meanwhile.",
        labels=["connector"],
    )
    frozen = GaugeMetricFamily(
        "sluice_frozen",
        "1 while a person has frozen a table entry, its connector or its pipeline, or all replicas "
        "of a shard of it: nothing is loaded into it.",
        labels=["connector", "table"],
    )
    parked = GaugeMetricFamily(
        "sluice_parked",
        "1 while a table entry is parked: its messages go to the parking topic, until a person "
        "brings them back.",
        labels=["connector", "table"],
    )
    for loop in loops:
        waits = loop.waits
        for target_shard, outage in waits.windows.items():
            windows.add_metric(
                [loop.name, target_shard.name, target_shard.shard], float(outage is not None)
            )
        kafka.add_metric([loop.name], float(waits.kafka))
        records.add_metric([loop.name], float(waits.records))
        for entry, is_frozen in waits.frozen.items():
            frozen.add_metric([loop.name, entry], float(is_frozen))
        for entry, is_parked in waits.parked.items():
            parked.add_metric([loop.name, entry], float(is_parked))
    yield from (windows, kafka, records, parked, frozen)


def _crowding(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """How far merges are behind."""
    family = GaugeMetricFamily(
        "sluice_parts_ratio",
        "Parts of the fullest ClickHouse partition over parts_to_delay_insert; from 0.5 on, ranges "
        "that are not full wait longer.",
        labels=["connector", "table", "shard"],
    )
    for loop in loops:
        for target_shard, window in loop.windows.items():
            if not target_shard.target and target_shard.shard != CLAIMS:
                family.add_metric(
                    [loop.name, target_shard.entry, target_shard.shard], window.crowding
                )
    yield family


def _inserted(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """What each table took, and where."""
    for name, (counted, text) in _INSERTED.items():
        family = CounterMetricFamily(name, text, labels=["connector", "table", "shard", "replica"])
        for loop in loops:
            for where, inserted in list(loop.counters.inserted.items()):
                family.add_metric([loop.name, *where], float(counted(inserted)))
        yield family


def _end_to_end(loops: list[ConnectorLoop]) -> Metric:
    """How late rows are in their tables."""
    family = HistogramMetricFamily(
        "sluice_end_to_end_seconds",
        "From the timestamp of the oldest message of a range, which its producer or broker has "
        "set, until all rows of the range were acknowledged for a table: once for each settled "
        "range and table entry, so that no message took longer. Ranges without rows in the table "
        'or without timestamps are left out. With reader = "librdkafka" the oldest of the first '
        "messages of each poll, of 500 at most.",
        labels=["connector", "table"],
    )
    for loop in loops:
        for entry, found in list(loop.counters.end_to_end.items()):
            family.add_metric([loop.name, entry], found.buckets(), found.sum)
    return family


def _times(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """What takes how long, and how large blocks are."""
    rounds = HistogramMetricFamily(
        "sluice_round_seconds",
        "What a round of the loop took, without its wait for something to do.",
        labels=["connector"],
    )
    transactions = HistogramMetricFamily(
        "sluice_transaction_seconds",
        "What a transaction took that recorded intents or settles.",
        labels=["connector"],
    )
    stages = HistogramMetricFamily(
        "sluice_stage_seconds",
        "What tasks took over a range: fetch (read Kafka), decode, claim (ask the store of claims, "
        "leave duplicates out), insert, and in total.",
        labels=["connector", "stage"],
    )
    for loop in loops:
        counters = loop.counters
        rounds.add_metric([loop.name], counters.rounds.buckets(), counters.rounds.sum)
        transactions.add_metric(
            [loop.name], counters.transactions.buckets(), counters.transactions.sum
        )
        for stage, found in counters.stages.items():
            stages.add_metric([loop.name, stage], found.buckets(), found.sum)
    yield from (rounds, transactions, stages)
    for name, (of, text) in _OF_BLOCKS.items():
        family = HistogramMetricFamily(name, text, labels=["connector", "table"])
        for loop in loops:
            for entry, blocks in list(loop.counters.sent.items()):
                family.add_metric([loop.name, entry], of(blocks).buckets(), of(blocks).sum)
        yield family


def _out(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """What is given away, what may still come of it, and what a person has to decide."""
    out = GaugeMetricFamily(
        "sluice_ranges_out", "Ranges that tasks have, or wait for one.", labels=["connector"]
    )
    slots = GaugeMetricFamily(
        "sluice_slots", "Tasks that Spark can run at once.", labels=["connector"]
    )
    late = GaugeMetricFamily(
        "sluice_possible_late_inserts",
        "Settled ranges of which an insert may still come, within its lease; each holds a part of "
        "its tables' windows.",
        labels=["connector"],
    )
    stopped = GaugeMetricFamily(
        "sluice_stopped_partitions",
        "Partitions that stopped, by what stopped them.",
        labels=["connector", "error"],
    )
    for loop in loops:
        states = list(loop.states.copy().values())
        out.add_metric([loop.name], float(sum(state.out for state in states)))
        slots.add_metric([loop.name], float(loop.jobs.slots))
        late.add_metric([loop.name], float(len(loop.holds.late_inserts)))
        errors = Counter(type(error).__name__ for s in states if (error := s.stopped) is not None)
        for name, count in errors.items():
            stopped.add_metric([loop.name, name], float(count))
    yield from (out, slots, late, stopped)


def _claims(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """What deduplicating does, and how the store of claims is doing. Whether an entry waits for it
    is among the windows, as shard @claims."""
    duplicates = CounterMetricFamily(
        "sluice_duplicates",
        "Rows left out since another message made the row of their event: in the same ranges, or "
        "before.",
        labels=["connector", "table", "kind"],
    )
    claims = CounterMetricFamily(
        "sluice_claims",
        "Rows whose key was claimed, duplicates included.",
        labels=["connector", "table"],
    )
    seconds = HistogramMetricFamily(
        "sluice_claims_seconds",
        "Until the store of claims had answered for a block.",
        labels=["connector", "table"],
    )
    keys = GaugeMetricFamily(
        "sluice_claims_keys", "About how many claims the store holds.", labels=["connector"]
    )
    used = GaugeMetricFamily(
        "sluice_claims_bytes", "What the store of claims uses.", labels=["connector"]
    )
    limit = GaugeMetricFamily(
        "sluice_claims_max_bytes",
        "What the store of claims may use; it takes no new claims above it.",
        labels=["connector"],
    )
    for loop in loops:
        for entry, claimed in list(loop.counters.claimed.items()):
            claims.add_metric([loop.name, entry], float(claimed.rows))
            for kind in ("in_ranges", "before"):
                duplicates.add_metric([loop.name, entry, kind], float(getattr(claimed, kind)))
            answered = claimed.answered
            seconds.add_metric([loop.name, entry], answered.buckets(), answered.sum)
        facts = loop.claims.facts if loop.claims is not None else None
        if facts is not None:
            used.add_metric([loop.name], float(facts.used_bytes))
            if facts.keys is not None:
                keys.add_metric([loop.name], float(facts.keys))
            if facts.max_bytes is not None:
                limit.add_metric([loop.name], float(facts.max_bytes))
    yield from (duplicates, claims, seconds, keys, used, limit)


def _dead_letters(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """How many dead letters of what."""
    counts = CounterMetricFamily(
        "sluice_dead_letters_by_reason",
        "Dead letters of loaded ranges, by table entry and reason.",
        labels=["connector", "table", "reason"],
    )
    for loop in loops:
        for (table, reason), count in list(loop.dead_letters.counts.items()):
            counts.add_metric([loop.name, table, reason], float(count))
    yield counts


def _accounted(loops: list[ConnectorLoop]) -> Iterator[Metric]:
    """What became of each message. Each table has its series from the start, so that an alert on
    their increase sees the first range."""
    outcomes = CounterMetricFamily(
        "sluice_table_messages",
        "Messages of settled ranges, by what became of them for a table entry: row, dead_letter, "
        "duplicate, skipped, parked, or passed over.",
        labels=["connector", "table", "outcome"],
    )
    unaccounted = CounterMetricFamily(
        "sluice_unaccounted_messages",
        "By how much messages were not rows + dead letters + duplicates + skipped + parked + "
        "passed over; of ranges that were loaded as a whole.",
        labels=["connector", "table"],
    )
    ignored = GaugeMetricFamily(
        "sluice_ignored_fields",
        "Different fields that messages were seen to have and that no column takes, since the "
        f"start; {IGNORED_FIELDS_MAX} at most.",
        labels=["connector", "table"],
    )
    for loop in loops:
        entries = {table.entry: Accounted() for table in loop.planner.spec.tables}
        for entry, found in (entries | loop.counters.accounted).items():
            unaccounted.add_metric([loop.name, entry], float(found.unaccounted))
            fields = len(loop.counters.ignored.get(entry, ()))
            ignored.add_metric([loop.name, entry], float(fields))
            for outcome, count in found.outcomes.items():
                outcomes.add_metric([loop.name, entry, outcome], float(count))
    yield outcomes
    yield unaccounted
    yield ignored


#: name -> help; a value for each replica
_GAUGES = {
    "sluice_replica_healthy": "0 while blocks go to this replica last: it is behind, or away.",
    "sluice_replica_answers": "1 if it answered the last reading.",
    "sluice_replica_delay_seconds": "How far it is behind the others, the worst of its tables.",
    "sluice_replica_queue": "Entries that it still has to replicate, the worst of its tables.",
    "sluice_replica_missing": "Replicas of a table that are not active, as this one sees it.",
    "sluice_replica_frozen": "1 while a person has frozen it, or its data center: it gets no "
    "blocks.",
}


def replica_metrics(
    loops: Iterable[tuple[str, Replicas | None, Collection[str]]],
) -> Iterator[Metric]:
    """Of all loops, by name, with the URLs of replicas that are frozen; a replica that does not
    answer has no delay and no queue."""
    families = {
        name: GaugeMetricFamily(name, text, labels=["connector", "shard", "replica"])
        for name, text in _GAUGES.items()
    }
    differs = GaugeMetricFamily(
        "sluice_cluster_differs",
        "1 while system.clusters has other shards than this driver started with.",
        labels=["connector"],
    )
    for loop, replicas, frozen in loops:
        if replicas is None:
            continue
        differs.add_metric([loop], float(replicas.differs != ""))
        for state in replicas.current():
            condition = state.health.condition
            values: tuple[float | None, ...] = (
                float(not state.health.is_behind),
                float(condition is not None),
                None if condition is None else float(condition.delay_seconds),
                None if condition is None else float(condition.queue),
                None
                if condition is None or condition.total is None or condition.active is None
                else float(condition.total - condition.active),
                float(state.url in frozen),
            )
            for family, value in zip(families.values(), values, strict=True):
                if value is not None:
                    family.add_metric([loop, state.shard, state.url], value)
    yield from families.values()
    yield differs


#: name -> help; gauges with the labels connector, topic and partition.
PARTITION_GAUGES: Mapping[str, str] = {
    "sluice_settled_offset": "Nothing below this offset is outstanding.",
    "sluice_stable_end_offset": "Last stable offset as last read.",
    "sluice_lag_messages": "Stable end minus settled offset.",
    "sluice_behind_seconds": "How old its oldest message that is not settled is, at most.",
    "sluice_in_doubt": "1 while a recorded range is not settled.",
    "sluice_stopped": "1 once the partition stopped; a person must decide.",
    "sluice_probing": "1 while a range waits for its probe.",
    "sluice_consecutive_failures": "Failed attempts at the recorded range.",
}
#: The same with the label table, too.
RATIO = "sluice_dead_letters_ratio"
RATIO_HELP = "Share of dead letters among the last messages; from max_ratio on the partition stops."
LABELS = ("connector", "topic", "partition")


def _values(state: PartitionState, at_ms: int) -> tuple[float, ...]:
    return (
        state.settled,
        state.stable_end,
        max(0, state.stable_end - state.settled),
        behind_seconds(state, at_ms),
        state.record.in_doubt,
        state.stopped is not None,
        state.has_to_be_probed,
        state.failures,
    )


def partition_text(loops: Iterable[ConnectorLoop], at_ms: int) -> str:
    """All of them in Prometheus' text format."""
    lines: list[list[str]] = [[_head(name, text)] for name, text in PARTITION_GAUGES.items()]
    names = tuple(PARTITION_GAUGES)
    ratios = [_head(RATIO, RATIO_HELP)]
    for loop in loops:
        for source, state in loop.states.copy().items():
            where = _labelled(loop.name, source.topic, source.partition)
            for name, family, value in zip(names, lines, _values(state, at_ms), strict=True):
                family.append(f"{name}{{{where}}} {_shown(value)}\n")
        ratios += _ratios(loop)
    return "".join(line for family in (*lines, ratios) for line in family)


def _ratios(loop: ConnectorLoop) -> Iterator[str]:
    """How near each partition is to its limit."""
    for source, window in list(loop.dead_letters.windows.items()):
        where = _labelled(loop.name, source.topic, source.partition)
        for table in list(window.dead_letters):
            yield f'{RATIO}{{{where},table="{_escaped(table)}"}} {_shown(window.ratio(table))}\n'


def _head(name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n"


def _labelled(connector: str, topic: str, partition: int) -> str:
    return f'connector="{_escaped(connector)}",topic="{_escaped(topic)}",partition="{partition}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _shown(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


#: name -> (what of each, help)
_PROOF_GAUGES: dict[str, tuple[Callable[[ProofNow], float], str]] = {
    "sluice_proof_every_seconds": (
        lambda proof: proof.every_seconds,
        "How often the verifier, or the audit, is to look.",
    ),
    "sluice_proof_age_seconds": (
        lambda proof: proof.age_seconds,
        "Since a look came to its end; since the start before the first one.",
    ),
    "sluice_proof_unaudited_tables": (
        lambda proof: len(proof.unaudited),
        "Table entries that the audit does not compare: their rows carry no offset, or their "
        "tables keep the last row of each key.",
    ),
}
_PROOF_COUNTERS: dict[str, tuple[Callable[[ProofNow], float], str]] = {
    "sluice_proof_covered": (
        lambda proof: proof.covered,
        "Entries that the verifier has judged, or offsets that the audit has compared.",
    ),
    "sluice_proof_left_out": (
        lambda proof: proof.left_out,
        "Offsets that were settled and never compared, since there was no time for them.",
    ),
    "sluice_proof_uncounted": (
        lambda proof: proof.uncounted,
        "Messages of any number of rows within which rows may be missing, since nothing says how "
        "many they have.",
    ),
}


class ProofCollector(Collector):
    """Reads what was found so far."""

    def __init__(self, proof: Proof | None, pipeline: str) -> None:
        self._proof, self._pipeline = proof, pipeline

    def collect(self) -> Iterable[Metric]:
        """All metrics now. Each kind has a series from the start, so that an alert on its increase
        sees the first one."""
        labels, name = ["pipeline", "what"], self._pipeline
        found = [] if self._proof is None else self._proof.now()
        for family_name, (value, text) in _PROOF_GAUGES.items():
            gauge = GaugeMetricFamily(family_name, text, labels=labels)
            for each in found:
                gauge.add_metric([name, each.what], float(value(each)))
            yield gauge
        for family_name, (value, text) in _PROOF_COUNTERS.items():
            counter = CounterMetricFamily(family_name, text, labels=labels)
            for each in found:
                counter.add_metric([name, each.what], float(value(each)))
            yield counter
        turns = CounterMetricFamily(
            "sluice_proof_turns",
            "Looks, by whether they came to their end.",
            labels=[*labels, "result"],
        )
        problems = CounterMetricFamily(
            "sluice_proof_problems", "What is wrong, by kind.", labels=[*labels, "kind"]
        )
        for each in found:
            turns.add_metric([name, each.what, "ended"], float(each.turns))
            turns.add_metric([name, each.what, "failed"], float(each.failures))
            for kind, count in each.problems.items():
                problems.add_metric([name, each.what, kind], float(count))
        cpu = CounterMetricFamily(
            "sluice_proof_cpu_seconds",
            "Processor time of the process that verifies and audits.",
            labels=["pipeline"],
        )
        memory = GaugeMetricFamily(
            "sluice_proof_memory_bytes_max", "Its largest resident memory.", labels=["pipeline"]
        )
        if found and self._proof is not None:
            cpu.add_metric([name], self._proof.cpu_seconds)
            memory.add_metric([name], float(self._proof.memory_bytes))
        yield from (turns, problems, cpu, memory)


#: name -> (what of a table entry, help)
_OF_TABLES: dict[str, tuple[Callable[[TableNow], float | None], str]] = {
    "sluice_table_lag_messages": (
        lambda table: table.amounts.lag_messages,
        "Messages between settled and last stable offsets, of all partitions of a table entry.",
    ),
    "sluice_table_behind_seconds": (
        lambda table: table.amounts.behind_seconds,
        "How old the oldest message that is not settled is, at most: since then all that was "
        "there has been settled; or, where less is loaded than is there, the age of the message "
        "that was settled last, by its timestamp. Until a driver has settled something: since when "
        "it sees messages wait.",
    ),
    "sluice_table_in_doubt_ranges": (
        lambda table: table.amounts.in_doubt,
        "Recorded ranges of a table entry that are not settled.",
    ),
    "sluice_table_oldest_intent_seconds": (
        lambda table: table.amounts.oldest_intent_seconds or 0.0,
        "Age of the oldest recorded range that is not settled; 0 while there is none.",
    ),
    "sluice_table_last_settled_timestamp_seconds": (
        lambda table: (table.amounts.last_settled_ms or 0) / 1000,
        "When a range of a table entry was last settled; 0 before the first one.",
    ),
}


#: name -> (what of a fleet, help)
_OF_FLEETS: dict[str, tuple[Callable[[FleetNow], float], str]] = {
    "sluice_fleet_members": (
        lambda fleet: len(fleet.members),
        "Drivers that report to the fleet of a connector, this one too.",
    ),
    "sluice_fleet_silent_members": (
        lambda fleet: len(fleet.silent),
        "Drivers that have reported, report no more, and are not known to be gone.",
    ),
    "sluice_fleet_report_age_seconds": (
        lambda fleet: fleet.report_age_seconds,
        "Since when the driver has read no report of its own.",
    ),
    "sluice_fleet_unreadable_messages": (
        lambda fleet: fleet.unreadable,
        "Messages of the fleet's topic that were passed over, since this version cannot read them.",
    ),
    "sluice_fleet_unowned_partitions": (
        lambda fleet: fleet.unowned_partitions,
        "Partitions of the connector that nobody loads, as this driver last saw them: their "
        "records name no member which reports. Nobody has taken them over, or who did so stopped "
        "them.",
    ),
    "sluice_fleet_busy_partitions": (
        lambda fleet: fleet.busy_partitions,
        "Partitions of this driver to which much more comes than to those of the fleet on average, "
        "as its last report says: 64 at most.",
    ),
    "sluice_fleet_wanted_slots": (
        lambda fleet: fleet.wanted_slots,
        "Tasks at once, of all members, that the work of the last minutes takes.",
    ),
    "sluice_fleet_wanted_members": (
        lambda fleet: fleet.wanted_members,
        "Members with as many slots as today's that the work of the last minutes takes.",
    ),
}


class RunningCollector(Collector):
    """Reads the last look at all connectors.

    :param look: gives it.
    :param pipeline: part of the label `connector`, as of the other metrics.
    """

    def __init__(self, look: Callable[[], Sequence[ConnectorNow]], pipeline: str) -> None:
        self._look, self._pipeline = look, pipeline

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        found = [(f"{self._pipeline}.{each.name}", each) for each in self._look()]
        moving = GaugeMetricFamily(
            "sluice_connector_moving",
            "1 while something of the connector loads, or has nothing to load; as /ready says.",
            labels=["connector"],
        )
        partitions = GaugeMetricFamily(
            "sluice_partitions", "Partitions by verdict.", labels=["connector", "verdict"]
        )
        left = GaugeMetricFamily(
            "sluice_window_left_ratio",
            "Share that is left of what ranges may fill of a deduplication window, the least of "
            "the tables behind a table entry in a shard.",
            labels=["connector", "table", "shard"],
        )
        differs = GaugeMetricFamily(
            "sluice_file_not_applied",
            "1 while the driver's file has other tables or topics than the applied version that it "
            "loads by, or cannot be used.",
            labels=["connector"],
        )
        for name, connector in found:
            moving.add_metric([name], float(connector.is_moving))
            applied = connector.applied
            differs.add_metric([name], float(applied is not None and applied.file_differs))
            for verdict in get_args(Verdict):
                count = connector.amounts.partitions.get(verdict, 0)
                partitions.add_metric([name, verdict], float(count))
            for table in connector.tables:
                for shard in sorted({window.shard for window in table.windows}):
                    least = min(window.left for window in table.windows if window.shard == shard)
                    left.add_metric([name, table.name, shard], least)
        keeping_up = GaugeMetricFamily(
            "sluice_table_partitions",
            "Partitions of a table entry by how they keep up over some minutes: ok; behind, their "
            "lag has grown by more than a range; stalled, nothing is settled although messages are "
            "there; stopped, or frozen.",
            labels=["connector", "table", "lag"],
        )
        for name, connector in found:
            for table in connector.tables:
                for lag in LAGS:
                    count = table.amounts.lags.get(lag, 0)
                    keeping_up.add_metric([name, table.name, lag], float(count))
        built = GaugeMetricFamily("sluice_build_info", "1; its version.", labels=["version"])
        built.add_metric([__version__], 1.0)
        yield from (moving, differs, partitions, left, keeping_up, built)
        for family_name, (value, text) in _OF_TABLES.items():
            family = GaugeMetricFamily(family_name, text, labels=["connector", "table"])
            for name, connector in found:
                for table in connector.tables:
                    family.add_metric([name, table.name], float(value(table) or 0))
            yield family
        for family_name, (of_fleet, text) in _OF_FLEETS.items():
            family = GaugeMetricFamily(family_name, text, labels=["connector"])
            for name, connector in found:
                if connector.fleet is not None:
                    family.add_metric([name], float(of_fleet(connector.fleet)))
            yield family
