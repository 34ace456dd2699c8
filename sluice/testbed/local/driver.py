"""A driver as a process of its own: `sluice run` on a configuration file."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.core.errors import TerminalError
from sluice.spark.java import set_java_home
from sluice.testbed.local.children import start_process
from sluice.testbed.local.processes import RUN_VARIABLE, processes_of_run, signal_to, wait_for_end

#: After the driver: Spark's JVM notices its parent's end, the workers notice the JVM's.
_END_SECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 60.0


@dataclass(slots=True)
class Driver:
    """A running driver.

    :param run: marks its process and all that come from it.
    :param log: where its stderr goes.
    """

    process: subprocess.Popen[bytes]
    run: str
    log: Path

    def kill(self) -> float:
        """SIGKILL to the driver alone; gives the seconds until nothing of it was left.

        :raises TerminalError: its JVM or a worker outlived it.
        """
        began = time.monotonic()
        self.process.kill()
        self.process.wait()
        self._expect_end()
        return time.monotonic() - began

    def stop(self) -> int:
        """SIGTERM: it settles and ends. Gives its exit status.

        :raises TerminalError: it, its JVM or a worker stays.
        """
        self.process.send_signal(signal.SIGTERM)
        return self.wait(_STOP_SECONDS_MAX)

    def wait(self, timeout_seconds: float) -> int:
        """Wait for it to end by itself; gives its exit status.

        :raises TerminalError: it does not.
        """
        try:
            status = self.process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise self.failure(f"did not end within {timeout_seconds:.0f} s") from None
        self._expect_end()
        return status

    def check(self) -> None:
        """:raises TerminalError: it has ended although nobody asked it to."""
        if self.process.poll() is not None:
            raise self.failure(f"ended with status {self.process.returncode}")

    def failure(self, what: str) -> TerminalError:
        """An error that shows the end of the driver's log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()[-12:]
        return TerminalError("\n".join([f"the driver {what}", *lines]), "Read its log above.")

    def end(self) -> None:
        """Whatever state it is in: nothing of it is left afterwards."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        wait_for_end(self.run, _END_SECONDS_MAX)
        for pid in processes_of_run(self.run):
            signal_to(pid, signal.SIGKILL)

    def _expect_end(self) -> None:
        left = wait_for_end(self.run, _END_SECONDS_MAX)
        if left:
            raise self.failure(f"ended, but its processes {left} are still there")


@contextmanager
def running_driver(arguments: list[str], log: Path) -> Iterator[Driver]:
    """Start a driver that ends with its context, and when this process dies.

    :param arguments: behind `python`, e.g. ["-m", "sluice", "run", "sluice.toml"].
    """
    set_java_home()
    run = uuid.uuid4().hex
    log.unlink(missing_ok=True)
    command = [sys.executable, *arguments]
    driver = Driver(start_process(command, log, environment={RUN_VARIABLE: run}), run, log)
    try:
        yield driver
    finally:
        driver.end()
