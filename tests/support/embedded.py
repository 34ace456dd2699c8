"""The embedded engine (`sluice local clickhouse`) as a process of its own, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sluice.testbed.local.children import end_process, free_ports, wait_until
from tests.support.clickhouse_server import answers_ping


@dataclass
class EmbeddedServer:
    """One embedded server. `stop` and `start` keep its data and its port."""

    folder: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until /ping answers."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "embedded.log"
        command = [sys.executable, "-m", "sluice.testbed.local.embedded"]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*command, "--data", str(self.folder / "data"), "--port", str(self.port)],
                stdout=output,
                stderr=output,
                env=os.environ | self.environment,
            )
        wait_until(lambda: answers_ping(self.port), self.process, log)

    def stop(self) -> None:
        """End the process; the data stays."""
        if self.process is not None:
            end_process(self.process)
            self.process = None


@contextmanager
def run_embedded() -> Iterator[EmbeddedServer]:
    """Run an embedded server until the block ends, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="sluice-embedded-") as folder:
        server = EmbeddedServer(Path(folder))
        try:
            server.start()
            yield server
        finally:
            server.stop()
