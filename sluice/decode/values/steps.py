"""Steps from the value that Kafka holds to the one that the entry's format reads.

Each step makes a buffer of other values out of a buffer. A message that it cannot take is a fault;
the others go on, at their offsets, and the format's decoder makes the rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from sluice.core.errors import TransientError
from sluice.decode.messages.buffer import MessageBuffer, Value
from sluice.decode.messages.decoded import BadMessage, Decoded, TableDecoder
from sluice.decode.messages.facts import Origins
from sluice.decode.messages.fault import Fault
from sluice.decode.messages.framing import BYTES, Framing
from sluice.decode.messages.views import Indices

#: Above this a range is too large when its values are decompressed, unless it is one message.
RANGE_BYTES_MAX = 256 << 20
#: So many messages, or bytes of them, are put into a buffer at once.
_MESSAGES, _BYTES = 500, 1 << 20


class TooLargeError(TransientError):
    """The values of a range are too large together; the range has to be shorter.

    :param end: the offset of the first message that is too much.
    """

    def __init__(self, end: int) -> None:
        super().__init__(
            f"the messages before offset {end} have {RANGE_BYTES_MAX >> 20} MiB when decompressed",
            "Lower max_bytes in [batch].",
        )
        self.end = end


class Step(ABC):
    """Made once for each table text. What a message becomes depends on nothing but itself."""

    #: Whether values may be much larger than what they are made of.
    grows = False

    @abstractmethod
    def values(self, buffer: MessageBuffer) -> Iterator[Value | Fault]:
        """Of each message in its order, the value that follows, or what is wrong with it.

        :raises TransientError: something outside that is needed does not answer.
        """


class ValueStep(Step):
    """A step that looks at nothing but the value."""

    def values(self, buffer: MessageBuffer) -> Iterator[Value | Fault]:
        """As the port says."""
        return map(self.following, buffer.iterate(np.arange(buffer.messages)))

    @abstractmethod
    def following(self, value: Value) -> Value | Fault:
        """What follows a value, or what is wrong with it."""


class SteppedDecoder:
    """See `TableDecoder`. Decodes what its steps make of the messages.

    `decode` raises TooLargeError, too.

    :param steps: at least one.
    :param framing: of the values that the last step makes.
    """

    def __init__(self, decoder: TableDecoder, steps: Sequence[Step], framing: Framing) -> None:
        self._decoder = decoder
        self._steps = tuple(zip(steps, [BYTES] * (len(steps) - 1) + [framing], strict=True))

    @property
    def columns(self) -> tuple[str, ...]:
        return self._decoder.columns

    def watch(self, buffer: MessageBuffer) -> None:
        """Nothing is known of values that steps are before."""

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        return self._decode(buffer, origins, 0)

    def _decode(self, buffer: MessageBuffer, origins: Origins, number: int) -> Decoded:
        if number == len(self._steps):
            return self._decoder.decode(buffer, origins)
        step, framing = self._steps[number]
        faults: dict[int, Fault] = {}
        with MessageBuffer(framing) as made:
            if number + 1 == len(self._steps):
                self._decoder.watch(made)
            left = _fill(made, buffer, step, faults)
            decoded = self._decode(made, origins, number + 1)
        offsets = buffer.offsets
        bad = [replace(one, index=int(left[one.index])) for one in decoded.bad]
        bad += [
            BadMessage(index, int(offsets[index]), fault.reason, fault.error, fault.column)
            for index, fault in faults.items()
        ]
        return replace(decoded, bad=tuple(sorted(bad, key=lambda one: one.index)))


def _fill(
    made: MessageBuffer, buffer: MessageBuffer, step: Step, faults: dict[int, Fault]
) -> Indices:
    """Put what a step makes into a buffer.

    :param faults: takes what is wrong with the others.
    :returns: of each value in it, its message's index.
    """
    offsets = buffer.offsets.tolist()
    left: list[int] = []
    values: list[Value] = []
    size, total_max = 0, RANGE_BYTES_MAX if step.grows else None
    for index, value in enumerate(step.values(buffer)):
        if isinstance(value, Fault):
            faults[index] = value
            continue
        size += len(value)
        if total_max is not None and left and made.bytes + size > total_max:
            raise TooLargeError(offsets[index])
        left.append(index)
        values.append(value)
        if size > _BYTES or len(values) == _MESSAGES:
            made.add(values, [offsets[one] for one in left[-len(values) :]])
            values, size = [], 0
    made.add(values, [offsets[one] for one in left[len(left) - len(values) :]])
    if buffer.facts is not None:
        made.facts = buffer.facts.some(left)
    return np.array(left, np.int64)
