"""Families of metrics as tables: by name, what each means, where its values come from, and by which
labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from sluice.driver.counters import Histogram

Subject = TypeVar("Subject")
Value = float | Histogram | None
#: Labels of its own, and the value that stands behind them.
Labelled = Iterable[tuple[str | tuple[str, ...], Value]]


@dataclass(frozen=True)
class Family(Generic[Subject]):
    """What a metric says of each subject, such as a table entry.

    :param help: what it means for an operator.
    :param of: a subject's value, or values, each behind its `labels`; None has no sample. A view
        of a dict that a loop changes is as good: `told` copies it first.
    :param labels: behind those that all families of the subject have.
    """

    help: str
    of: Callable[[Subject], Value | Labelled]
    labels: tuple[str, ...] = ()

    made_by: ClassVar[Any]


class CounterFamily(Family[Subject]):
    """Of counters; the library adds `_total` to its name."""

    made_by = CounterMetricFamily


class GaugeFamily(Family[Subject]):
    """Of gauges."""

    made_by = GaugeMetricFamily


class HistogramFamily(Family[Subject]):
    """Of histograms, each value a `Histogram`."""

    made_by = HistogramMetricFamily


def told(
    families: Mapping[str, Family[Subject]],
    subjects: Iterable[tuple[tuple[str, ...], Subject]],
    labels: tuple[str, ...],
) -> Iterator[Metric]:
    """All families, as they are now; those without a value, too.

    :param subjects: each behind the values of its labels.
    """
    found = list(subjects)
    for name, family in families.items():
        metric = family.made_by(name, family.help, labels=(*labels, *family.labels))
        for where, subject in found:
            for more, value in _values(family.of(subject)):
                at = [*where, more] if isinstance(more, str) else [*where, *more]
                if isinstance(value, Histogram):
                    metric.add_metric(at, value.buckets(), value.sum)
                elif value is not None:
                    metric.add_metric(at, float(value))
        yield metric


def _values(found: Value | Labelled) -> Labelled:
    return list(found) if isinstance(found, Iterable) else [((), found)]
