"""Write docs/TYPES.md anew: `python -m tests.type_table`."""

from __future__ import annotations

from tests.type_table.outcomes import PAGE, Outcomes, outcomes_of, page
from tests.type_table.writers import WRITERS


def main() -> None:
    found: Outcomes = {}
    for format_name in WRITERS:
        for type_text, one in outcomes_of(format_name).items():
            found.setdefault(type_text, {})[format_name] = one
    PAGE.write_text(page(found, PAGE.read_text()))


if __name__ == "__main__":
    main()
