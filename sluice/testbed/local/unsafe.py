"""A pipeline into a table that cannot deduplicate: for the benchmark, and for nothing else.

    python -m sluice.testbed.local.unsafe CONFIG

There is no such switch in `sluice run`, which refuses these tables.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from sluice.config import load
from sluice.driver.pipeline import run_pipeline

_GRACE_SECONDS = 30.0


def main(arguments: list[str]) -> int:
    """Run until SIGTERM; gives the exit status of `sluice run`."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    logging.getLogger("sluice").setLevel(logging.INFO)
    (path,) = arguments
    configuration = load(Path(path), os.environ)
    return run_pipeline(configuration, False, _GRACE_SECONDS, unsafe_no_dedup=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
