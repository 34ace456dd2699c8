"""What envelopes name as their table, for routing; cheaper than reading their rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.decode.envelope.layout import distinct, read_layout
from sluice.decode.envelope.plain import PlainRequest, read_plain
from sluice.decode.envelope.wire import Text


def envelope_tables(messages: Sequence[bytes]) -> list[bytes | None]:
    """For each message what its field `table` says; None if it names none or is no envelope.

    :param messages: of one poll; they are copied once.
    """
    if not messages:
        return []
    ends = np.cumsum(np.fromiter(map(len, messages), np.int64, len(messages)))
    begins = np.concatenate(([0], ends[:-1]))
    text = Text(b"".join(messages))
    layout = read_layout(text, begins, ends)
    contents, numbers = distinct(text, layout.table_begins, layout.table_ends)
    names = [content or None for content in contents]
    tables = [names[number] for number in numbers.tolist()]
    for place in np.flatnonzero(~layout.sound).tolist():
        tables[place] = _table_of(messages[place])
    return tables


def _table_of(message: bytes) -> bytes | None:
    request = read_plain(message, refuse_unknown=False)
    return (request.table or None) if isinstance(request, PlainRequest) else None
