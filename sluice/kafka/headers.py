"""The headers of messages, whatever the bytes of their names are."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import suppress

import confluent_kafka as ck

#: What stands for a name that is no UTF-8: its bytes are not told, nor could they be written.
UNREADABLE_NAME = "\ufffd"

Headers = list[tuple[str, bytes | None]]

_headers = ck.Message.headers


def headers_of(message: ck.Message) -> Headers:
    """The headers of a message, in their order; none: an empty list."""
    return all_headers((message,))[0]


def all_headers(batch: Sequence[ck.Message]) -> list[Headers]:
    """The same of each message. Nothing else calls `Message.headers`: where a name is no UTF-8, the
    client leaves an exception behind and gives a list that lacks the name."""
    try:
        # By `map`, which notices the exception: a call that Python has specialised does not.
        return [found or [] for found in map(_headers, batch)]
    except SystemError:
        return [_one_by_one(message) for message in batch]


def _one_by_one(message: ck.Message) -> Headers:
    with suppress(SystemError):
        list(map(_headers, (message,)))
    # The message keeps the list that lacks names, and gives it without a word from now on.
    (kept,) = map(_headers, (message,))
    found = [_whole(each) for each in kept or ()]
    message.set_headers(found)
    return found


def _whole(header: tuple[str, bytes | None]) -> tuple[str, bytes | None]:
    """A header with a name. Where it has none its first place is empty, so that to look at it would
    end the process."""
    there = gc.get_referents(header)
    return header if len(there) == len(header) else (UNREADABLE_NAME, *there)
