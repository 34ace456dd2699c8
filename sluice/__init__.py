"""Kafka topics into ClickHouse, every row exactly once, on Spark."""

__version__ = "0.1.0"
