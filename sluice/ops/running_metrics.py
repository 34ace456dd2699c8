"""Metrics of how a driver gets on: what `/status` says, as numbers that alerts can judge."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice import __version__
from sluice.ops.lags import LAGS
from sluice.ops.running import ConnectorNow, FleetNow, TableNow, Verdict

#: name -> (what of a table entry, help)
_OF_TABLES: dict[str, tuple[Callable[[TableNow], float | None], str]] = {
    "sluice_table_lag_messages": (
        lambda table: table.amounts.lag_messages,
        "Messages between settled and last stable offsets, of all partitions of a table entry.",
    ),
    "sluice_table_behind_seconds": (
        lambda table: table.amounts.behind_seconds,
        "Since when at least the oldest message that is not settled is there.",
    ),
    "sluice_table_in_doubt_ranges": (
        lambda table: table.amounts.in_doubt,
        "Recorded ranges of a table entry that are not settled.",
    ),
    "sluice_table_oldest_intent_seconds": (
        lambda table: table.amounts.oldest_intent_seconds or 0.0,
        "Age of the oldest recorded range that is not settled; 0 while there is none.",
    ),
    "sluice_table_last_settled_timestamp_seconds": (
        lambda table: (table.amounts.last_settled_ms or 0) / 1000,
        "When a range of a table entry was last settled; 0 before the first one.",
    ),
}


#: name -> (what of a fleet, help)
_OF_FLEETS: dict[str, tuple[Callable[[FleetNow], float], str]] = {
    "sluice_fleet_members": (
        lambda fleet: len(fleet.members),
        "Drivers that report to the fleet of a connector, this one too.",
    ),
    "sluice_fleet_silent_members": (
        lambda fleet: len(fleet.silent),
        "Drivers that have reported, report no more, and are not known to be gone.",
    ),
    "sluice_fleet_report_age_seconds": (
        lambda fleet: fleet.report_age_seconds,
        "Since when the driver has read no report of its own.",
    ),
    "sluice_fleet_unreadable_messages": (
        lambda fleet: fleet.unreadable,
        "Messages of the fleet's topic that were passed over, since this version cannot read them.",
    ),
    "sluice_fleet_wanted_slots": (
        lambda fleet: fleet.wanted_slots,
        "Tasks at once, of all members, that the work of the last minutes takes.",
    ),
    "sluice_fleet_wanted_members": (
        lambda fleet: fleet.wanted_members,
        "Members with as many slots as today's that the work of the last minutes takes.",
    ),
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
        found = [(f"{self._pipeline}.{each.name}", each) for each in self._look()]
        moving = GaugeMetricFamily(
            "sluice_connector_moving",
            "1 while something of the connector loads, or has nothing to load; as /ready says.",
            labels=["connector"],
        )
        partitions = GaugeMetricFamily(
            "sluice_partitions", "Partitions by verdict.", labels=["connector", "verdict"]
        )
        left = GaugeMetricFamily(
            "sluice_window_left_ratio",
            "Share that is left of what ranges may fill of a deduplication window, the least of "
            "the tables behind a table entry in a shard.",
            labels=["connector", "table", "shard"],
        )
        for name, connector in found:
            moving.add_metric([name], float(connector.is_moving))
            for verdict in get_args(Verdict):
                count = connector.amounts.partitions.get(verdict, 0)
                partitions.add_metric([name, verdict], float(count))
            for table in connector.tables:
                for shard in sorted({window.shard for window in table.windows}):
                    least = min(window.left for window in table.windows if window.shard == shard)
                    left.add_metric([name, table.name, shard], least)
        keeping_up = GaugeMetricFamily(
            "sluice_table_partitions",
            "Partitions of a table entry by how they keep up over some minutes: ok; behind, more "
            "comes than they load; stalled, nothing is settled although messages are there; "
            "stopped, or frozen.",
            labels=["connector", "table", "lag"],
        )
        for name, connector in found:
            for table in connector.tables:
                for lag in LAGS:
                    count = table.amounts.lags.get(lag, 0)
                    keeping_up.add_metric([name, table.name, lag], float(count))
        built = GaugeMetricFamily("sluice_build_info", "1; its version.", labels=["version"])
        built.add_metric([__version__], 1.0)
        yield from (moving, partitions, left, keeping_up, built)
        for family_name, (value, text) in _OF_TABLES.items():
            family = GaugeMetricFamily(family_name, text, labels=["connector", "table"])
            for name, connector in found:
                for table in connector.tables:
                    family.add_metric([name, table.name], float(value(table) or 0))
            yield family
        for family_name, (of_fleet, text) in _OF_FLEETS.items():
            family = GaugeMetricFamily(family_name, text, labels=["connector"])
            for name, connector in found:
                if connector.fleet is not None:
                    family.add_metric([name], float(of_fleet(connector.fleet)))
            yield family
