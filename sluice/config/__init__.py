"""The configuration file: its model, and how it is read. Nothing here talks to a server."""

from sluice.config.loading import load
from sluice.config.model import (
    BatchConfiguration,
    ClickHouseConfiguration,
    Configuration,
    ConnectorConfiguration,
    MetricsConfiguration,
    ShardConfiguration,
    SparkConfiguration,
    TableConfiguration,
)
from sluice.config.secret import Secret

__all__ = [
    "BatchConfiguration",
    "ClickHouseConfiguration",
    "Configuration",
    "ConnectorConfiguration",
    "MetricsConfiguration",
    "Secret",
    "ShardConfiguration",
    "SparkConfiguration",
    "TableConfiguration",
    "load",
]
