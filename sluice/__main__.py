"""`python -m sluice` is the command `sluice`."""

from __future__ import annotations

import sys

from sluice.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
