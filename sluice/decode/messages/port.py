"""What every decoder of a table entry can do, whatever its format."""

from __future__ import annotations

from typing import Protocol

from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.origins import Origins


class TableDecoder(Protocol):
    """Decodes the messages of one table entry. Made once for each table text.

    What decides: the table text and the messages, nothing else. The same messages give the
    same bytes and the same bad messages, always, on any worker (R8).
    """

    @property
    def columns(self) -> tuple[str, ...]:
        """Of every block, in its order; lineage columns last."""
        ...

    def watch(self, buffer: MessageBuffer) -> None:
        """Let an empty buffer look at its messages when they come. It saves time; nothing else
        depends on it."""
        ...

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        """Turn messages into one block; bad ones are set aside, never an exception.

        :param origins: where they come from.
        :raises TerminalError: the engine fails although every message was proven, or a
            lineage column cannot hold a number.
        :raises TransientError: the machine did it, or something outside that is needed (a
            schema registry) does not answer.
        """
        ...
