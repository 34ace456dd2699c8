"""Metrics of a verifier that runs as a service, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sluice.core.anomalies import AnomalyKind
from sluice.core.errors import ConfigurationError
from sluice.ops.families import CounterFamily, Family, GaugeFamily, Labelled, told
from sluice.verify.verifier import Verifier


def _by_kind(verifier: Verifier) -> Labelled:
    """Each kind of anomaly has a series from the start, so that an alert on its increase sees the
    first one."""
    found = dict.fromkeys((kind.value for kind in AnomalyKind), 0)
    for (kind, _, _), count in list(verifier.totals.anomalies.items()):
        found[kind.value] += count
    return found.items()


def _by_partition(verifier: Verifier) -> Labelled:
    found = [
        (kind.value, connector, source, count)
        for (kind, connector, source), count in list(verifier.totals.anomalies.items())
    ]
    for kind, connector, source, count in sorted(found):
        yield (kind, connector, source.topic, str(source.partition)), count


_VERIFIER: Mapping[str, Family[Verifier]] = {
    "sluice_verify_anomalies": CounterFamily("Anomalies found, by kind.", _by_kind, ("kind",)),
    "sluice_verify_partition_anomalies": CounterFamily(
        "Anomalies found, by partition.",
        _by_partition,
        ("kind", "connector", "topic", "partition"),
    ),
    "sluice_verify_unjudged": CounterFamily(
        "Contradictions that compaction may explain, so that nothing is said.",
        lambda verifier: verifier.totals.unjudged,
    ),
    "sluice_verify_instances": CounterFamily(
        "Records and tombstones read.",
        lambda verifier: verifier.instances().items(),
        ("connector",),
    ),
    "sluice_verify_lag_messages": GaugeFamily(
        "Messages of the log that were not read yet.",
        lambda verifier: verifier.lags().items(),
        ("connector",),
    ),
}


class VerifierCollector(Collector):
    """Reads a verifier's counters."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def collect(self) -> Iterable[Metric]:
        """All metrics now."""
        return told(_VERIFIER, [((), self._verifier)], ())


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
