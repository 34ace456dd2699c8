"""Parked messages that nobody has replayed yet, as a metric: a table that is mended shows nothing
of them otherwise, nor does a driver that was started again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from sluice.config import Configuration
from sluice.core.errors import SluiceError
from sluice.driver.connector import ConnectorRun
from sluice.driver.specs import kafka_access
from sluice.kafka.waiting import Waiting
from sluice.ops.families import Family, GaugeFamily, told
from sluice.verify.pace import Pace

_logger = logging.getLogger("sluice.http")

#: They are counted when they are asked for, and not more often.
EVERY_SECONDS = 30.0
#: Of the time: what stands in the topic at the start may be much.
_SHARE = 0.2

#: Of a connector: by table entry.
_PARKED: Mapping[str, Family[Mapping[str, int]]] = {
    "sluice_parked_waiting_messages": GaugeFamily(
        "Parked messages that nobody has replayed yet, whether their table entry is still parked "
        "or not, as counted in the parking topic each half minute.",
        lambda tables: tables.items(),
        ("table",),
    )
}


class ParkedCollector(Collector):
    """Counts them in a thread, so that no answer waits for it; nothing where no table entry may be
    parked, as what is applied says at each look."""

    def __init__(self, runs: Sequence[ConnectorRun]) -> None:
        self._runs = runs
        self._waiting: dict[str, Waiting] = {}
        #: By connector, as far as it was counted.
        self._found: dict[str, dict[str, int]] = {}
        self._looked_at: float | None = None
        self._lock = threading.Lock()

    def collect(self) -> Iterable[Metric]:
        """As the last look found them."""
        self._look_if_due()
        found = [((connector,), tables) for connector, tables in list(self._found.items())]
        yield from told(_PARKED, found, ("connector",))

    def _look_if_due(self) -> None:
        now = time.monotonic()
        if self._looked_at is None or now - self._looked_at >= EVERY_SECONDS:
            self._looked_at = now
            threading.Thread(target=self.look, name="parked", daemon=True).start()

    def look(self) -> None:
        """Count what came since the last look; one that still goes on is waited for by nobody."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            for run in self._runs:
                self._look_at(run.configuration, run.connector.name)
        finally:
            self._lock.release()

    def _look_at(self, configuration: Configuration, name: str) -> None:
        full = f"{configuration.pipeline}.{name}"
        if not configuration.parkable:
            self._found.pop(full, None)
            return
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
