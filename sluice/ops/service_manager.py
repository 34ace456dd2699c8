"""Tells systemd, or what else speaks its protocol, how a driver gets on (sd_notify)."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence

from sluice.driver.connector import ConnectorRun
from sluice.machine.clock import now_ms
from sluice.ops.running import ConnectorNow, Rates, look_at, why_not_alive

_logger = logging.getLogger("sluice.service")

#: Between two messages: while others may wait for the start, and afterwards.
STARTING_SECONDS = 1.0
RUNNING_SECONDS = 10.0


def notify_service_manager(runs: Sequence[ConnectorRun], environment: Mapping[str, str]) -> None:
    """Begin to tell, in a thread of its own, until every connector has ended.

    :param environment: nothing is told where it has no NOTIFY_SOCKET.
    """
    address = environment.get("NOTIFY_SOCKET", "")
    if address[:1] in ("/", "@"):
        notifier = Notifier(address, runs, _watchdog_seconds(environment))
        threading.Thread(target=notifier.run, name="service-manager", daemon=True).start()
    elif address:
        _logger.warning(
            "NOTIFY_SOCKET: %r is no socket of this machine; a service manager hears nothing",
            address,
        )


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """How often it is waited for; None where it is not, or not of this process."""
    is_own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    microseconds = environment.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 if is_own and microseconds.isdigit() else None


class Notifier:
    """What is told, and when.

    `READY=1` once a connector has begun its loop: one whose Kafka is away must not keep a unit from
    starting that loads from another one. `WATCHDOG=1` as long as `/live` says yes.

    :param address: a path, or a name that begins with "@".
    :param watchdog_seconds: silence for so long makes the service manager end the driver.
    """

    def __init__(
        self, address: str, runs: Sequence[ConnectorRun], watchdog_seconds: float | None = None
    ) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._runs, self._rates = runs, Rates()
        self._stopping = runs[0].stopping
        self._watchdog_seconds = watchdog_seconds
        self._is_ready = self._has_told_stop = False

    def run(self) -> None:
        """Tell until every connector has ended."""
        while not all(run.is_ended for run in self._runs):
            seconds = RUNNING_SECONDS if self._is_ready else STARTING_SECONDS
            seconds = min(seconds, (self._watchdog_seconds or seconds * 2) / 2)
            try:
                self.tell()
            except Exception:  # of a look; the watchdog's time runs on
                _logger.exception("the service manager cannot be told how the driver gets on")
            if self._has_told_stop:
                time.sleep(seconds)
            else:
                self._stopping.wait(seconds)

    def tell(self) -> None:
        """One message."""
        now = [look_at(run, self._rates, now_ms()) for run in self._runs]
        is_alive = not why_not_alive(now)
        lines = [f"STATUS={_in_words(now)}"]
        if self._stopping.is_set() and not self._has_told_stop:
            lines.append("STOPPING=1")
            self._has_told_stop = True
        elif is_alive and not self._is_ready and any(_has_begun(each) for each in now):
            lines.append("READY=1")
            self._is_ready = True
        if is_alive and self._watchdog_seconds is not None:
            lines.append("WATCHDOG=1")
        self._send("\n".join(lines))

    def _send(self, message: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.settimeout(1.0)
                sending.sendto(message.encode(), self._address)
        except OSError as error:
            _logger.warning("the service manager's socket (NOTIFY_SOCKET): %s", error)


def _has_begun(connector: ConnectorNow) -> bool:
    return connector.verdict not in ("starting", "ended", "stuck")


def _in_words(connectors: Sequence[ConnectorNow]) -> str:
    """A line."""
    words = "; ".join(f"{each.name}: {each.reason}" for each in connectors)
    return " ".join(words.split())
