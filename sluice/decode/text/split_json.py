"""Messages of several JSON objects, or arrays, taken apart by their brackets.

A message is rows one after another: objects (JSONEachRow) or arrays (JSONCompactEachRow) with
whitespace and at most one comma between two of them; or, of objects, one array of them with
exactly one comma between two. Nothing else stands between rows, before or behind them. Each row
then has the structure that boundaries.py asks of a message, so it is joined like one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.decode.messages.boundaries import (
    JSON_WHITESPACE,
    OBJECTS,
    Mask,
    Outline,
    Positions,
    outline_of,
)
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import CANNOT_PARSE, NOT_ONE_OBJECT, NOT_ONE_ROW, Fault
from sluice.decode.messages.framing import BYTE_ORDER_MARK, JSON_ARRAYS, JSON_OBJECTS
from sluice.decode.messages.marked import Piece
from sluice.decode.messages.splitting import PieceRows, Split, split_pieces

COMMA, OPEN_ARRAY = b",["


@dataclass(frozen=True, slots=True)
class JsonSplitter:
    """Takes the messages of a buffer apart.

    :param kind: what a row is, OBJECTS or ARRAYS of `boundaries`.
    :param drops: bad rows are dropped, so that it has to be known of each message whether it
        is bad itself.
    """

    kind: bytes
    drops: bool = False

    def __call__(self, buffer: MessageBuffer) -> Split | None:
        if not self.drops and not buffer.faults:
            return None
        framing = JSON_OBJECTS if self.kind == OBJECTS else JSON_ARRAYS
        return split_pieces(buffer, framing, self._rows)

    def _rows(self, piece: Piece) -> PieceRows:
        count = len(piece.ends)
        begins, ends = np.concatenate(([0], piece.ends[:-1])), piece.ends - 1
        outline = outline_of(piece.text, begins, ends)
        faults = outline.faults
        froms, tos, owners = self._groups(outline, count)
        faults |= self._gaps(piece, outline, froms, tos, owners)
        kept = ~faults[owners]
        froms, tos, owners = froms[kept], tos[kept], owners[kept]
        view = memoryview(piece.text)
        parts = [view[a:b] for a, b in zip(froms.tolist(), tos.tolist(), strict=True)]
        text = b"\n".join([*parts, b""])
        broken = {place: self._explain(piece, place) for place in np.flatnonzero(faults).tolist()}
        return PieceRows(text, np.cumsum(tos - froms + 1) - 1, owners, broken)

    def _groups(self, outline: Outline, count: int) -> tuple[Positions, Positions, Positions]:
        """Where the rows begin and end, and the message of each; what cannot be is a fault."""
        none = np.zeros(0, np.int64)
        faults = outline.faults
        faults |= outline.counts == 0
        if not len(outline.positions):
            return none, none, none
        opening, depth = outline.depths()
        owners = outline.owners
        last = np.append(owners[1:] != owners[:-1], True)
        faults[owners[last & (depth != 0)]] = True
        faults[owners[depth < 0]] = True
        outline.blame_crossed(opening, depth)
        # At which depth the rows of each message begin: within an array of objects at the second.
        level = np.ones(count, np.int64)
        if self.kind == OBJECTS:
            first = np.concatenate(([True], owners[1:] != owners[:-1]))
            level[owners[first & (outline.symbols == OPEN_ARRAY)]] = 2
        begins = opening & (depth == level[owners])
        closes = ~opening & (depth == level[owners] - 1)
        faults[owners[begins & (outline.symbols != self.kind[0])]] = True
        # The array is the whole message.
        outer = opening & (depth == 1) & (level[owners] == 2)
        faults |= np.bincount(owners[outer], minlength=count) > 1
        sound = ~faults[owners]
        begins, closes = begins & sound, closes & sound
        return outline.positions[begins], outline.positions[closes] + 1, owners[begins]

    def _gaps(
        self,
        piece: Piece,
        outline: Outline,
        froms: Positions,
        tos: Positions,
        owners: Positions,
    ) -> Mask:
        """Messages with something else around their rows than may be there."""
        count = len(piece.ends)
        symbols = np.frombuffer(piece.text, np.uint8)
        change = np.zeros(len(symbols) + 1, np.int8)
        change[froms] += 1
        change[tos] -= 1
        outside = np.cumsum(change[:-1], dtype=np.int8) == 0
        outside[piece.ends - 1] = False
        places = np.flatnonzero(outside)
        found, owner = symbols[places], np.searchsorted(piece.ends, places, side="right")
        is_array = np.zeros(count, np.bool_)
        is_space = np.isin(found, np.frombuffer(JSON_WHITESPACE, np.uint8))
        if self.kind == OBJECTS and len(outline.positions):
            first = np.concatenate(([True], outline.owners[1:] != outline.owners[:-1]))
            is_array[outline.owners[first & (outline.symbols == OPEN_ARRAY)]] = True
            ends = np.isin(places, outline.positions) & is_array[owner]
            # Nothing but space stands outside of the array: its brackets are first and last.
            shown = np.flatnonzero(~is_space)
            is_new = owner[shown][1:] != owner[shown][:-1]
            is_edge = np.zeros(len(places), np.bool_)
            is_edge[shown[:1]] = is_edge[shown[-1:]] = True
            is_edge[shown[1:][is_new]] = is_edge[shown[:-1][is_new]] = True
            allowed_ends = ends & is_edge
        else:
            allowed_ends = np.zeros(len(places), np.bool_)
        is_comma = (found == COMMA) & ~allowed_ends
        faults = np.zeros(count, np.bool_)
        faults[owner[~(is_space | is_comma | allowed_ends)]] = True
        # Commas by the number of rows before them: one at most, none before the first row.
        before = np.searchsorted(froms, places[is_comma])
        mine = owner[is_comma]
        first_row = np.searchsorted(owners, np.arange(count))
        beyond_row = np.searchsorted(owners, np.arange(count), side="right")
        faults[mine[(before <= first_row[mine]) | (before >= beyond_row[mine])]] = True
        faults[mine[1:][(before[1:] == before[:-1]) & (mine[1:] == mine[:-1])]] = True
        rows = beyond_row - first_row
        commas = np.bincount(mine, minlength=count)
        faults |= is_array & (rows > 0) & (commas != rows - 1)
        faults |= ~is_array & (rows == 0)
        return faults

    def _explain(self, piece: Piece, index: int) -> Fault:
        begin = int(piece.ends[index - 1]) if index else 0
        value = piece.text[begin : int(piece.ends[index]) - 1].strip(JSON_WHITESPACE)
        noun = "objects" if self.kind == OBJECTS else "arrays"
        reason = NOT_ONE_OBJECT if self.kind == OBJECTS else NOT_ONE_ROW
        if not value:
            return Fault(reason, "the message is empty")
        if value.startswith(BYTE_ORDER_MARK):
            return Fault(CANNOT_PARSE, "the message starts with a byte order mark")
        return Fault(CANNOT_PARSE, f"the message is not JSON {noun} one after another")
