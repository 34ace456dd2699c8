"""Messages whose schema stands outside of them: a header names it, or there is only one.

What Avro and Protobuf share: messages are sorted by schema, each is walked through with it
(structure.py), and the sound ones of one schema are written into one file for the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.load_spec import TableSpec
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, UNKNOWN_SCHEMA, Fault
from sluice.decode.messages.format import Group, Natural, TypedFormat
from sluice.decode.messages.marked import Indices
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.schema.registry import require_known
from sluice.decode.schema.tables import Positions, Results

REGISTRY_HEADER_BYTES = 5
#: Messages can name any number of schemas.
_LAYOUTS_MAX = 4096
NO_REGISTRY_HEADER = "the message does not begin with a zero byte and a schema number"


class UnsupportedSchemaError(Exception):
    """Words about a schema that cannot be used."""


class Layout(ABC):
    """How messages of one schema are given to the engine.

    :param head: of the file.
    :param place: SQL for the place of a row.
    """

    head = b""
    columns: tuple[Natural, ...]
    place: str
    settings: Mapping[str, object] = {}

    @abstractmethod
    def source(self, path: str) -> str:
        """What stands behind FROM."""

    @abstractmethod
    def walk(self, text: bytes, begins: Positions, ends: Positions) -> Results:
        """Codes of structure.py for bodies."""

    @abstractmethod
    def fault(self, result: int) -> Fault:
        """A result of `walk` that is not 0, in words."""

    @abstractmethod
    def block(
        self, text: bytes, begins: Positions, bodies: Positions, ends: Positions, place: int
    ) -> list[bytes | memoryview]:
        """What the file holds for these messages, in parts.

        :param begins: of the messages, headers included; `bodies`: without.
        :param place: of the first of them.
        """


@dataclass(frozen=True, slots=True)
class Headers:
    """What the headers of some messages say.

    :param are_there: which messages have one.
    :param keys: the schema that each names.
    :param lengths: of the headers in bytes.
    """

    are_there: NDArray[np.bool_]
    keys: NDArray[np.uint64]
    lengths: NDArray[np.int64]


@dataclass(slots=True)
class Found:
    """Messages that name one schema, with where their bodies begin; None: without a header."""

    key: int | None
    indices: list[NDArray[np.int64]] = field(default_factory=list)
    lengths: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, indices: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.indices.append(indices)
        self.lengths.append(lengths)


class HeadedMessages(TypedFormat):
    """Such messages, of which every one of a group was walked through."""

    #: What is wrong with a message without a header.
    no_header = Fault(CANNOT_PARSE, NO_REGISTRY_HEADER)

    def __init__(self) -> None:
        self._layouts: dict[int, Layout | Fault] = {}

    @abstractmethod
    def headers(self, piece: Piece) -> Headers:
        """What the headers say."""

    @abstractmethod
    def make_layout(self, key: int) -> Layout | Fault | None:
        """The layout of a schema, or why its messages cannot be read; None: no such schema.

        :raises UnsupportedSchemaError: its messages cannot be read.
        """

    @abstractmethod
    def shown(self, key: int) -> str:
        """What names the schema, for people."""

    def require(self, found: Iterable[Found], of: int) -> None:
        """Raise what forbids to read any of these messages; as a rule nothing does.

        :param of: how many there are.
        """

    def known(self) -> Layout | None:
        """The layout of all messages, if there is only one."""
        return None

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """As the port says; schemas in the order in which messages first name them."""
        layout = self.known()
        if not len(indices) and layout is not None:
            yield from self._group(buffer, indices, indices, layout, {})
        unreadable: dict[int, Fault] = {}
        by_schema = self.found(buffer, indices)
        self.require(by_schema, len(indices))
        for found in by_schema:
            messages = np.concatenate(found.indices)
            chosen = self.no_header if found.key is None else self._layout(found.key)
            if isinstance(chosen, Fault):
                unreadable |= dict.fromkeys(messages.tolist(), chosen)
                continue
            lengths = np.concatenate(found.lengths)
            yield from self._group(buffer, messages, lengths, chosen, unreadable)
            unreadable = {}
        if unreadable:
            yield Group("", (), np.zeros(0, np.int64), "", True, unreadable=unreadable)

    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """The messages by schema, in the order in which they first name it."""
        by_key: dict[int | None, Found] = {}

        def of(key: int | None) -> Found:
            return by_key.setdefault(key, Found(key))

        for piece in buffer.pieces(indices):
            headers, own = self.headers(piece), indices[piece.places]
            there, keys, lengths = headers.are_there, headers.keys, headers.lengths
            if not there.all():
                of(None).add(own[~there], lengths[~there])
                own, keys, lengths = own[there], keys[there], lengths[there]
            if not len(keys):
                continue
            if (keys == keys[0]).all():
                of(int(keys[0])).add(own, lengths)
                continue
            values, firsts = np.unique(keys, return_index=True)
            for value in values[np.argsort(firsts)].tolist():
                chosen = keys == value
                of(value).add(own[chosen], lengths[chosen])
        return list(by_key.values())

    def _layout(self, key: int) -> Layout | Fault:
        """Kept; that there is no such schema is asked for again."""
        layout = self._layouts.get(key)
        if layout is not None:
            return layout
        try:
            made = self.make_layout(key)
        except UnsupportedSchemaError as error:
            made = Fault(CANNOT_PARSE, f"{self.shown(key)}: {error}")
        if made is None:
            return Fault(CANNOT_PARSE, f"there is no {self.shown(key)}")
        if len(self._layouts) >= _LAYOUTS_MAX:
            self._layouts.clear()
        self._layouts[key] = made
        return made

    def _group(
        self,
        buffer: MessageBuffer,
        messages: Indices,
        lengths: NDArray[np.int64],
        layout: Layout,
        unreadable: Mapping[int, Fault],
    ) -> Iterator[Group]:
        faults = dict(unreadable)
        sound: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        with MemoryFile("headed") as file:
            file.append(layout.head)
            place = 0
            for piece in buffer.pieces(messages):
                own = messages[piece.places]
                begins, ends = np.concatenate(([0], piece.ends[:-1])), piece.ends - 1
                bodies = begins + lengths[piece.places]
                results = layout.walk(piece.text, bodies, ends)
                if results.any():
                    for at in np.flatnonzero(results).tolist():
                        faults[int(own[at])] = layout.fault(int(results[at]))
                    kept = results == 0
                    own, begins = own[kept], begins[kept]
                    bodies, ends = bodies[kept], ends[kept]
                sound.append(own)
                if len(own):
                    file.append(*layout.block(piece.text, begins, bodies, ends, place))
                    place += len(own)
            yield Group(
                layout.source(file.path),
                layout.columns,
                np.concatenate(sound),
                layout.place,
                single=True,
                settings=layout.settings,
                unreadable=faults,
            )


class RegisteredMessages(HeadedMessages):
    """Of those, messages that name their schema by its number in a registry.

    A schema that the registry does not know makes no row and no fault: it refuses all messages,
    unless the text says which numbers there are.

    :raises TerminalError: the options are not complete.
    """

    def __init__(self, table: TableSpec) -> None:
        super().__init__()
        self.url = required_option(table, "registry")
        self._listed = None if table.schemas is None else frozenset(table.schemas)

    @abstractmethod
    def number(self, key: int) -> int:
        """Of the schema that a key names, in the registry."""

    def require(self, found: Iterable[Found], of: int) -> None:
        """As the base says.

        :raises UnknownSchemasError: the registry does not know all schemas that may be named.
        """
        named: dict[int, int] = {}
        for each in found:
            number = None if each.key is None else self.number(each.key)
            if number is not None and self._is_listed(number):
                named[number] = named.get(number, 0) + sum(map(len, each.indices))
        if named:
            require_known(self.url, named, of)

    def shown(self, key: int) -> str:
        """As the base says."""
        return f"schema {self.number(key)} of the registry"

    def _is_listed(self, number: int) -> bool:
        return self._listed is None or number in self._listed

    def _layout(self, key: int) -> Layout | Fault:
        if self._is_listed(self.number(key)):
            return super()._layout(key)
        return Fault(UNKNOWN_SCHEMA, f"the registry did not know schema {self.number(key)} in time")


def bytes_at_begin(piece: Piece, length: int) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Which messages have so many bytes, and these bytes of each; zeros for the others."""
    begins = np.concatenate(([0], piece.ends[:-1]))
    is_long = piece.ends - 1 - begins >= length
    symbols = np.frombuffer(piece.text, np.uint8)
    places = np.where(is_long, begins, 0)[:, None] + np.arange(length)
    taken = symbols[np.minimum(places, len(symbols) - 1)]
    taken[~is_long] = 0
    return is_long, taken


def registry_headers(piece: Piece) -> Headers:
    """A zero byte, and the number of the schema in four bytes."""
    is_long, symbols = bytes_at_begin(piece, REGISTRY_HEADER_BYTES)
    numbers = np.ascontiguousarray(symbols[:, 1:5]).view(">u4")[:, 0].astype(np.uint64)
    lengths = np.full(len(numbers), REGISTRY_HEADER_BYTES, np.int64)
    return Headers(is_long & (symbols[:, 0] == 0), numbers, lengths)


def required_option(table: TableSpec, name: str) -> str:
    """An option of the format.

    :raises TerminalError: it is not given.
    """
    value = dict(table.options).get(name, "")
    if not value:
        raise TerminalError(
            f"table {table.target}: format {table.format} needs the option {name}",
            f"Write {name} = … under [table.options] of the entry {table.entry}.",
        )
    return value
