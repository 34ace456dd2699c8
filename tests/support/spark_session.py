"""A Spark session as a user of the sink has one: that of Sluice's own Spark context."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.spark.class_archive import archive_options
from sluice.spark.context import start_context
from sluice.spark.java import set_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def start_session(name: str, master: str, properties: Mapping[str, str]) -> SparkSession:
    """Start it in this process."""
    set_java_home()
    start_context(name, master, properties, archive_options())
    from pyspark.sql import SparkSession

    return SparkSession.builder.getOrCreate()
