"""`python -m sluice.testbed.scale` prints the tables of docs/SCALE.md."""

from __future__ import annotations

from sluice.testbed.scale.report import report

if __name__ == "__main__":
    print(report())
