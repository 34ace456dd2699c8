"""Marks around messages, which prove that a row is exactly one message (H17).

Sequential formats (RowBinary, MsgPack, bodies of Avro) have nothing between two rows: a
message that is too long or too short moves the boundaries of all that follow. So each message
stands between two equal marks of 16 bytes, read as the first and the last column of its row:
12 bytes that nobody outside this process knows, then the message's place. A row whose two
marks are the mark of place k began right behind the first and ended right before the second,
with the bytes of message k between them and no others. No message can contain a mark.

Marks decide about boundaries only. No value of a row depends on them.
"""

from __future__ import annotations

import os
from functools import cache

from sluice.decode.engine.session import identifier
from sluice.decode.messages.format import NO_MESSAGE

MARK_BYTES = 16
_SECRET_BYTES = 12


@cache
def secret() -> bytes:
    """The part of a mark that is the same for all messages; random, one for each process."""
    return os.urandom(_SECRET_BYTES)


def place_between(head: str, tail: str) -> str:
    """SQL: the place that two equal marks name, or NO_MESSAGE.

    :param head: names the column of type FixedString(16) or String in front of the message.
    :param tail: the one behind it.
    """
    first, last = identifier(head), identifier(tail)
    own = f"unhex('{secret().hex()}')"
    number = f"reinterpretAsUInt32(substring({first}, {_SECRET_BYTES + 1}, 4))"
    sound = f"substring({first}, 1, {_SECRET_BYTES}) = {own} AND {first} = {last}"
    return f"toUInt32(if({sound}, {number}, {NO_MESSAGE}))"
