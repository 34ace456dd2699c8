CREATE TABLE IF NOT EXISTS shop.orders
(
    id UInt64,
    user_id UInt32,
    ts DateTime,
    amount Decimal(18, 2),
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64,
    _row UInt32,
    _source LowCardinality(String)
)
ENGINE = MergeTree
ORDER BY (user_id, ts)
SETTINGS non_replicated_deduplication_window = 10000;
