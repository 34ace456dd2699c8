"""Messages of Protobuf behind their length, as writers of streams put them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sluice.decode.messages.buffer import MessageBuffer, Value
from sluice.decode.messages.fault import CANNOT_PARSE, NOT_ONE_ROW, Fault
from sluice.decode.values.steps import Step

_LENGTH_BYTES_MAX = 5
_NO_LENGTH = Fault(CANNOT_PARSE, "the message does not begin with a length")


class LengthDelimited(Step):
    """Takes the length off, which has to be that of the rest."""

    def values(self, buffer: MessageBuffer) -> Iterator[Value | Fault]:
        """As the port says."""
        for value in buffer.iterate(np.arange(buffer.messages)):
            yield _without_length(value)


def _without_length(value: Value) -> Value | Fault:
    length = 0
    for place, byte in enumerate(value[:_LENGTH_BYTES_MAX]):
        length |= (byte & 127) << (7 * place)
        if byte < 128:
            break
    else:
        return _NO_LENGTH
    rest = value[place + 1 :]
    if len(rest) == length:
        return rest
    if len(rest) > length:
        said = f"behind the message of {length} bytes stand {len(rest) - length} more"
        return Fault(NOT_ONE_ROW, said)
    return Fault(CANNOT_PARSE, f"the message says {length} bytes, and {len(rest)} are there")
