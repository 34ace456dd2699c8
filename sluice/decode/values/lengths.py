"""Messages of Protobuf behind their length, as writers of streams put them."""

from __future__ import annotations

from sluice.decode.engine.native import read_varint
from sluice.decode.messages.buffer import Value
from sluice.decode.messages.fault import CANNOT_PARSE, NOT_ONE_ROW, Fault
from sluice.decode.values.steps import ValueStep

_LENGTH_BYTES_MAX = 5
_NO_LENGTH = Fault(CANNOT_PARSE, "the message does not begin with a length")


class LengthDelimited(ValueStep):
    """Takes the length off, which has to be that of the rest."""

    def following(self, value: Value) -> Value | Fault:
        """As the port says."""
        try:
            length, begin = read_varint(value[:_LENGTH_BYTES_MAX], 0)
        except IndexError:
            return _NO_LENGTH
        rest = value[begin:]
        if len(rest) == length:
            return rest
        if len(rest) > length:
            said = f"behind the message of {length} bytes stand {len(rest) - length} more"
            return Fault(NOT_ONE_ROW, said)
        return Fault(CANNOT_PARSE, f"the message says {length} bytes, and {len(rest)} are there")
