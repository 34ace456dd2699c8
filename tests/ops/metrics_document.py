"""docs/METRICS.md, made of the metrics as they are and of what is normal of each.

`python -m tests.ops.metrics_document > docs/METRICS.md` writes it; a test holds that it is so.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric

from sluice.ops.metrics import (
    LABELS,
    PARTITION_GAUGES,
    RATIO,
    RATIO_HELP,
    LoopCollector,
    ProofCollector,
    RunningCollector,
)
from sluice.ops.parked import ParkedCollector
from tests.ops import ebay_metrics

_NOTHING = "Nothing by itself."

#: What is normal of a family, and what to do if it is not so. In the order of the document.
NORMAL: dict[str, tuple[str, str]] = {
    # How it gets on
    "sluice_connector_moving": ("1.", "Look at `/ready`, which says why not."),
    "sluice_file_not_applied": (
        "0.",
        "`sluice apply` of the file, or the file as it was: [CONFIGURATION.md](CONFIGURATION.md).",
    ),
    "sluice_partitions": (
        "All are `loading` or `idle`.",
        "`sluice status`, or the page: each other verdict has its reason there.",
    ),
    "sluice_table_lag_messages": (
        "What comes in a `max_delay`, and no more.",
        "If it grows: is the table's verdict `waits`? Else it needs more Spark slots.",
    ),
    "sluice_table_behind_seconds": (
        "A few `max_delay`.",
        "As for the lag. It says how late rows are, of a backlog that is being loaded, too. "
        "Producers that send old timestamps, or none, make it larger while there is a backlog: "
        "without timestamps it counts from when all that was there was last settled. Timestamps in "
        "the future count as the time of the settle.",
    ),
    "sluice_end_to_end_seconds": (
        "Its 99th percentile is a few seconds more than `max_delay`.",
        "`sluice_table_behind_seconds` tells whether ranges wait; else producers send late, or "
        "messages are replayed under their old timestamps.",
    ),
    "sluice_table_partitions": (
        "All are `ok`.",
        "`behind`: more Spark slots, or what `sluice_stage_seconds` says. `stalled`: the page says "
        "what they wait for. `stopped`: decide, or resume.",
    ),
    "sluice_table_in_doubt_ranges": (
        "As many as tasks run.",
        "If they stay: `sluice_table_oldest_intent_seconds`.",
    ),
    "sluice_table_oldest_intent_seconds": (
        "Seconds; never near the lease.",
        "The page says what its range waits for.",
    ),
    "sluice_table_last_settled_timestamp_seconds": (
        "Less than a minute ago while messages come.",
        "As for the lag.",
    ),
    "sluice_window_left_ratio": (
        "Above 0.5.",
        "At 0 new ranges wait. Raise the table's deduplication window, or `max_messages`, so that "
        "blocks are fewer; who else writes into the table?",
    ),
    "sluice_frozen": ("0.", "Ask who froze it; `sluice resume`."),
    "sluice_parked": ("0.", "Mend the table, then `sluice dead-letters replay --parked`."),
    "sluice_parked_waiting_messages": (
        "0.",
        "Once `sluice_parked` is 0: `sluice dead-letters replay --parked`.",
    ),
    # Continuous proof
    "sluice_proof_problems": (
        "0, always.",
        "A promise is broken: the page and the driver's log say where. `sluice audit` and `sluice "
        "verify` say more; report it with the ledger.",
    ),
    "sluice_proof_age_seconds": (
        "Below three times `every`.",
        "The page says why no look comes to its end.",
    ),
    "sluice_proof_every_seconds": ("As configured.", _NOTHING),
    "sluice_proof_turns": (
        "Mostly `ended`.",
        "`failed` again and again: the page says why.",
    ),
    "sluice_proof_covered": ("Grows with the messages.", _NOTHING),
    "sluice_proof_left_out": (
        "0, or a share of what is covered under load.",
        "A larger `[audit] share`, or a shorter `every`; `sluice audit` compares all.",
    ),
    "sluice_proof_uncounted": (
        "0, or few after a start.",
        "`sluice audit`, which reads the whole ledger, counts those that receipts tell of.",
    ),
    "sluice_proof_not_demanded": (
        "0, but for what was settled shortly before a version was applied that loads more.",
        _NOTHING,
    ),
    "sluice_proof_unrecorded": (
        "0.",
        "The ledger lacks load specs: has somebody removed its messages?",
    ),
    "sluice_proof_unaudited_tables": (
        "As many as have no lineage columns, or keep last values; more when some were retired.",
        "The page names them; last values are for `sluice audit`.",
    ),
    "sluice_proof_cpu_seconds": ("Below `share` of a core.", "A longer `every`."),
    "sluice_proof_memory_bytes_max": ("About 100 MB.", "A shorter `every`."),
    # What was loaded
    "sluice_messages": ("As producers send.", _NOTHING),
    "sluice_rows": ("As messages, for each of their tables.", _NOTHING),
    "sluice_bytes": ("As producers send.", _NOTHING),
    "sluice_blocks": (
        "Rows over blocks are near `max_messages` under load.",
        "Small blocks: a longer `max_delay`.",
    ),
    "sluice_batches": ("At most twenty a second.", _NOTHING),
    "sluice_table_messages": (
        "Mostly `row`.",
        "`dead_letter`: `sluice dead-letters list`. `parked`: mend the table.",
    ),
    "sluice_unaccounted_messages": (
        "0, always.",
        "A promise is broken: `sluice audit`, then report it with the ledger.",
    ),
    "sluice_table_blocks": ("About the same for all replicas of a shard.", _NOTHING),
    "sluice_table_parts": ("One a block, unless the table is partitioned.", "A coarser key."),
    "sluice_table_rows": ("About the same for all replicas of a shard.", _NOTHING),
    "sluice_table_bytes": ("About the same for all replicas of a shard.", _NOTHING),
    # What was not
    "sluice_dead_letters": ("0, or a small share.", "`sluice dead-letters list`."),
    "sluice_dead_letters_by_reason": (
        "0, or a small share.",
        "The reason says what is wrong with the messages.",
    ),
    "sluice_dead_letters_ratio": (
        "Far below `max_ratio`.",
        "Was a producer changed? From `max_ratio` on the partition stops.",
    ),
    "sluice_tombstones": ("As producers send them.", _NOTHING),
    "sluice_unrouted_messages": ("0, unless routes leave messages out on purpose.", "The routes."),
    "sluice_ignored_fields": (
        "As it was: fields that nobody wants to load.",
        "Producers send new fields; the log names them. Add columns of these names to load them "
        "from then on.",
    ),
    "sluice_dropped_rows": ("0.", "`sluice dead-letters list`; bad rows of good messages."),
    # What fails
    "sluice_failures": (
        "0, or a few while servers change.",
        "The error's section in [RUNBOOK.md](RUNBOOK.md).",
    ),
    "sluice_unloaded_ranges": (
        "Few beside all ranges: the rate of `sluice_stage_seconds_count` of `total`.",
        "Each was fetched in vain, but for `untried`. `too_heavy`: a smaller `max_messages`. "
        "`reservation`: a coarser partition key. `untried`: what holds tasks up, in "
        "`sluice_failures_total` or `sluice_stage_seconds`.",
    ),
    "sluice_stopped_partitions": (
        "None.",
        'The error says what to decide: the page, or the log, behind "Try:".',
    ),
    "sluice_probes": ("0, or a few while servers change.", "Every replica has to answer a probe."),
    "sluice_possible_late_inserts": (
        "0, or some for the length of a lease after servers failed.",
        "They hold windows: `sluice_window_left_ratio`.",
    ),
    "sluice_renewed_ranges": ("0, or a few while servers change.", "As for failures."),
    "sluice_failovers": ("0, or a few while servers change.", "Which replica fails? The page."),
    "sluice_window_unreadable": ("0.", "`sluice quorum`: are servers or ZooKeeper away?"),
    "sluice_kafka_unanswered": ("0.", "Bring the brokers back."),
    "sluice_refused_topics": (
        "0.",
        "The page and `sluice status` name them, and say what to do; `sluice doctor`, too. What "
        "expires in them meanwhile is never loaded. Each member of a fleet counts them.",
    ),
    "sluice_consecutive_record_failures": (
        "0.",
        "The driver's log says why; are the brokers well?",
    ),
    "sluice_parts_ratio": ("Below 0.5.", "Merges are behind: larger, rarer blocks; the disk."),
    "sluice_held_back_ranges": (
        "0, or less than tasks run.",
        "A replica is slow, or `max_inflight_inserts` is small.",
    ),
    # Members of a fleet; only where the configuration has [fleet]
    "sluice_fleet_members": ("As many as you run.", "Fewer: start them. `sluice fleet`."),
    "sluice_fleet_silent_members": (
        "0, or 1 for some seconds after a start.",
        "`sluice fleet` names them: are they gone, or cut off?",
    ),
    "sluice_fleet_report_age_seconds": (
        "Below `silent_after`.",
        "The driver's log says why its topic is away. The driver loads all the same.",
    ),
    "sluice_fleet_unreadable_messages": (
        "0.",
        "Members of a newer version report; start this one with it, too.",
    ),
    "sluice_fleet_unowned_partitions": (
        "0, but for some seconds after members come and go.",
        "`sluice_stopped_partitions` counts those that a member has stopped: decide. Else start "
        "the member that had them. Who is off the others' clocks takes nothing over: "
        "`sluice fleet`.",
    ),
    "sluice_fleet_look_age_seconds": (
        "Below 5, or some seconds more while members come and go.",
        "The page and the driver's log say what fails. Meanwhile nobody's partitions are counted "
        "anew, and `sluice_fleet_unowned_partitions` is what it was.",
    ),
    "sluice_fleet_busy_partitions": (
        "0 where all bring about as much; else about the member's share of all busy ones.",
        "More for long: `sluice fleet` names them, and `sluice fleet --plan` what would move.",
    ),
    "sluice_fleet_wanted_slots": (
        "The slots that there are.",
        "Above them for long: start members, or give each more slots. Below: fewer are enough.",
    ),
    "sluice_fleet_wanted_members": (
        "As many as you run.",
        "As above. Scale by it, if you like; it asks for more after a minute, for fewer after ten.",
    ),
    # Partitions
    "sluice_settled_offset": ("Grows while messages come.", "If it stands: the page."),
    "sluice_stable_end_offset": (
        "Grows while messages come.",
        "If it stands while they come: a producer's open transaction.",
    ),
    "sluice_lag_messages": ("What comes in a `max_delay`.", "As for the table's lag."),
    "sluice_behind_seconds": ("A few `max_delay`.", "As for the table's."),
    "sluice_in_doubt": ("0 and 1 in turn.", "If it stays 1: the page."),
    "sluice_stopped": ("0.", 'What stands behind "Try:" in the log, or on the page.'),
    "sluice_probing": ("0.", "Every replica has to answer a probe."),
    "sluice_consecutive_failures": ("0.", "The page says what fails."),
    # Where time goes
    "sluice_stage_seconds": (
        "The rate of the sum of `total` is below `sluice_slots`; shares of stages are steady.",
        "`fetch` grows: slow brokers, or network. `decode`: more slots. `claim`: the store of "
        "claims. `insert`: slow servers; parts.",
    ),
    "sluice_block_insert_seconds": (
        "Its 99th percentile is far below `insert_timeout`.",
        "Slow servers, or views behind the table; parts; a quorum that waits.",
    ),
    "sluice_block_rows": (
        "Thousands and more under load.",
        "Small blocks make many parts: a longer `max_delay`, a larger `max_partitions`.",
    ),
    "sluice_ranges_out": (
        "Up to a few times the slots.",
        "At `sluice_slots` and a growing lag: more slots.",
    ),
    "sluice_slots": ("As Spark's master has cores.", "Fewer: executors are lost."),
    "sluice_round_seconds": (
        "Its 99th percentile is below 0.5 s.",
        "The driver's machine is busy, or brokers are slow (`sluice_transaction_seconds`).",
    ),
    "sluice_transaction_seconds": (
        "Its 99th percentile is below 0.5 s.",
        "Slow brokers: their disks, and `min.insync.replicas`.",
    ),
    "sluice_worker_memory_bytes_max": (
        "Steady, below the memory of an executor.",
        "Smaller `max_bytes`.",
    ),
    # The driver's process
    "sluice_build_info": ("1.", _NOTHING),
    "process_start_time_seconds": ("Does not change.", "Who starts the driver again and again?"),
    "process_cpu_seconds": ("Its rate is far below 1.", "At 1 the driver holds loading up."),
    "process_resident_memory_bytes": ("Steady.", "If it grows for days: report it."),
    "process_virtual_memory_bytes": ("Steady.", _NOTHING),
    "process_open_fds": ("Far below `process_max_fds`.", "`ulimit -n`; connections that stay."),
    "process_max_fds": ("1024 or more.", _NOTHING),
    # Insert locks
    "sluice_locked_inserts": ("As blocks of tables that queue.", _NOTHING),
    "sluice_insert_lock_wait_seconds": ("Small beside insert seconds.", "Fewer loaders at once."),
    "sluice_unlocked_inserts": ("0.", "Bring the ZooKeeper of the lock back."),
    "sluice_insert_locks_lost": ("0.", "Look at the ZooKeeper of the lock."),
    # Claims
    "sluice_claims": ("As rows of entries that deduplicate.", _NOTHING),
    "sluice_duplicates": ("As producers repeat events.", "If it jumps: a producer repeats."),
    "sluice_claims_seconds": ("Below 0.1 s.", "Is the store slow, or far?"),
    "sluice_claims_keys": ("Grows to what a window holds.", _NOTHING),
    "sluice_claims_bytes": ("Below its limit.", "More memory, or a shorter window."),
    "sluice_claims_max_bytes": ("Steady.", _NOTHING),
    # Replicas
    "sluice_replica_healthy": ("1.", "`sluice quorum`; blocks go to the others meanwhile."),
    "sluice_replica_answers": ("1.", "Start it."),
    "sluice_replica_delay_seconds": ("Seconds.", "`sluice quorum` says what it lacks."),
    "sluice_replica_queue": ("Below some hundreds.", "As for the delay."),
    "sluice_replica_missing": ("0.", "Start those that are away."),
    "sluice_replica_frozen": ("0.", "Ask who froze it; `sluice resume`."),
    "sluice_cluster_differs": ("0.", "Decide on shards, and restart: [TOPOLOGY.md](TOPOLOGY.md)."),
}

_HEAD = """\
# Metrics

What a driver serves at `/metrics` ([OPERATIONS.md](OPERATIONS.md), "The HTTP server"), what is
normal, and what to do. Rates are meant of counters. The label `connector` is `pipeline.connector`,
`table` the name of a table entry, `what` "verify" or "audit". Where there are thousands of
partitions, `[http] partition_metrics = false` leaves those with the label `partition` out; what
alerts need is there by table. Alert rules: [alerts.yml](../monitoring/alerts.yml). A dashboard for
Grafana: [dashboard.json](../monitoring/dashboard.json).

This page is made of the code: `python -m tests.ops.metrics_document > docs/METRICS.md`.

| metric | labels | is | normal | what to do |
|---|---|---|---|---|
"""


def families() -> dict[str, Metric]:
    """All families, by name."""
    found = [
        *LoopCollector([]).collect(),
        *RunningCollector(list, "p").collect(),
        *ProofCollector(None, "p").collect(),
        *ParkedCollector(()).collect(),
        *ProcessCollector(registry=None).collect(),
        *(GaugeMetricFamily(n, text, labels=LABELS) for n, (_, text) in PARTITION_GAUGES.items()),
        GaugeMetricFamily(RATIO, RATIO_HELP, labels=[*LABELS, "table"]),
    ]
    return {family.name: family for family in found}


def document() -> str:
    """The whole page."""
    tables = _HEAD + "\n".join(_rows()), ebay_metrics.HEAD + "\n".join(ebay_metrics.rows())
    return "\n".join(tables) + "\n"


def _rows() -> Iterator[str]:
    found = families()
    for name, (normal, remedy) in NORMAL.items():
        family = found[name]
        shown = f"{name}_total" if family.type == "counter" else name
        labels = ", ".join(f"`{label}`" for label in family._labelnames)  # type: ignore[attr-defined]
        yield f"| `{shown}` | {labels} | {family.documentation} | {normal} | {remedy} |"


if __name__ == "__main__":
    print(document(), end="")
