"""Messages that carry their own names: CSVWithNames, TSVWithNames, TSKV.

Messages with the same line, byte by byte, are decoded together; blocks of several such
groups become one, in the order of the messages.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.load_spec import TableSpec
from sluice.core.text_options import SKIPPED
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded, bad_messages
from sluice.decode.messages.fault import CANNOT_PARSE, NO_COLUMN, NOT_ONE_ROW, UNKNOWN_FIELD, Fault
from sluice.decode.messages.framing import BYTE_ORDER_MARK, LINES
from sluice.decode.messages.origins import Origins
from sluice.decode.messages.splitting import Splitter
from sluice.decode.text.line_decoder import LineDecoder
from sluice.decode.text.line_formats import LineFormat

#: So many lines of names are known at a time, each with its compiled queries.
_DECODERS_MAX = 64
_ADDED_TOGETHER = 500


@dataclass(slots=True)
class _Group:
    """Messages of one line of names, without it."""

    rest: MessageBuffer
    indices: list[int] = field(default_factory=list)
    _waiting: list[bytes] = field(default_factory=list)

    def add(self, index: int, value: bytes, offsets: NDArray[np.uint64]) -> None:
        self.indices.append(index)
        self._waiting.append(value)
        if len(self._waiting) == _ADDED_TOGETHER:
            self.flush(offsets)

    def flush(self, offsets: NDArray[np.uint64]) -> None:
        """Give the values to the buffer.

        :param offsets: of all messages, by index.
        """
        some = self.indices[len(self.indices) - len(self._waiting) :]
        self.rest.add(self._waiting, offsets[some].tolist())
        self._waiting = []


class NamedLineDecoder:
    """Decodes messages of a line of names and rows. Made once for each table text.

    :param split: takes the rows of a message apart.
    :raises TerminalError: the text cannot be executed by this decoder.
    """

    def __init__(self, table: TableSpec, lines: LineFormat, split: Splitter) -> None:
        self._table = table
        self._lines = lines
        self._split = split
        #: In the order of all columns, which any text must be able to do.
        self._whole = LineDecoder(table, lines, None, split)
        self.columns = self._whole.columns
        self._decoders: OrderedDict[tuple[bytes, bool], LineDecoder | Fault] = OrderedDict()

    def watch(self, buffer: MessageBuffer) -> None:
        """Nothing of the messages is looked at when they come."""

    def decode(self, buffer: MessageBuffer, origins: Origins) -> Decoded:
        """See `sluice.decode.messages.port.TableDecoder`."""
        faults: dict[int, Fault] = {}
        empty: list[int] = []
        offsets = buffer.offsets
        parts: list[tuple[Decoded, list[int]]] = []
        with ExitStack() as stack:
            groups = self._groups(buffer, faults, empty, stack)
            in_order = len(groups) == 1 and self._table.sort
            for head, group in groups.items():
                decoder = self._decoder(head, in_order)
                if isinstance(decoder, Fault):
                    faults |= dict.fromkeys(group.indices, decoder)
                else:
                    group.flush(offsets)
                    parts.append((decoder.decode(group.rest, origins), group.indices))
                group.rest.close()
        bad = [*bad_messages(faults, offsets)]
        for decoded, indices in parts:
            bad += [replace(one, index=indices[one.index]) for one in decoded.bad]
        bad.sort(key=lambda one: one.index)
        decodeds = [decoded for decoded, _ in parts]
        if len(groups) == 1 and len(parts) == 1:
            whole = replace(decodeds[0], bad=tuple(bad))
        else:
            whole = self._whole.merged(decodeds, origins, tuple(bad))
        all_empty = [int(offsets[index]) for index in empty]
        all_empty += [offset for decoded in decodeds for offset in decoded.empty]
        dropped = sum(decoded.dropped_rows for decoded in decodeds)
        return replace(whole, empty=tuple(sorted(all_empty)), dropped_rows=dropped)

    def _groups(
        self, buffer: MessageBuffer, faults: dict[int, Fault], empty: list[int], stack: ExitStack
    ) -> dict[bytes, _Group]:
        """The messages by their lines of names."""
        groups: dict[bytes, _Group] = {}
        offsets = buffer.offsets
        for index, value in enumerate(buffer.iterate(np.arange(buffer.messages))):
            found = self._lines.first_line(value)
            if isinstance(found, Fault):
                faults[index] = found
                continue
            head, rest = found
            if head.startswith(BYTE_ORDER_MARK):
                faults[index] = Fault(CANNOT_PARSE, "the message starts with a byte order mark")
            elif not head:
                faults[index] = Fault(NOT_ONE_ROW, "the message does not start with names")
            elif rest:
                group = groups.get(head)
                if group is None:
                    group = groups[head] = _Group(stack.enter_context(MessageBuffer(LINES)))
                group.add(index, rest, offsets)
            elif self._table.rows == "many":
                empty.append(index)
            else:
                faults[index] = Fault(NOT_ONE_ROW, "the message has 0 rows")
        return groups

    def _decoder(self, head: bytes, in_order: bool) -> LineDecoder | Fault:
        """What decodes the rows behind this line of names.

        :param in_order: blocks stand in the order of the sorting key, not of the messages.
        """
        key = (head, in_order)
        decoder = self._decoders.get(key)
        if decoder is None:
            names = self._names(head)
            if isinstance(names, Fault):
                decoder = names
            else:
                table = replace(self._table, sort=in_order)
                decoder = LineDecoder(table, self._lines, names, self._split)
            self._decoders[key] = decoder
            if len(self._decoders) > _DECODERS_MAX:
                self._decoders.popitem(last=False)
        self._decoders.move_to_end(key)
        return decoder

    def _names(self, head: bytes) -> tuple[str, ...] | Fault:
        try:
            head.decode()
        except UnicodeDecodeError:
            return Fault(CANNOT_PARSE, "the line of names is not UTF-8")
        names = self._lines.values(head)
        known = self._whole.readable
        doubled = sorted({name for name in names if name in known and names.count(name) > 1})
        unknown = [name for name in names if name not in known]
        if doubled:
            return Fault(CANNOT_PARSE, f"column {doubled[0]} is named twice", doubled[0])
        if len(unknown) == len(names):
            return Fault(NO_COLUMN, "the first line names no column of the table")
        if unknown and self._table.unknown_fields == "refuse":
            return Fault(UNKNOWN_FIELD, f"the table has no column {unknown[0]}", unknown[0])
        return tuple(name if name in known else SKIPPED for name in names)
