"""The format `SQLBatchRequest`: eBay's envelope, rows bound to a statement, as relations.

Many messages are read at once, by arithmetic on arrays. A message that does not look exactly as
the official encoders write it, or that does not fit the table, is read byte by byte: it is
written anew in the usual way and read again, or it is bad. What a message becomes follows from
the message and the table alone. Values for columns that the table does not have are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from sluice.core.errors import TerminalError
from sluice.core.text import TableText
from sluice.decode.envelope.groups import PLACE, Relations, Statement, parse_rows
from sluice.decode.envelope.layout import Layout, distinct, read_layout, read_rows
from sluice.decode.envelope.plain import PlainRequest, read_plain
from sluice.decode.envelope.statement import read_statement
from sluice.decode.envelope.values import shape_of
from sluice.decode.envelope.wire import Mask, Positions, Text
from sluice.decode.envelope.words import explain, mixed_kinds
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.fault import UNKNOWN_FIELD, Fault
from sluice.decode.messages.format import Group, Indices
from sluice.decode.messages.framing import BYTES
from sluice.decode.messages.marked import pieces
from sluice.decode.typed.blobs import Blobs
from sluice.producer.wire import LIMITS, Kind, schema_hashcode

#: Reason of a message whose `schema_hashcode` is none of those that the options name.
OTHER_SCHEMA = "other-schema"
#: So many statements are remembered from range to range.
_STATEMENTS_MAX = 256
#: So many messages that were written anew are read together.
_REWRITTEN_TOGETHER = 500

_NO_MESSAGES = np.zeros(0, np.int64)


class EnvelopeFormat:
    """Envelopes of one table entry.

    Options: `schema_hash`, what `schema_hashcode` may be, separated by commas: numbers, or
    `table` for `sluice.producer.schema_hashcode` of the table's columns. Without the option it
    is not compared.

    :raises TerminalError: an option is unknown or no hash.
    """

    def __init__(self, table: TableText) -> None:
        own = [column for column in table.columns if column.name not in table.lineage]
        insertable = [column for column in own if column.kind in ("", "DEFAULT")]
        self._positional = tuple(column.name for column in insertable)
        # A row that is dropped alone is left to the decoder; here a fault is the message's.
        looks, refuse_null = table.bad_rows != "drop-row", table.on_null != "default"
        self._shapes = {
            column.name: shape_of(column.type, looks, refuse_null)
            for column in own
            if column.kind in ("", "DEFAULT", "EPHEMERAL")
        }
        self._refuse_unknown = table.unknown_fields == "refuse"
        self._null_is_empty = table.on_null == "default"
        own_hash = schema_hashcode((column.name, column.type) for column in insertable)
        self._hashes = _accepted_hashes(table, own_hash)
        self._blocks = Blobs(table, "Native")
        self._statements: dict[bytes, Statement | Fault] = {}

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """See `TypedFormat`."""
        first = _Reading(self)
        for piece in pieces(buffer, indices):
            begins = np.concatenate(([0], piece.ends[:-1]))
            first.take(piece.text, begins, piece.ends - 1, indices[piece.places])
        again = _Reading(self)
        faults = first.faults
        rewritten: list[tuple[int, bytes]] = []
        for index, message in first.doubtful:
            result = self._judge(message)
            if isinstance(result, Fault):
                faults[index] = result
            else:
                rewritten.append((index, result))
        for begin in range(0, len(rewritten), _REWRITTEN_TOGETHER):
            again.take_all(rewritten[begin : begin + _REWRITTEN_TOGETHER])
        for index, message in again.doubtful:
            result = self._judge(message)
            assert isinstance(result, Fault)
            faults[index] = result
        faults |= again.faults
        blocks = sorted(first.blocks + again.blocks)
        yield from self._yield_groups([first.relations, again.relations], blocks, faults)

    def broken(self, buffer: MessageBuffer, indices: Indices) -> dict[int, Fault]:
        """See `TypedFormat`. What the engine reads was written here; only blocks were not."""
        return {}

    def _yield_groups(
        self, readings: list[Relations], blocks: list[tuple[int, bytes]], faults: dict[int, Fault]
    ) -> Iterator[Group]:
        for reading in readings:
            for relation in reading.by_key.values():
                with relation.group(faults) as group:
                    yield group
                faults = {}
        for index, block in blocks:
            yield from self._block_groups(index, block)
        if faults:
            yield Group("", (), _NO_MESSAGES, PLACE, single=False, unreadable=faults)

    def _block_groups(self, index: int, block: bytes) -> Iterator[Group]:
        """A Native block as if it were a message of that format."""
        with MessageBuffer(BYTES) as alone:
            alone.add([block], [0])
            for group in self._blocks.groups(alone, np.zeros(1, np.int64)):
                bad = {place + index: fault for place, fault in group.unreadable.items()}
                yield replace(group, messages=group.messages + index, unreadable=bad)

    def _judge(self, message: bytes) -> bytes | Fault:
        """What was not read: in the usual way of writing, if it was only written unusually."""
        request = read_plain(message, self._refuse_unknown)
        if isinstance(request, Fault):
            return request
        usual = request.encode()
        return usual if usual != message else self._explain(request)

    def _explain(self, request: PlainRequest) -> Fault:
        statement = self.statement(request.sql)
        if isinstance(statement, Fault):
            return statement
        return explain(request, statement.columns, statement.shapes, self._null_is_empty)

    def statement(self, sql: bytes) -> Statement | Fault:
        """What the statement means for this table, or why the message is bad."""
        known = self._statements.get(sql)
        if known is not None:
            return known
        columns = read_statement(sql, self._positional)
        result: Statement | Fault
        if isinstance(columns, Fault):
            result = columns
        else:
            strange = [name for name in columns if name not in self._shapes]
            if strange and self._refuse_unknown:
                said = f"the table has no column {strange[0]}"[:300]
                result = Fault(UNKNOWN_FIELD, said, strange[0])
            else:
                shapes = {n: self._shapes[n] for n in columns if n in self._shapes}
                result = Statement(columns, shapes)
        if len(self._statements) < _STATEMENTS_MAX:
            self._statements[sql] = result
        return result

    def other_schemas(self, layout: Layout) -> Mask:
        """Messages whose hash the options do not name."""
        if self._hashes is None:
            return np.zeros(len(layout.sound), np.bool_)
        wrong: Mask = ~np.isin(layout.hashes.view(np.int64), self._hashes)
        return wrong & layout.sound

    @property
    def null_is_empty(self) -> bool:
        """Whether null in the place of a list is an empty one."""
        return self._null_is_empty


@dataclass(slots=True)
class _Reading:
    """Messages read in the usual way of writing.

    `doubtful` are those that are not; `blocks` are those that hold a Native block.
    """

    owner: EnvelopeFormat
    relations: Relations = field(default_factory=Relations)
    faults: dict[int, Fault] = field(default_factory=dict)
    doubtful: list[tuple[int, bytes]] = field(default_factory=list)
    blocks: list[tuple[int, bytes]] = field(default_factory=list)

    def take_all(self, messages: list[tuple[int, bytes]]) -> None:
        """Read messages with their indices."""
        indices = np.array([index for index, _ in messages], np.int64)
        ends = np.cumsum([len(message) for _, message in messages])
        begins = np.concatenate(([0], ends[:-1]))
        self.take(b"".join([message for _, message in messages]), begins, ends, indices)

    def take(self, content: bytes, begins: Positions, ends: Positions, indices: Indices) -> None:
        """Read messages that stand in one text."""
        text = Text(content)
        layout = read_layout(text, begins, ends)
        rows = read_rows(text, layout)
        others = self.owner.other_schemas(layout)
        for place in np.flatnonzero(others).tolist():
            found = int(layout.hashes.view(np.int64)[place])
            said = f"schema_hashcode {found} is none of those in the option schema_hash"
            self.faults[int(indices[place])] = Fault(OTHER_SCHEMA, said)
        usable = layout.sound & ~others
        for place in np.flatnonzero(usable & layout.has_block).tolist():
            block = content[layout.head_begins[place] : layout.head_ends[place]]
            self.blocks.append((int(indices[place]), block))
        bound = np.flatnonzero(usable & ~layout.has_block)
        fine = layout.sound.copy()
        for statement, places in self._by_statement(text, layout, bound, indices):
            chosen = np.zeros(len(begins), np.bool_)
            chosen[places] = True
            here = chosen[rows.owners]
            place_of = np.cumsum(chosen) - 1
            bound_rows = place_of[rows.owners[here]], rows.begins[here], rows.ends[here]
            parsed = parse_rows(text, statement, bound_rows, len(places), self.owner.null_is_empty)
            refused = self.relations.add(text, statement, indices[places], parsed)
            for index, name in refused.items():
                self.faults[index] = mixed_kinds(name)
            fine[places] = parsed.fine
        for place in np.flatnonzero(~fine).tolist():
            self.doubtful.append((int(indices[place]), content[begins[place] : ends[place]]))

    def _by_statement(
        self, text: Text, layout: Layout, bound: Positions, indices: Indices
    ) -> Iterator[tuple[Statement, Positions]]:
        """Messages by what their statements mean; those of bad ones are faults.

        :param bound: places of the messages that have a statement.
        """
        texts, numbers = distinct(text, layout.head_begins[bound], layout.head_ends[bound])
        meanings: dict[tuple[str, ...], tuple[Statement, list[int]]] = {}
        for number, sql in enumerate(texts):
            statement = self.owner.statement(sql)
            if isinstance(statement, Fault):
                bad = indices[bound[numbers == number]].tolist()
                self.faults |= dict.fromkeys(bad, statement)
            else:
                meanings.setdefault(statement.columns, (statement, []))[1].append(number)
        for statement, of in meanings.values():
            everything = len(of) == len(texts)
            yield statement, bound if everything else bound[np.isin(numbers, of)]


def _accepted_hashes(table: TableText, own_hash: int) -> list[int] | None:
    options = dict(table.options)
    accepted = options.pop("schema_hash", None)
    where = f"table {table.target}"
    if options:
        raise TerminalError(
            f"{where}: format SQLBatchRequest has no option {min(options)}",
            "Its only option is schema_hash.",
        )
    if accepted is None:
        return None
    hashes = []
    low, high = LIMITS[Kind.LONG]
    for part in (part.strip() for part in accepted.split(",")):
        if part != "table" and not (part.lstrip("-").isdecimal() and low <= int(part) <= high):
            raise TerminalError(
                f"{where}: option schema_hash: {part!r} is no hash",
                'Write a number of 64 bits or "table"; separate several by commas.',
            )
        hashes.append(own_hash if part == "table" else int(part))
    return hashes
