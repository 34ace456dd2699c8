"""Where the messages of a buffer come from: one partition, or those of a bundle."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.core.bundles import OFFSET_BITS
from sluice.core.ranges import TopicPartition
from sluice.decode.engine.native import numbers, repeated_numbers, repeated_texts


@dataclass(frozen=True, slots=True)
class Origin:
    """One partition.

    :param loaded_by: who loads its rows, see `core.tokens.row_source`.
    """

    source: TopicPartition
    loaded_by: str = ""


@dataclass(frozen=True, slots=True)
class Origins:
    """The partitions of a buffer's messages, in the order of the bundle's members. What a buffer
    calls a message's offset is its place (`core.bundles.place_of`); of one partition that is the
    offset itself, whatever it is."""

    members: tuple[Origin, ...]

    def __str__(self) -> str:
        first, *others = self.members
        return f"{first.source} and {len(others)} more" if others else str(first.source)

    def numbers(self, places: NDArray[np.uint64]) -> NDArray[np.int64] | None:
        """Which member each place is of; None: all are of the only one."""
        if len(self.members) == 1:
            return None
        return (places >> np.uint64(OFFSET_BITS)).astype(np.int64)

    def offsets(self, places: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The offset of each place in its partition."""
        if len(self.members) == 1:
            return places
        return places & np.uint64((1 << OFFSET_BITS) - 1)

    def column(self, name: str, type_text: str, places: NDArray[np.uint64]) -> bytes:
        """`_topic`, `_partition` or `_offset` of rows at these places, as Native writes it.

        :raises TerminalError: a number does not fit the server's type.
        """
        rows, of_rows = len(places), self.numbers(places)
        if name == "_offset":
            return numbers(name, type_text, self.offsets(places), rows)
        if name == "_topic":
            topics = [member.source.topic for member in self.members]
            return repeated_texts(name, type_text, topics, of_rows, rows)
        partitions = [member.source.partition for member in self.members]
        return repeated_numbers(name, type_text, partitions, of_rows, rows)


#: Of what is decoded on the way, whose rows carry no lineage.
NOWHERE = Origins((Origin(TopicPartition("", 0)),))


def alone(topic: str, partition: int, loaded_by: str = "") -> Origins:
    """Of one partition."""
    return Origins((Origin(TopicPartition(topic, partition), loaded_by),))
