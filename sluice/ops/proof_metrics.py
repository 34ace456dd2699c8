"""Metrics of continuous proof; without it they have no values."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.ops.proof import Proof, ProofNow

#: name -> (what of each, help)
_GAUGES: dict[str, tuple[Callable[[ProofNow], float], str]] = {
    "sluice_proof_every_seconds": (
        lambda proof: proof.every_seconds,
        "How often the verifier, or the audit, is to look.",
    ),
    "sluice_proof_age_seconds": (
        lambda proof: proof.age_seconds,
        "Since a look came to its end; since the start before the first one.",
    ),
}
_COUNTERS: dict[str, tuple[Callable[[ProofNow], float], str]] = {
    "sluice_proof_covered": (
        lambda proof: proof.covered,
        "Entries that the verifier has judged, or offsets that the audit has compared.",
    ),
    "sluice_proof_left_out": (
        lambda proof: proof.left_out,
        "Offsets that were settled and never compared, since there was no time for them.",
    ),
}


class ProofCollector(Collector):
    """Reads what was found so far."""

    def __init__(self, proof: Proof | None, pipeline: str) -> None:
        self._proof, self._pipeline = proof, pipeline

    def collect(self) -> Iterable[Metric]:
        """All metrics now. Each kind has a series from the start, so that an alert on its increase
        sees the first one."""
        labels, name = ["pipeline", "what"], self._pipeline
        found = [] if self._proof is None else self._proof.now()
        for family_name, (value, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(family_name, text, labels=labels)
            for each in found:
                gauge.add_metric([name, each.what], float(value(each)))
            yield gauge
        for family_name, (value, text) in _COUNTERS.items():
            counter = CounterMetricFamily(family_name, text, labels=labels)
            for each in found:
                counter.add_metric([name, each.what], float(value(each)))
            yield counter
        turns = CounterMetricFamily(
            "sluice_proof_turns",
            "Looks, by whether they came to their end.",
            labels=[*labels, "result"],
        )
        problems = CounterMetricFamily(
            "sluice_proof_problems", "What is wrong, by kind.", labels=[*labels, "kind"]
        )
        for each in found:
            turns.add_metric([name, each.what, "ended"], float(each.turns))
            turns.add_metric([name, each.what, "failed"], float(each.failures))
            for kind, count in each.problems.items():
                problems.add_metric([name, each.what, kind], float(count))
        cpu = CounterMetricFamily(
            "sluice_proof_cpu_seconds",
            "Processor time of the process that verifies and audits.",
            labels=["pipeline"],
        )
        memory = GaugeMetricFamily(
            "sluice_proof_memory_bytes_max", "Its largest resident memory.", labels=["pipeline"]
        )
        if found and self._proof is not None:
            cpu.add_metric([name], self._proof.cpu_seconds)
            memory.add_metric([name], float(self._proof.memory_bytes))
        yield from (turns, problems, cpu, memory)
