"""`python -m sluice.local.embedded --data DIR [--port P]`."""

from __future__ import annotations

import sys

from sluice.local.command import main
from sluice.local.embedded.server import run_clickhouse

if __name__ == "__main__":
    sys.exit(main("clickhouse", run_clickhouse))
