"""A `sluice run` process of an end-to-end test."""

from __future__ import annotations

import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from sluice.testbed.local.processes import python_workers


@dataclass
class Driver:
    """One `sluice run` process."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout_seconds: float = 180.0) -> int:
        try:
            return self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the driver did not end:\n{self.text()[-4000:]}") from None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def workers(self) -> list[int]:
        """Process ids of Spark's Python workers below this driver, and of what forks them."""
        return python_workers([self.process.pid])
