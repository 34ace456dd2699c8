"""Metrics of a verifier that runs as a service, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.core.anomalies import AnomalyKind
from sluice.core.errors import ConfigurationError
from sluice.verify.verifier import Verifier


class VerifierCollector(Collector):
    """Reads a verifier's counters."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def collect(self) -> Iterable[Metric]:
        """All metrics now. Each kind of anomaly has a series from the start, so that an alert
        on its increase sees the first one."""
        totals = self._verifier.totals
        kinds = CounterMetricFamily(
            "sluice_verify_anomalies", "Anomalies found, by kind.", labels=["kind"]
        )
        by_kind = dict.fromkeys(AnomalyKind, 0)
        partitions = CounterMetricFamily(
            "sluice_verify_partition_anomalies",
            "Anomalies found, by partition.",
            labels=["kind", "connector", "topic", "partition"],
        )
        for (kind, connector, source), count in sorted(
            totals.anomalies.items(), key=lambda item: (item[0][0].value, *item[0][1:])
        ):
            by_kind[kind] += count
            where = [kind.value, connector, source.topic, str(source.partition)]
            partitions.add_metric(where, float(count))
        for kind, count in by_kind.items():
            kinds.add_metric([kind.value], float(count))
        unjudged = CounterMetricFamily(
            "sluice_verify_unjudged",
            "Contradictions that compaction may explain, so that nothing is said.",
            value=float(totals.unjudged),
        )
        instances = CounterMetricFamily(
            "sluice_verify_instances", "Records and tombstones read.", labels=["connector"]
        )
        for connector, count in self._verifier.instances().items():
            instances.add_metric([connector], float(count))
        lag = GaugeMetricFamily(
            "sluice_verify_lag_messages",
            "Messages of the log that were not read yet.",
            labels=["connector"],
        )
        for connector, count in self._verifier.lags().items():
            lag.add_metric([connector], float(count))
        return [kinds, partitions, unjudged, instances, lag]


def serve(port: int, verifier: Verifier, host: str = "127.0.0.1") -> int:
    """Serve the metrics over HTTP in a thread; gives the port.

    :raises ConfigurationError: the address cannot be listened on.
    """
    registry = CollectorRegistry()
    registry.register(VerifierCollector(verifier))
    try:
        server, _ = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigurationError(
            f"--metrics-port: {host}:{port} cannot be listened on: {error}",
            "Choose another port.",
        ) from None
    return int(server.server_port)
