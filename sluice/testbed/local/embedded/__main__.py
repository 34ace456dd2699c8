"""`python -m sluice.testbed.local.embedded --data DIR [--port P]`."""

from __future__ import annotations

import sys

from sluice.testbed.local.command import main
from sluice.testbed.local.embedded.server import run_clickhouse

if __name__ == "__main__":
    sys.exit(main("clickhouse", run_clickhouse))
