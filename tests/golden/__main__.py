"""Write the outcomes anew: `python -m tests.golden`, for some formats only with their names."""

from __future__ import annotations

import sys

from sluice.decode.formats import FORMATS
from tests.golden.outcome import OUTCOMES, outcomes_of


def main(formats: list[str]) -> None:
    OUTCOMES.mkdir(exist_ok=True)
    for table_format in formats or FORMATS:
        lines = [line for _, some in outcomes_of(table_format) for line in some]
        (OUTCOMES / f"{table_format}.txt").write_text("\n".join(lines) + "\n")
        print(f"{table_format}: {len(lines)} lines")


if __name__ == "__main__":
    main(sys.argv[1:])
