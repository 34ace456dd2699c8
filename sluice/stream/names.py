"""Names of the tables that a query makes beside its target. What became of a table is in its name.

All are in the target's database and begin with `sluice_` and the query's key:

    sluice_Q_mark_N                             a mark: see `marks`
    sluice_Q_home                               on a shard without marks: which marks count
    sluice_Q_C_E_P_U                            rows that one task attempt staged
    sluice_Q_C_E_P_U_BY_BLOCK_RUN               claimed by one mover; see `clickhouse/moving.py`
    sluice_Q_new_N__CLAIM                       replaces the target; by whom
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from sluice.clickhouse.moving import CLAIM_PATTERN, Claim

_MARK = re.compile(r"sluice_[0-9a-f]{12}_mark_(\d{12})")
_STAGED = re.compile(
    r"(?P<base>sluice_[0-9a-f]{12}_(?P<checkpoint>[0-9a-f]{8})_(?P<epoch>\d+)_\d+_[0-9a-f]{12})"
    rf"(?:{CLAIM_PATTERN})?"
)


def _digest(text: str, digits: int) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:digits]


def query_prefix(query: str) -> str:
    """With which all names of a query begin.

    :param query: the name that its user gave it.
    """
    return f"sluice_{_digest(query, 12)}_"


def mark_name(prefix: str, number: int) -> str:
    """Of the mark with this number."""
    return f"{prefix}mark_{number:012d}"


def home_name(prefix: str) -> str:
    """Of the table that says of a shard that another one has the marks."""
    return f"{prefix}home"


def mark_number(name: str) -> int | None:
    """The number of a mark; None for any other table."""
    found = _MARK.fullmatch(name)
    return int(found[1]) if found else None


def staged_name(prefix: str, checkpoint: str, epoch: int, partition: int, unique: str) -> str:
    """Of the table of one task attempt.

    :param unique: 12 hexadecimal digits, drawn for this attempt.
    """
    return f"{prefix}{_digest(checkpoint, 8)}_{epoch}_{partition}_{unique}"


@dataclass(frozen=True, slots=True)
class Staged:
    """A staging table by its name now.

    :param base: its name at first, by which a mark knows it.
    :param claim: None: nobody moves it yet.
    """

    name: str
    base: str
    checkpoint_key: str
    epoch: int
    claim: Claim | None = None

    def is_of(self, checkpoint: str) -> bool:
        """Whether it was staged under this checkpoint."""
        return self.checkpoint_key == _digest(checkpoint, 8)


def parse_staged(name: str) -> Staged | None:
    """What a table's name says; None for a table that stages nothing."""
    found = _STAGED.fullmatch(name)
    if found is None:
        return None
    where = (name, found["base"], found["checkpoint"], int(found["epoch"]))
    return Staged(*where, Claim.read(found))


def new_prefix(prefix: str, number: int) -> str:
    """With which the name of the table begins that the mark with this number puts in place."""
    return f"{prefix}new_{number:012d}__"
