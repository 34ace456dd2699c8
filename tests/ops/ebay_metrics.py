"""eBay's metric families (eBay/block-aggregator, src/monitor, without the prefix nucolumnar_), and
what says the same here, or why nothing does. A part of docs/METRICS.md."""

from __future__ import annotations

from collections.abc import Iterator

#: Begins many of eBay's names.
_A = "aggregator_"
_NO_CONSUMER = "No consumer group: ranges are fetched by offset, and no client keeps a queue"
_NO_QUEUE = "ClickHouse's own: `system.replicas`, by its own exporter"

#: eBay's families; ours; what is to be said of them. Where none of ours is named, why.
SAME: tuple[tuple[str, tuple[str, ...], str], ...] = (
    # Connector
    (f"{_A}active_kafka_connectors", ("sluice_connector_moving",), ""),
    (
        f"{_A}partition_numbers_in_kafka_connector",
        ("sluice_partitions", "sluice_table_partitions"),
        "by verdict",
    ),
    (
        f"{_A}batched_messages_received_total "
        f"{_A}batched_messages_processed_in_kafka_connector_total",
        ("sluice_messages_total", "sluice_table_messages_total"),
        "by what became of them; only settled ones count",
    ),
    (
        f"{_A}batched_messages_received_bytes_total {_A}batched_messages_processed_bytes_total "
        f"{_A}batched_messages_processed_bytes_in_kafka_connector_total "
        f"{_A}bytes_from_batched_messages_in_kafka_connector",
        ("sluice_bytes_total",),
        "",
    ),
    (
        f"{_A}batched_messages_processing_in_kafka_connector_microseconds "
        f"{_A}task_completion_waittime_in_kafka_connector_in_microseconds "
        f"{_A}all_tasks_completion_waittime_in_kafka_connector_in_microseconds",
        ("sluice_stage_seconds", "sluice_round_seconds"),
        "histograms, by stage",
    ),
    (
        f"{_A}batched_messages_failed_processing_total "
        f"{_A}batched_messages_failed_processing_bytes_total "
        f"{_A}kafka_message_in_wrong_format_total {_A}kafka_larger_than_expected_total "
        f"{_A}kafkaconnnector_abnormal_message_received_total",
        ("sluice_dead_letters_total", "sluice_dead_letters_by_reason_total"),
        "kept, with the reason",
    ),
    (
        f"{_A}batched_messages_ignored_in_kafka_connector_total "
        f"{_A}batched_messages_ignored_bytes_in_kafka_connector_total",
        ("sluice_unrouted_messages_total", "sluice_tombstones_total"),
        "",
    ),
    (
        f"{_A}batched_messages_replayed_in_kafka_connector_total "
        f"{_A}batched_messages_replayed_bytes_in_kafka_connector_total "
        f"{_A}kafkaconnector_message_rewound_total",
        ("sluice_renewed_ranges_total",),
        "ranges, not messages: a range is repeated as a whole",
    ),
    (
        f"{_A}batched_messages_replay_ignored_in_kafka_connector_total "
        f"{_A}kafkaconnector_replay_skipped_total",
        ("sluice_probes_total",),
        "what a probe finds is not loaded again; ClickHouse drops a block that it knows, and tells "
        "nobody",
    ),
    (
        f"{_A}committed_offset_by_kafka_connector {_A}offset_processed_by_kafka_connector",
        ("sluice_settled_offset",),
        "",
    ),
    (
        f"{_A}offset_commit_failed_in_kafka_connector_total "
        f"{_A}kafkaconnector_metadata_commit_finally_failed_total",
        ("sluice_consecutive_record_failures",),
        "repeated until it is known",
    ),
    (
        f"{_A}offset_commit_in_kafka_connector_in_microseconds",
        ("sluice_transaction_seconds", "sluice_batches_total"),
        "",
    ),
    (
        f"{_A}kafka_offset_went_backward_total {_A}kafka_offset_reset_total "
        f"{_A}metadata_committed_by_different_connector_total "
        f"{_A}partition_handler_status_reference_wrong_total",
        ("sluice_stopped_partitions", "sluice_proof_problems_total"),
        "the partition stops, by what stopped it; the verifier tells what was committed",
    ),
    (
        f"{_A}block_wait_failed_in_kafka_connector_in_total "
        f"{_A}kafkaconnector_flush_task_not_finished_total",
        ("sluice_failures_total", "sluice_ranges_out"),
        "",
    ),
    (
        f"{_A}kafka_connector_main_loop_restarted_total",
        (),
        "A loop does not restart on an error; see `sluice_failures_total`",
    ),
    (
        f"{_A}kafakconnector_freeze_traffic_command_received "
        f"{_A}kafakconnector_freeze_traffic_status",
        ("sluice_frozen", "sluice_replica_frozen"),
        "",
    ),
    (
        f"{_A}partition_rebalance_assigned_at_kafka_connector "
        f"{_A}partition_rebalance_time_at_kafka_connector "
        "kafka_consumer_group_assignment_count kafka_consumer_group_rebalance_age "
        "kafka_consumer_group_rebalance_count kafka_consumer_group_state_up",
        (),
        "Nothing is rebalanced: a record names the owner of a partition (R4)",
    ),
    # Loader
    (
        f"{_A}batched_messages_persisted_blocks_total {_A}batched_messages_stored_blocks_total",
        ("sluice_blocks_total", "sluice_table_blocks_total"),
        "",
    ),
    (
        f"{_A}batched_messages_stored_rows_total",
        ("sluice_rows_total", "sluice_table_rows_total"),
        "",
    ),
    (
        f"{_A}batched_messages_stored_bytes_total {_A}bytes_in_stored_blocks",
        ("sluice_table_bytes_total",),
        "a block's is the quotient of rates",
    ),
    (f"{_A}rows_in_stored_blocks", ("sluice_block_rows",), "a histogram"),
    (f"{_A}block_loading_time_in_microseconds", ("sluice_block_insert_seconds",), "a histogram"),
    (
        f"{_A}block_loading_number_of_retries",
        ("sluice_consecutive_failures", "sluice_failovers_total"),
        "",
    ),
    (
        f"{_A}blocks_failed_to_be_persisted_total {_A}blocks_failed_to_be_persisted_bytes_total "
        f"{_A}errors_from_clickhouse_total",
        ("sluice_failures_total",),
        "by ClickHouse's name of the error",
    ),
    (f"{_A}end_to_end_lag_time_at_loader", ("sluice_end_to_end_seconds",), "a histogram"),
    (
        f"{_A}connection_to_database_ok clickhouse_server_is_up",
        ("sluice_replica_answers", "sluice_window_unreadable"),
        "",
    ),
    (
        f"{_A}application_start",
        ("sluice_build_info", "process_start_time_seconds"),
        "",
    ),
    # Schema
    (
        f"{_A}number_of_table_definitions_retrieved {_A}number_of_columns_in_tables",
        (),
        "A table that is gone or altered is an error with words, no number",
    ),
    (
        f"{_A}current_schema_version {_A}schema_version_at_global_table "
        f"{_A}schema_update_at_global_table_total {_A}new_schema_fetched_total "
        f"{_A}block_schema_migration_total agregator_received_service_schema_version",
        (),
        "Structure is in the load spec that each record names (R8); `sluice ledger` shows each",
    ),
    (
        f"{_A}schema_tracking_not_with_latest_schema_total",
        ("sluice_dead_letters_by_reason_total",),
        "reason `other-schema`",
    ),
    # Locking
    (f"{_A}distributed_locking_successful_total", ("sluice_locked_inserts_total",), ""),
    (
        f"{_A}distributed_locking_failed_total {_A}distributed_locking_retried_total "
        f"{_A}distributed_locking_trapped_at_initialization_total "
        f"{_A}zookeeper_exception_total {_A}zookeeper_exception_latency_in_us",
        ("sluice_unlocked_inserts_total", "sluice_insert_locks_lost_total"),
        "",
    ),
    (
        f"{_A}distributed_locking_locktime_in_us "
        f"{_A}distributed_locking_locktime_distribution_in_us",
        ("sluice_insert_lock_wait_seconds_total",),
        "",
    ),
    # Replicas
    (
        "clickhouse_replica_is_read_only clickhouse_replica_is_session_expired",
        ("sluice_replica_healthy",),
        "the page has the reason",
    ),
    ("clickhouse_replica_queue_absolute_delay_in_sec", ("sluice_replica_delay_seconds",), ""),
    (
        "clickhouse_replica_queue_size clickhouse_replica_number_of_inserts_in_queue "
        "clickhouse_replica_index_to_log_pointer_diff_size",
        ("sluice_replica_queue",),
        "",
    ),
    (
        "clickhouse_replica_number_of_active_replicas_in_shard "
        "clickhouse_replica_number_of_replicas_in_shard",
        ("sluice_replica_missing",),
        "their difference",
    ),
    (
        "clickhouse_replica_is_leader clickhouse_replica_log_max_index "
        "clickhouse_replica_log_pointer clickhouse_replica_number_of_future_parts "
        "clickhouse_replica_number_of_merges_in_queue clickhouse_replica_number_of_parts_to_check "
        "clickhouse_replica_queue_update_time_diff_to_now_in_sec clickhouse_replica_total_bytes "
        "clickhouse_replica_total_rows",
        (),
        f"{_NO_QUEUE}; what holds blocks up is `sluice_parts_ratio` and the delay",
    ),
    # librdkafka
    (
        "kafka_consumer_partition_consumer_lag kafka_consumer_topic_consumer_lag",
        ("sluice_lag_messages", "sluice_table_lag_messages", "sluice_behind_seconds"),
        "",
    ),
    (
        "kafka_consumer_partition_app_offset kafka_consumer_partition_committed_offset",
        ("sluice_settled_offset",),
        "",
    ),
    (
        "kafka_consumer_partition_last_stable_offset "
        "kafka_consumer_partition_high_watermark_offset",
        ("sluice_stable_end_offset",),
        "only committed messages are read",
    ),
    (
        "kafka_consumer_partition_low_watermark_offset",
        (),
        "A log that lost messages stops its partition: `sluice_stopped_partitions`",
    ),
    (
        "kafka_consumer_received_count kafka_consumer_received_msg_count "
        "kafka_consumer_partition_received_msgs_count",
        ("sluice_messages_total",),
        "",
    ),
    (
        "kafka_consumer_received_bytes kafka_consumer_received_msg_bytes "
        "kafka_consumer_partition_received_msg_bytes",
        ("sluice_bytes_total",),
        "",
    ),
    (
        "kafka_consumer_ops_queue_count kafka_consumer_partition_fetch_queue_bytes "
        "kafka_consumer_partition_fetch_queue_count "
        "kafka_consumer_partition_inflight_msgs_count "
        "kafka_consumer_partition_dropped_outdated_msg kafka_consumer_stat_time",
        (),
        f"{_NO_CONSUMER} that outlives a range",
    ),
)

HEAD = """
## eBay's families

What eBay's Block Aggregator measures, and what says it here: 111 families, without the prefix
`nucolumnar_`.

| eBay's | here | of them |
|---|---|---|
"""


def names() -> list[str]:
    """All of eBay's."""
    return [name for theirs, _, _ in SAME for name in theirs.split()]


def rows() -> Iterator[str]:
    """Of the table."""
    for theirs, ours, said in SAME:
        shown = ", ".join(f"`{name}`" for name in theirs.split())
        yield f"| {shown} | {', '.join(f'`{name}`' for name in ours) or '–'} | {said} |"
