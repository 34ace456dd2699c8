"""What follows from a report, a plan or a look at the topics, beyond the partition it is about.

Whoever decides gives effects back, and the loop applies them, in their order, in one place: so a
decision is tested by what it gives back, and there is one line that stops a partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.core.dynamic import NewField
from sluice.core.errors import SluiceError
from sluice.core.ranges import TopicPartition

#: By table entry, the fields that it is asked to give columns.
Wanted = Mapping[str, tuple[NewField, ...]]


@dataclass(frozen=True, slots=True)
class StopPartition:
    """A partition cannot go on until a person has decided; the others do."""

    source: TopicPartition
    error: SluiceError


@dataclass(frozen=True, slots=True)
class ParkEntry:
    """A table entry that may be parked takes nothing from now on."""

    entry: str
    why: SluiceError


@dataclass(frozen=True, slots=True)
class LetGo:
    """A settled partition is not this pipeline's any more."""

    source: TopicPartition


@dataclass(frozen=True, slots=True)
class ReadTables:
    """The tables' structure is to be read soon; an event says what they are."""


@dataclass(frozen=True, slots=True)
class AddColumns:
    """Fields are to have columns; an event tells of them."""

    wanted: Wanted


Effect = StopPartition | ParkEntry | LetGo | ReadTables | AddColumns
