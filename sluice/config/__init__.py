"""The configuration file: its model, and how it is read. Nothing here talks to a server, and
workers import none of it."""

from sluice.config.clickhouse import (
    ClickHouseConfiguration,
    ClusterConfiguration,
    Durability,
    Quorum,
    ShardConfiguration,
)
from sluice.config.connector import ConnectorConfiguration, GroupStart, Reader, Start
from sluice.config.deduplication import DeduplicationConfiguration
from sluice.config.loading import load, load_http
from sluice.config.model import (
    AuditConfiguration,
    BatchConfiguration,
    Configuration,
    FleetConfiguration,
    HttpConfiguration,
    RegistryConfiguration,
    SparkConfiguration,
    VerifyConfiguration,
)
from sluice.config.secret import Secret
from sluice.config.table import TableConfiguration

__all__ = [
    "AuditConfiguration",
    "BatchConfiguration",
    "ClickHouseConfiguration",
    "ClusterConfiguration",
    "Configuration",
    "ConnectorConfiguration",
    "DeduplicationConfiguration",
    "Durability",
    "FleetConfiguration",
    "GroupStart",
    "HttpConfiguration",
    "Quorum",
    "Reader",
    "RegistryConfiguration",
    "Secret",
    "ShardConfiguration",
    "SparkConfiguration",
    "Start",
    "TableConfiguration",
    "VerifyConfiguration",
    "load",
    "load_http",
]
