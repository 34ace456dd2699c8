"""Fields of messages that their table has no column for, and what their values are.

With `unknown_fields = "refuse"`, each JSON message that has such a field makes no row, and all of
them are looked at. With "ignore" a few of each range are, so that somebody hears of a field that
producers have added. Pure Python, and the same in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

import numpy as np

from sluice.core.dynamic import NewField, answer_to, kind_of, merged
from sluice.core.load_spec import TableSpec
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.members import values_of
from sluice.decode.text.words import AS_WRITTEN

#: So many characters of a name are told.
_SHOWN_MAX = 100

#: The names of a message's fields; none if it cannot be read.
NamesIn = Callable[[bytes], Iterable[str]]


def new_fields(table: TableSpec, buffer: MessageBuffer, decoded: Decoded) -> tuple[NewField, ...]:
    """What the table is to be asked for before anything of these messages is loaded, in the order
    in which it first appears; empty if there is nothing or no room.

    A function of the messages and of the text.
    """
    dynamic = table.dynamic
    if dynamic is None or not decoded.bad:
        return ()
    columns = frozenset(column.name for column in table.columns)
    answers: dict[str, str | None] = {}
    kinds: dict[str, str] = {}
    bad = np.array([one.index for one in decoded.bad], np.int64)
    for value in buffer.iterate(bad):
        for row in _objects(value):
            for name, field in row.items():
                if name not in answers:
                    answers[name] = answer_to(dynamic, columns, name)
                if answers[name] == "add":
                    kind = kind_of(field)
                    kinds[name] = merged(kinds[name], kind) if name in kinds else kind
                elif answers[name] is not None:
                    kinds[name] = ""
    return tuple(NewField(name, kind) for name, kind in kinds.items())


def ignored_fields(
    names_in: NamesIn, known: Collection[str], buffer: MessageBuffer
) -> frozenset[str]:
    """Of the first message, of the one in the middle, and of the last one: the fields without a
    column.

    :param known: names of columns.
    """
    count = buffer.messages
    places = np.unique([0, count // 2, count - 1]) if count else np.zeros(0, np.int64)
    messages = buffer.iterate(places.astype(np.int64))
    seen = (name for value in messages for name in names_in(bytes(value)))
    return frozenset(name[:_SHOWN_MAX] for name in seen if name not in known)


def names_in_objects(value: bytes) -> Iterator[str]:
    """Of JSON."""
    return (name for row in _objects(value) for name in row)


def _objects(value: bytes | memoryview) -> Iterator[dict[str, Any]]:
    """The rows of a message: one object, several, or an array of them; none if it is not JSON."""
    try:
        values = values_of(bytes(value).decode(errors="replace"), AS_WRITTEN)
        rows = [row for one in values for row in (one if isinstance(one, list) else [one])]
    except (ValueError, RecursionError):
        return
    yield from (row for row in rows if isinstance(row, dict))
