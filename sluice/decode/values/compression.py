"""Values that stand in something: compressed by producers themselves, as files of gzip, zstd and
lz4, or raw snappy; messages of Protobuf behind their length, as writers of streams put them."""

from __future__ import annotations

import pyarrow as pa

from sluice.decode.engine.native import read_varint
from sluice.decode.messages.buffer import Value
from sluice.decode.messages.fault import CANNOT_DECOMPRESS, CANNOT_PARSE, NOT_ONE_ROW, Fault
from sluice.decode.messages.framing import COMPRESSED, begins_like
from sluice.decode.values.steps import ValueStep

#: What one message may become. It decides which messages are dead letters: see `decode.RULES`.
MESSAGE_BYTES_MAX = 64 << 20
_TOO_LARGE = Fault(
    CANNOT_DECOMPRESS, f"the value has over {MESSAGE_BYTES_MAX >> 20} MiB when decompressed"
)
_HEADS = {name: head for head, name in COMPRESSED.items()}


class Decompression(ValueStep):
    """Values as they were before they were compressed.

    :param codec: gzip, zstd, lz4 or snappy.
    """

    grows = True

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def following(self, value: Value) -> Value | Fault:
        """As the port says."""
        try:
            found = _snappy(value) if self._codec == "snappy" else self._streamed(value)
        except (IndexError, OSError, ValueError, pa.ArrowException):
            found = Fault(CANNOT_DECOMPRESS, self._why(value))
        return found if isinstance(found, Fault) or len(found) <= MESSAGE_BYTES_MAX else _TOO_LARGE

    def _streamed(self, value: Value) -> Value:
        """One frame, or several one after another.

        :raises ValueError, OSError: it is none.
        """
        if not value.startswith(_HEADS[self._codec]):
            raise ValueError(value)
        source = pa.BufferReader(pa.py_buffer(value))
        return bytes(pa.CompressedInputStream(source, self._codec).read(MESSAGE_BYTES_MAX + 1))

    def _why(self, value: Value) -> str:
        if not value:
            return f"the value is empty, and not {self._codec}"
        head = _HEADS.get(self._codec, b"")
        if head and value.startswith(head):
            return f"the value begins like {self._codec}, and is cut short or damaged"
        like = begins_like(value)
        shown = f"like {like}" if like else f"with the bytes {value[:8].hex(' ')}"
        return f"the value is not {self._codec}: it begins {shown}"


def _snappy(value: Value) -> Value | Fault:
    """One raw block, which begins with the size that it has when decompressed.

    :raises IndexError, ValueError, OSError: it is none.
    """
    size, _ = read_varint(value[:5], 0)
    if size > MESSAGE_BYTES_MAX:
        return _TOO_LARGE
    return bytes(pa.Codec("snappy").decompress(pa.py_buffer(value), size))


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
