"""The only code that talks to ClickHouse: HTTP, error reactions, table facts, probes."""
