"""The sink `sluice` of Spark: what any query makes, into a ClickHouse table, exactly once."""
