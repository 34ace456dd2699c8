"""The command lines of the local stack's programs, started as modules of their own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sluice.core.errors import ConfigurationError, SluiceError

#: What `--help` says about each program; the `sluice local` command says the same.
DESCRIPTIONS = {
    "clickhouse": (
        "ClickHouse's engine behind its HTTP protocol, for development on this machine: loopback"
        " only, one process for each folder, any user and password are accepted."
    ),
    "kafka": (
        "A real Kafka broker (KRaft, one node) for development on this machine: loopback only,"
        " no authentication."
    ),
}


def main(
    name: str, run: Callable[[Path, int | None], int], arguments: Sequence[str] | None = None
) -> int:
    """Parse --data and --port, run, and turn errors into one line and an exit status."""
    parser = argparse.ArgumentParser(
        prog=f"sluice local {name}",
        description=DESCRIPTIONS[name],
        epilog=f"example: sluice local {name} --data /tmp/{name}",
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that keeps the data")
    parser.add_argument("--port", type=int, default=None, help="default: any free port")
    parsed = parser.parse_args(arguments)
    try:
        return run(parsed.data, parsed.port)
    except SluiceError as error:
        print(f"sluice: {error.message}", file=sys.stderr)
        print(f"Try: {error.hint}", file=sys.stderr)
        return 2 if isinstance(error, ConfigurationError) else 1
