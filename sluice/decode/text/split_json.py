"""Messages of several JSON objects, or arrays, taken apart by their brackets.

A message is rows one after another: objects (JSONEachRow) or arrays (JSONCompactEachRow) with
whitespace and at most one comma between two of them; or, of objects, one array of them with
exactly one comma between two. Nothing else stands between rows, before or behind them. Each row
then has the structure that brackets.py asks of a message, so it is joined like one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.decode.messages.brackets import JSON_WHITESPACE, OBJECTS, rows_in
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, NOT_ONE_OBJECT, NOT_ONE_ROW, Fault
from sluice.decode.messages.first_bytes import begins_like
from sluice.decode.messages.framing import BYTE_ORDER_MARK, JSON_OBJECTS
from sluice.decode.messages.splitting import PieceRows, Split, split_pieces


@dataclass(frozen=True, slots=True)
class JsonSplitter:
    """Takes the messages of a buffer apart.

    :param kind: what a row is, OBJECTS or ARRAYS of `brackets`.
    :param drops: bad rows are dropped, so that it has to be known of each message whether it
        is bad itself.
    """

    kind: bytes
    drops: bool = False

    def __call__(self, buffer: MessageBuffer) -> Split | None:
        if not self.drops and not buffer.faults:
            return None
        return split_pieces(buffer, JSON_OBJECTS, self.rows)

    def rows(self, piece: Piece) -> PieceRows:
        """Of a piece."""
        begins, ends = piece.bounds
        froms, tos, owners, broken = rows_in(piece.text, begins, ends, self.kind)
        view = memoryview(piece.text)
        parts = [view[a:b] for a, b in zip(froms.tolist(), tos.tolist(), strict=True)]
        text = b"\n".join([*parts, b""])
        faults = {
            place: self._explain(piece.text[begins[place] : ends[place]])
            for place in np.flatnonzero(broken).tolist()
        }
        return PieceRows(text, np.cumsum(tos - froms + 1) - 1, owners, faults)

    def _explain(self, message: bytes) -> Fault:
        value = message.strip(JSON_WHITESPACE)
        noun = "objects" if self.kind == OBJECTS else "arrays"
        reason = NOT_ONE_OBJECT if self.kind == OBJECTS else NOT_ONE_ROW
        if not value:
            return Fault(reason, "the message is empty")
        if value.startswith(BYTE_ORDER_MARK):
            return Fault(CANNOT_PARSE, "the message starts with a byte order mark")
        like = begins_like(value)
        shown = f"; it begins like {like}" if like else ""
        return Fault(CANNOT_PARSE, f"the message is not JSON {noun} one after another{shown}")
