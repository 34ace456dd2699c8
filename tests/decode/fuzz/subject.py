"""What the fuzzing needs to know of a format."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sluice.core.load_spec import Column, TableSpec
from tests.decode.support import LINEAGE, LINEAGE_NAMES, table


@dataclass(frozen=True, slots=True)
class Subject:
    """A table entry under attack.

    :param good: a good message, different ones for different states of the chance.
    :param by_file: each message costs a few queries.
    """

    text: TableSpec
    good: Callable[[random.Random], bytes]
    by_file: bool = False


def fuzzed_table(table_format: str, columns: tuple[Column, ...], **changes: Any) -> TableSpec:
    """A table with all lineage columns."""
    facts = {"format": table_format, "lineage": LINEAGE_NAMES} | changes
    return table(*columns, *LINEAGE, **facts)
