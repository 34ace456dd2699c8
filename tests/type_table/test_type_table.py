"""docs/TYPES.md says what becomes of every type in every format."""

from __future__ import annotations

import pytest

from sluice.decode.engine.session import run
from sluice.decode.formats import FORMATS
from tests.type_table.kinds import BY_ANOTHER_NAME, NO_COLUMNS, every_kind
from tests.type_table.outcomes import FAMILIES, PAGE, outcomes_of, page, read_page
from tests.type_table.writers import WRITERS


def test_every_type_of_the_engine_and_every_format_is_there() -> None:
    query = "SELECT name FROM system.data_type_families WHERE alias_to = ''"
    families = set(run(query, "TSV").bytes().decode().split())
    kinds = every_kind()
    listed = {kind.family for kind in kinds}
    # These stand around or before others.
    assert families == listed | set(BY_ANOTHER_NAME) | set(NO_COLUMNS)
    assert len({kind.type for kind in kinds}) == len(kinds)
    differing = set(WRITERS) ^ set(FORMATS)
    assert not differing, f"{differing}: a format without a line in WRITERS of writers.py"
    grouped = sorted(one for formats in FAMILIES.values() for one in formats)
    assert sorted(WRITERS) == grouped, "FAMILIES of outcomes.py has each format once"


@pytest.mark.parametrize("format_name", WRITERS)
def test_a_value_of_each_type_becomes_what_the_page_says(format_name: str) -> None:
    said = read_page(PAGE.read_text())
    found = outcomes_of(format_name, said)
    differences = {
        kind: (said.get(kind, {}).get(format_name), became)
        for kind, became in found.items()
        if said.get(kind, {}).get(format_name) != became
    }
    assert not differences, (
        "if they are meant, run `python -m tests.type_table`, and read docs/TYPES.md"
    )


def test_the_page_is_written_as_it_is_read() -> None:
    text = PAGE.read_text()
    assert page(read_page(text), text) == text
