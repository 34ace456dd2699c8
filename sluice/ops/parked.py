"""Parked messages that nobody has replayed yet, as a metric: a table that is mended shows nothing
of them otherwise, nor does a driver that was started again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.driver.specs import kafka_access
from sluice.kafka.waiting import Waiting
from sluice.verify.pace import Pace

_logger = logging.getLogger("sluice.http")

#: They are counted when they are asked for, and not more often.
EVERY_SECONDS = 30.0
#: Of the time: what stands in the topic at the start may be much.
_SHARE = 0.2


class ParkedCollector(Collector):
    """Counts them in a thread, so that no answer waits for it; nothing where no table entry may be
    parked, and without a configuration."""

    def __init__(self, configuration: Configuration | None) -> None:
        self._configuration = configuration
        self._waiting: dict[str, Waiting] = {}
        #: By connector, as far as it was counted.
        self._found: dict[str, dict[str, int]] = {}
        self._looked_at: float | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """As the last look found them."""
        family = GaugeMetricFamily(
            "sluice_parked_waiting_messages",
            "Parked messages that nobody has replayed yet, whether their table entry is still "
            "parked or not, as counted in the parking topic each half minute.",
            labels=["connector", "table"],
        )
        if self._configuration is not None and self._configuration.parkable:
            self._look_if_due(self._configuration)
        for connector, tables in list(self._found.items()):
            for table, count in tables.items():
                family.add_metric([connector, table], float(count))
        yield family

    def _look_if_due(self, configuration: Configuration) -> None:
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= EVERY_SECONDS:
            self._looked_at = now
            threading.Thread(
                target=self.look, args=[configuration], name="parked", daemon=True
            ).start()

    def look(self, configuration: Configuration) -> None:
        """Count what came since the last look; one that still goes on is waited for by nobody."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for connector in configuration.connectors:
                self._look_at(configuration, connector.name)
        finally:
            self._lock.release()

    def _look_at(self, configuration: Configuration, name: str) -> None:
        full = f"{configuration.pipeline}.{name}"
        if name not in self._waiting:
            access = kafka_access(configuration, name)
            self._waiting[name] = Waiting(access, configuration.parking_topic, full)
        try:
            self._waiting[name].look(Pace(_SHARE).through)
        except SluiceError as error:
            _logger.warning("parked messages are not counted: %s. Try: %s", error, error.hint)
            return
        self._found[full] = {
            **dict.fromkeys(configuration.parkable, 0),
            **self._waiting[name].by_table(),
        }
