"""`python -m sluice.testbed.scale` prints the tables of docs/SCALE.md; with the name of that file
it writes them there."""

from __future__ import annotations

import sys
from pathlib import Path

from sluice.testbed.scale.report import report, written_into

if __name__ == "__main__":
    if len(sys.argv) > 1:
        path = Path(sys.argv[1])
        path.write_text(written_into(path.read_text()))
    else:
        print(report())
