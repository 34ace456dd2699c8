"""Metrics of a running pipeline and of the replicas that it watches, in Prometheus' text format.

Everything is read from the loops when it is asked for; nothing is counted twice. Those of each
partition, of which there may be thousands, are written as text: the library takes ten times as
long. Those of how a driver gets on are what `/status` says, as numbers that alerts can judge.

What they say stands in tables, one for each kind of subject: `Family` says what a line has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, get_args

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sluice import __version__
from sluice.claims.port import StoreFacts
from sluice.core.claims import CLAIMS
from sluice.core.receipts import IGNORED_FIELDS_MAX
from sluice.core.replicas import Condition
from sluice.driver.counters import Accounted, Blocks, Claimed, Counters, Inserted, Waits
from sluice.driver.loop import ConnectorLoop
from sluice.driver.ports import Replicas, ReplicaState
from sluice.driver.state import PartitionState
from sluice.ops.families import CounterFamily, Family, GaugeFamily, HistogramFamily, Labelled, told
from sluice.ops.proof import Proof, ProofNow
from sluice.ops.running import LAGS, ConnectorNow, FleetNow, TableNow, Verdict, behind_seconds

Loops = Sequence[Callable[[], ConnectorLoop | None]]
_Found = TypeVar("_Found")

_COUNTERS: Mapping[str, Family[Counters]] = {
    "sluice_messages": CounterFamily(
        "Messages in settled ranges, tombstones included.", lambda each: each.messages
    ),
    "sluice_rows": CounterFamily("Rows in settled blocks, all tables.", lambda each: each.rows),
    "sluice_bytes": CounterFamily(
        "Bytes of keys and values in settled ranges.", lambda each: each.bytes
    ),
    "sluice_blocks": CounterFamily(
        "Blocks acknowledged by ClickHouse and settled.", lambda each: each.blocks
    ),
    "sluice_batches": CounterFamily(
        "Transactions that recorded intents or settles.", lambda each: each.batches
    ),
    "sluice_dead_letters": CounterFamily("Dead letters written.", lambda each: each.dead_letters),
    "sluice_tombstones": CounterFamily(
        "Messages without a value, skipped.", lambda each: each.skipped
    ),
    "sluice_unrouted_messages": CounterFamily(
        "Messages that no table entry takes, skipped or dead letters.", lambda each: each.unrouted
    ),
    "sluice_dropped_rows": CounterFamily(
        "Bad rows of messages whose other rows were loaded.", lambda each: each.dropped_rows
    ),
    "sluice_renewed_ranges": CounterFamily(
        "Ranges sent again under a new lease.", lambda each: each.retries
    ),
    "sluice_failovers": CounterFamily(
        "Blocks that another replica took than the one at its turn.", lambda each: each.failovers
    ),
    "sluice_locked_inserts": CounterFamily(
        "Blocks sent under the insert lock of their table.", lambda each: each.locked_inserts
    ),
    "sluice_insert_lock_wait_seconds": CounterFamily(
        "Time that settled blocks waited for the insert lock.",
        lambda each: each.insert_lock_wait_seconds,
    ),
    "sluice_unlocked_inserts": CounterFamily(
        "Blocks sent without the insert lock, since the lock's ZooKeeper was away.",
        lambda each: each.unlocked_inserts,
    ),
    "sluice_insert_locks_lost": CounterFamily(
        "Insert locks whose ZooKeeper session ended while the block was sent.",
        lambda each: each.insert_locks_lost,
    ),
    "sluice_probes": CounterFamily(
        "Ranges that were looked for in their tables.", lambda each: each.probes
    ),
    "sluice_failures": CounterFamily(
        "Ranges that came back unloaded, by error: ClickHouse's name for it, or Sluice's.",
        lambda each: each.failures.items(),
        ("error",),
    ),
    "sluice_unloaded_ranges": CounterFamily(
        "Ranges that came back unloaded without an error, and are sent again: untried, since the "
        "task was held up before it came to them; too_heavy, too many bytes or rows; "
        "bundle_too_heavy, the same of ranges together; reservation, a block needs more of a "
        "window; outdated, the table or what is known of it changed.",
        lambda each: each.unloaded.items(),
        ("why",),
    ),
    "sluice_worker_memory_bytes_max": GaugeFamily(
        "Largest resident memory of a worker.", lambda each: each.worker_memory_bytes_max
    ),
    "sluice_end_to_end_seconds": HistogramFamily(
        "From the timestamp of the oldest message of a range, which its producer or broker has "
        "set, until all rows of the range were acknowledged for a table: once for each settled "
        "range and table entry, so that no message took longer. Ranges without rows in the table "
        'or without timestamps are left out. With reader = "librdkafka" the oldest of the first '
        "messages of each poll, of 500 at most.",
        lambda each: each.end_to_end.items(),
        ("table",),
    ),
    "sluice_round_seconds": HistogramFamily(
        "What a round of the loop took, without its wait for something to do.",
        lambda each: each.rounds,
    ),
    "sluice_transaction_seconds": HistogramFamily(
        "What a transaction took that recorded intents or settles.", lambda each: each.transactions
    ),
    "sluice_stage_seconds": HistogramFamily(
        "What tasks took over a range: fetch (read Kafka), decode, claim (ask the store of claims, "
        "leave duplicates out), insert, and in total.",
        lambda each: each.stages.items(),
        ("stage",),
    ),
}

#: Of a table entry.
_BLOCKS: Mapping[str, Family[Blocks]] = {
    "sluice_block_insert_seconds": HistogramFamily(
        "Until a server had acknowledged a block.", lambda each: each.seconds
    ),
    "sluice_block_rows": HistogramFamily(
        "Rows of a block; of one of a bundle, those of its first range.", lambda each: each.rows
    ),
}

#: Of each table, shard and replica, so that their rates are the insert rates that each server sees.
_INSERTED: Mapping[str, Family[Inserted]] = {
    "sluice_table_blocks": CounterFamily(
        "Settled blocks, by the replica that acknowledged them.", lambda each: each.blocks
    ),
    "sluice_table_parts": CounterFamily(
        "Parts that these blocks became: one for each ClickHouse partition of a block.",
        lambda each: each.parts,
    ),
    "sluice_table_rows": CounterFamily("Rows of these blocks.", lambda each: each.rows),
    "sluice_table_bytes": CounterFamily(
        "Bytes of these blocks as sent, in Native format.", lambda each: each.bytes
    ),
}

#: What is waited for without an attempt, so that no failure counts.
_WAITS: Mapping[str, Family[Waits]] = {
    "sluice_window_unreadable": GaugeFamily(
        "1 while no replica says what a table's deduplication window holds, since they, or their "
        "ZooKeeper, are away: the table's ranges wait.",
        lambda each: (((at.name, at.shard), why is not None) for at, why in each.windows.items()),
        ("table", "shard"),
    ),
    "sluice_kafka_unanswered": GaugeFamily(
        "1 while the connector's Kafka does not answer: all ranges wait.", lambda each: each.kafka
    ),
    "sluice_consecutive_record_failures": GaugeFamily(
        "Transactions in a row that could not be committed: nothing is settled meanwhile.",
        lambda each: each.records,
    ),
    "sluice_parked": GaugeFamily(
        "1 while a table entry is parked: its messages go to the parking topic, until a person "
        "brings them back.",
        lambda each: each.parked.items(),
        ("table",),
    ),
    "sluice_frozen": GaugeFamily(
        "1 while a person has frozen a table entry, its connector or its pipeline, or all replicas "
        "of a shard of it: nothing is loaded into it.",
        lambda each: each.frozen.items(),
        ("table",),
    ),
    "sluice_refused_topics": GaugeFamily(
        "Topics that are to be loaded and are not, since the driver refuses them: they do not "
        "exist, do not begin as `start` says, or would come twice into one table.",
        lambda each: len(each.refused),
    ),
}


def _crowding(loop: ConnectorLoop) -> Labelled:
    for at, window in loop.windows.items():
        if not at.target and at.shard != CLAIMS:
            yield (at.entry, at.shard), window.crowding


def _stopped(loop: ConnectorLoop) -> Labelled:
    states = loop.states.copy().values()
    return Counter(type(s.stopped).__name__ for s in states if s.stopped is not None).items()


#: What is given away, what may still come of it, how far merges are behind, and what a person has
#: to decide.
_LOOPS: Mapping[str, Family[ConnectorLoop]] = {
    "sluice_held_back_ranges": GaugeFamily(
        "Ranges that wait because max_inflight_inserts are in flight at a replica.",
        lambda each: each.held_back,
    ),
    "sluice_parts_ratio": GaugeFamily(
        "Parts of the fullest ClickHouse partition over parts_to_delay_insert; from 0.5 on, ranges "
        "that are not full wait longer.",
        _crowding,
        ("table", "shard"),
    ),
    "sluice_ranges_out": GaugeFamily(
        "Ranges that tasks have, or wait for one.",
        lambda each: sum(state.out for state in each.states.copy().values()),
    ),
    "sluice_slots": GaugeFamily("Tasks that Spark can run at once.", lambda each: each.jobs.slots),
    "sluice_possible_late_inserts": GaugeFamily(
        "Settled ranges of which an insert may still come, within its lease; each holds a part of "
        "its tables' windows.",
        lambda each: len(each.holds.late_inserts),
    ),
    "sluice_stopped_partitions": GaugeFamily(
        "Partitions that stopped, by what stopped them.", _stopped, ("error",)
    ),
    "sluice_dead_letters_by_reason": CounterFamily(
        "Dead letters of loaded ranges, by table entry and reason.",
        lambda each: each.dead_letters.counts.items(),
        ("table", "reason"),
    ),
    "sluice_ignored_fields": GaugeFamily(
        "Different fields that messages were seen to have and that no column takes, since the "
        f"start; {IGNORED_FIELDS_MAX} at most.",
        lambda each: (
            (entry, len(each.counters.ignored.get(entry, ()))) for entry in _accounted(each)
        ),
        ("table",),
    ),
}

#: What deduplicating does, of a table entry. Whether it waits for the store of claims is among the
#: windows, as shard @claims.
_CLAIMED: Mapping[str, Family[Claimed]] = {
    "sluice_duplicates": CounterFamily(
        "Rows left out since another message made the row of their event: in the same ranges, or "
        "before.",
        lambda each: (("in_ranges", each.in_ranges), ("before", each.before)),
        ("kind",),
    ),
    "sluice_claims": CounterFamily(
        "Rows whose key was claimed, duplicates included.", lambda each: each.rows
    ),
    "sluice_claims_seconds": HistogramFamily(
        "Until the store of claims had answered for a block.", lambda each: each.answered
    ),
}
_STORES: Mapping[str, Family[StoreFacts]] = {
    "sluice_claims_keys": GaugeFamily(
        "About how many claims the store holds.", lambda each: each.keys
    ),
    "sluice_claims_bytes": GaugeFamily(
        "What the store of claims uses.", lambda each: each.used_bytes
    ),
    "sluice_claims_max_bytes": GaugeFamily(
        "What the store of claims may use; it takes no new claims above it.",
        lambda each: each.max_bytes,
    ),
}

#: What became of the messages of a table entry.
_ACCOUNTED: Mapping[str, Family[Accounted]] = {
    "sluice_table_messages": CounterFamily(
        "Messages of settled ranges, by what became of them for a table entry: row, dead_letter, "
        "duplicate, skipped, parked, or passed over.",
        lambda each: each.outcomes.items(),
        ("outcome",),
    ),
    "sluice_unaccounted_messages": CounterFamily(
        "By how much messages were not rows + dead letters + duplicates + skipped + parked + "
        "passed over; of ranges that were loaded as a whole.",
        lambda each: each.unaccounted,
    ),
}


def _accounted(loop: ConnectorLoop) -> dict[str, Accounted]:
    """By table entry. Each has its series from the start, so that an alert on their increase sees
    the first range."""
    return {t.entry: Accounted() for t in loop.planner.spec.tables} | loop.counters.accounted


class LoopCollector(Collector):
    """Reads all loops; what is told of each partition is `partition_text`."""

    def __init__(self, loops: Loops) -> None:
        self._loops = loops

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        loops = [loop for loop in (get() for get in self._loops) if loop is not None]
        connector, entry = ("connector",), ("connector", "table")
        yield from told(_COUNTERS, (((loop.name,), loop.counters) for loop in loops), connector)
        yield from told(_LOOPS, (((loop.name,), loop) for loop in loops), connector)
        yield from told(_WAITS, (((loop.name,), loop.waits) for loop in loops), connector)
        yield from told(_BLOCKS, _entries(loops, lambda each: each.counters.sent), entry)
        yield from told(_CLAIMED, _entries(loops, lambda each: each.counters.claimed), entry)
        yield from told(_ACCOUNTED, _entries(loops, _accounted), entry)
        inserted = (
            ((loop.name, *where), found)
            for loop in loops
            for where, found in list(loop.counters.inserted.items())
        )
        yield from told(_INSERTED, inserted, (*entry, "shard", "replica"))
        stores = ((loop.name, loop.claims.facts) for loop in loops if loop.claims is not None)
        known = (((name,), facts) for name, facts in stores if facts is not None)
        yield from told(_STORES, known, connector)
        yield from replica_metrics(
            (loop.name, loop.replicas, loop.freezing.replicas) for loop in loops
        )


def _entries(
    loops: Iterable[ConnectorLoop], of: Callable[[ConnectorLoop], Mapping[str, _Found]]
) -> Iterator[tuple[tuple[str, ...], _Found]]:
    for loop in loops:
        for entry, found in list(of(loop).items()):
            yield (loop.name, entry), found


_REPLICAS: Mapping[str, Family[ReplicaState]] = {
    "sluice_replica_healthy": GaugeFamily(
        "0 while blocks go to this replica last: it is behind, or away.",
        lambda each: not each.health.is_behind,
    ),
    "sluice_replica_answers": GaugeFamily(
        "1 if it answered the last reading.", lambda each: each.health.condition is not None
    ),
}


def _missing(read: Condition) -> int | None:
    return None if read.total is None or read.active is None else read.total - read.active


#: Of a replica that answers.
_CONDITIONS: Mapping[str, Family[Condition]] = {
    "sluice_replica_delay_seconds": GaugeFamily(
        "How far it is behind the others, the worst of its tables.", lambda each: each.delay_seconds
    ),
    "sluice_replica_queue": GaugeFamily(
        "Entries that it still has to replicate, the worst of its tables.", lambda each: each.queue
    ),
    "sluice_replica_missing": GaugeFamily(
        "Replicas of a table that are not active, as this one sees it.", _missing
    ),
}
_FROZEN: Mapping[str, Family[bool]] = {
    "sluice_replica_frozen": GaugeFamily(
        "1 while a person has frozen it, or its data center: it gets no blocks.",
        lambda is_frozen: is_frozen,
    ),
}
_CLUSTERS: Mapping[str, Family[Replicas]] = {
    "sluice_cluster_differs": GaugeFamily(
        "1 while system.clusters has other shards than this driver started with.",
        lambda each: each.differs != "",
    ),
}


def replica_metrics(
    loops: Iterable[tuple[str, Replicas | None, Collection[str]]],
) -> Iterator[Metric]:
    """Of all loops, by name, with the URLs of replicas that are frozen; a replica that does not
    answer has no delay and no queue."""
    watching = [(loop, found, frozen) for loop, found, frozen in loops if found is not None]
    replicas = [
        ((loop, state.shard, state.url), state, state.url in frozen)
        for loop, found, frozen in watching
        for state in found.current()
    ]
    labels = "connector", "shard", "replica"
    read = ((where, state.health.condition) for where, state, _ in replicas)
    answers = ((where, condition) for where, condition in read if condition is not None)
    yield from told(_REPLICAS, ((where, state) for where, state, _ in replicas), labels)
    yield from told(_CONDITIONS, answers, labels)
    yield from told(_FROZEN, ((where, is_frozen) for where, _, is_frozen in replicas), labels)
    yield from told(_CLUSTERS, (((loop,), found) for loop, found, _ in watching), labels[:1])


#: By name, a gauge with LABELS: its value at a time, and its help.
PARTITION_GAUGES: Mapping[str, tuple[Callable[[PartitionState, int], float], str]] = {
    "sluice_settled_offset": (
        lambda state, at_ms: state.settled,
        "Nothing below this offset is outstanding.",
    ),
    "sluice_stable_end_offset": (
        lambda state, at_ms: state.stable_end,
        "Last stable offset as last read.",
    ),
    "sluice_lag_messages": (
        lambda state, at_ms: max(0, state.stable_end - state.settled),
        "Stable end minus settled offset.",
    ),
    "sluice_behind_seconds": (
        behind_seconds,
        "How old its oldest message that is not settled is, at most.",
    ),
    "sluice_in_doubt": (
        lambda state, at_ms: state.record.in_doubt,
        "1 while a recorded range is not settled.",
    ),
    "sluice_stopped": (
        lambda state, at_ms: state.stopped is not None,
        "1 once the partition stopped; a person must decide.",
    ),
    "sluice_probing": (
        lambda state, at_ms: state.has_to_be_probed,
        "1 while a range waits for its probe.",
    ),
    "sluice_consecutive_failures": (
        lambda state, at_ms: state.failures,
        "Failed attempts at the recorded range.",
    ),
}
#: The same with the label table, too.
RATIO = "sluice_dead_letters_ratio"
RATIO_HELP = "Share of dead letters among the last messages; from max_ratio on the partition stops."
LABELS = ("connector", "topic", "partition")


def partition_text(loops: Iterable[ConnectorLoop], at_ms: int) -> str:
    """All of them in Prometheus' text format."""
    families = [
        (name, value, [_head(name, text)]) for name, (value, text) in PARTITION_GAUGES.items()
    ]
    ratios = [_head(RATIO, RATIO_HELP)]
    for loop in loops:
        for source, state in loop.states.copy().items():
            where = _labelled(loop.name, source.topic, source.partition)
            for name, value, lines in families:
                lines.append(f"{name}{{{where}}} {_shown(value(state, at_ms))}\n")
        ratios += _ratios(loop)
    return "".join(
        line for lines in (*(lines for _, _, lines in families), ratios) for line in lines
    )


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


_PROOF: Mapping[str, Family[ProofNow]] = {
    "sluice_proof_every_seconds": GaugeFamily(
        "How often the verifier, or the audit, is to look.", lambda each: each.every_seconds
    ),
    "sluice_proof_age_seconds": GaugeFamily(
        "Since a look came to its end; since the start before the first one.",
        lambda each: each.age_seconds,
    ),
    "sluice_proof_unaudited_tables": GaugeFamily(
        "Table entries that the audit does not compare: their rows carry no offset, their tables "
        "keep the last row of each key, or they are not configured any more.",
        lambda each: len(each.unaudited),
    ),
    "sluice_proof_covered": CounterFamily(
        "Entries that the verifier has judged, or offsets that the audit has compared.",
        lambda each: each.covered,
    ),
    "sluice_proof_left_out": CounterFamily(
        "Offsets that were settled and never compared, since there was no time for them.",
        lambda each: each.left_out,
    ),
    "sluice_proof_uncounted": CounterFamily(
        "Messages of any number of rows within which rows may be missing, since nothing says how "
        "many they have.",
        lambda each: each.uncounted,
    ),
    "sluice_proof_not_demanded": CounterFamily(
        "Messages that no table entry loaded into a table when they were settled, and that those "
        "of now would load there: nobody looks for their rows.",
        lambda each: each.not_demanded,
    ),
    "sluice_proof_unrecorded": CounterFamily(
        "Messages that were judged by the table entries of now, since the ledger does not say by "
        "which they were loaded.",
        lambda each: each.unrecorded,
    ),
    "sluice_proof_turns": CounterFamily(
        "Looks, by whether they came to their end.",
        lambda each: (("ended", each.turns), ("failed", each.failures)),
        ("result",),
    ),
    "sluice_proof_problems": CounterFamily(
        "What is wrong, by kind.", lambda each: each.problems.items(), ("kind",)
    ),
}
_PROOF_PROCESS: Mapping[str, Family[Proof]] = {
    "sluice_proof_cpu_seconds": CounterFamily(
        "Processor time of the process that verifies and audits.", lambda each: each.cpu_seconds
    ),
    "sluice_proof_memory_bytes_max": GaugeFamily(
        "Its largest resident memory.", lambda each: each.memory_bytes
    ),
}


class ProofCollector(Collector):
    """Reads what was found so far."""

    def __init__(self, proof: Proof | None, pipeline: str) -> None:
        self._proof, self._pipeline = proof, pipeline

    def collect(self) -> Iterable[Metric]:
        """All metrics now. Each kind has a series from the start, so that an alert on its increase
        sees the first one."""
        name, proof = self._pipeline, self._proof
        found = [] if proof is None else proof.now()
        processes = [((name,), proof)] if proof is not None and found else []
        yield from told(_PROOF, (((name, now.what), now) for now in found), ("pipeline", "what"))
        yield from told(_PROOF_PROCESS, processes, ("pipeline",))


_CONNECTORS: Mapping[str, Family[ConnectorNow]] = {
    "sluice_connector_moving": GaugeFamily(
        "1 while something of the connector loads, or has nothing to load; as /ready says.",
        lambda each: each.is_moving,
    ),
    "sluice_file_not_applied": GaugeFamily(
        "1 while the driver's file has other tables or topics than the applied version that it "
        "loads by, or cannot be used.",
        lambda each: each.applied is not None and each.applied.file_differs,
    ),
    "sluice_partitions": GaugeFamily(
        "Partitions by verdict.",
        lambda each: (
            (verdict, each.amounts.partitions.get(verdict, 0)) for verdict in get_args(Verdict)
        ),
        ("verdict",),
    ),
}


def _window_left(table: TableNow) -> Labelled:
    for shard in sorted({window.shard for window in table.windows}):
        yield shard, min(window.left for window in table.windows if window.shard == shard)


_TABLES: Mapping[str, Family[TableNow]] = {
    "sluice_window_left_ratio": GaugeFamily(
        "Share that is left of what ranges may fill of a deduplication window, the least of the "
        "tables behind a table entry in a shard.",
        _window_left,
        ("shard",),
    ),
    "sluice_table_partitions": GaugeFamily(
        "Partitions of a table entry by how they keep up over some minutes: ok; behind, their lag "
        "has grown by more than a range; stalled, nothing is settled although messages are there; "
        "stopped, or frozen.",
        lambda each: ((lag, each.amounts.lags.get(lag, 0)) for lag in LAGS),
        ("lag",),
    ),
    "sluice_table_lag_messages": GaugeFamily(
        "Messages between settled and last stable offsets, of all partitions of a table entry.",
        lambda each: each.amounts.lag_messages,
    ),
    "sluice_table_behind_seconds": GaugeFamily(
        "How old the oldest message that is not settled is, at most: since then all that was "
        "there has been settled; or, where less is loaded than is there, the age of the message "
        "that was settled last, by its timestamp. Until a driver has settled something: since when "
        "it sees messages wait.",
        lambda each: each.amounts.behind_seconds,
    ),
    "sluice_table_in_doubt_ranges": GaugeFamily(
        "Recorded ranges of a table entry that are not settled.", lambda each: each.amounts.in_doubt
    ),
    "sluice_table_oldest_intent_seconds": GaugeFamily(
        "Age of the oldest recorded range that is not settled; 0 while there is none.",
        lambda each: each.amounts.oldest_intent_seconds or 0,
    ),
    "sluice_table_last_settled_timestamp_seconds": GaugeFamily(
        "When a range of a table entry was last settled; 0 before the first one.",
        lambda each: (each.amounts.last_settled_ms or 0) / 1000,
    ),
}

_FLEETS: Mapping[str, Family[FleetNow]] = {
    "sluice_fleet_members": GaugeFamily(
        "Drivers that report to the fleet of a connector, this one too.",
        lambda each: len(each.members),
    ),
    "sluice_fleet_silent_members": GaugeFamily(
        "Drivers that have reported, report no more, and are not known to be gone.",
        lambda each: len(each.silent),
    ),
    "sluice_fleet_report_age_seconds": GaugeFamily(
        "Since when the driver has read no report of its own.", lambda each: each.report_age_seconds
    ),
    "sluice_fleet_unreadable_messages": GaugeFamily(
        "Messages of the fleet's topic that were passed over, since this version cannot read them.",
        lambda each: each.unreadable,
    ),
    "sluice_fleet_unowned_partitions": GaugeFamily(
        "Partitions of the connector that nobody loads, as this driver last saw them: their "
        "records name no member which reports. Nobody has taken them over, or who did so stopped "
        "them.",
        lambda each: each.unowned_partitions,
    ),
    "sluice_fleet_look_age_seconds": GaugeFamily(
        "Since when the driver has not looked at all partitions of the connector, and taken over "
        "what it is to have: nothing comes to it, and it inherits from nobody.",
        lambda each: each.look_age_seconds,
    ),
    "sluice_fleet_busy_partitions": GaugeFamily(
        "Partitions of this driver to which much more comes than to those of the fleet on average, "
        "as its last report says: 64 at most.",
        lambda each: each.busy_partitions,
    ),
    "sluice_fleet_wanted_slots": GaugeFamily(
        "Tasks at once, of all members, that the work of the last minutes takes.",
        lambda each: each.wanted_slots,
    ),
    "sluice_fleet_wanted_members": GaugeFamily(
        "Members with as many slots as today's that the work of the last minutes takes.",
        lambda each: each.wanted_members,
    ),
}
_BUILDS: Mapping[str, Family[str]] = {
    "sluice_build_info": GaugeFamily("1; its version.", lambda version: 1.0),
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
        found = [((f"{self._pipeline}.{each.name}",), each) for each in self._look()]
        tables = (((*name, each.name), each) for name, now in found for each in now.tables)
        fleets = ((name, now.fleet) for name, now in found if now.fleet is not None)
        yield from told(_CONNECTORS, found, ("connector",))
        yield from told(_TABLES, tables, ("connector", "table"))
        yield from told(_FLEETS, fleets, ("connector",))
        yield from told(_BUILDS, [((__version__,), __version__)], ("version",))
