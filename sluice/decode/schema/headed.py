"""Messages whose schema stands outside of them: a header names it, or there is only one.

What Avro and Protobuf share: messages are sorted by schema (named.py), each is walked through with
it (structure.py), and the sound ones of one schema are written into one file for the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.formats import REGISTRY_OPTION
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.session import declared
from sluice.decode.engine.types import nested_groups
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, Natural, TypedFormat
from sluice.decode.messages.framing import in_words
from sluice.decode.messages.marked import Indices
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.schema.named import (
    NO_REGISTRY_HEADER,
    Found,
    Headers,
    SchemaNames,
    sorted_by_schema,
)
from sluice.decode.schema.structure import Positions, Results

#: Messages can name any number of schemas.
_LAYOUTS_MAX = 4096


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


class HeadedMessages(TypedFormat):
    """Such messages, of which every one of a group was walked through."""

    #: What is wrong with a message without a header.
    no_header = NO_REGISTRY_HEADER

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
            if found.key is None:
                unreadable |= {i: self._without_header(v) for i, v in buffer.items(messages)}
                continue
            chosen = self._layout(found.key)
            if isinstance(chosen, Fault):
                unreadable |= dict.fromkeys(messages.tolist(), chosen)
                continue
            lengths = np.concatenate(found.lengths)
            yield from self._group(buffer, messages, lengths, chosen, unreadable)
            unreadable = {}
        if unreadable:
            yield Group.without_messages(unreadable)

    def _without_header(self, value: bytes) -> Fault:
        said = in_words(self.no_header, value)
        return self.no_header if type(self).__name__ in said.error else said  # the format's name

    def remark(self, value: bytes) -> str:
        """What else is to be said of a message that is not what its schema says; "" for nothing."""
        return ""

    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """The messages by schema."""
        return sorted_by_schema(buffer, indices, self.headers)

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
                begins, ends = piece.bounds
                bodies = begins + lengths[piece.places]
                results = layout.walk(piece.text, bodies, ends)
                if results.any():
                    for at in np.flatnonzero(results).tolist():
                        fault = layout.fault(int(results[at]))
                        if fault.reason == CANNOT_PARSE:
                            remark = self.remark(piece.text[begins[at] : ends[at]])
                            more = f": {remark}" if remark else ""
                            fault = replace(fault, error=fault.error + more)
                        faults[int(own[at])] = fault
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
    """Of those, messages that name their schema in a registry.

    A schema that the registry does not know makes no row and no fault: it refuses all messages,
    unless the text says which schemas there are.

    :raises TerminalError: the options are not complete.
    """

    def __init__(self, table: TableSpec) -> None:
        super().__init__()
        self.url = required_option(table, REGISTRY_OPTION)
        self.names = SchemaNames(table)
        self.no_header = self.names.no_header

    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """As the base says."""
        return self.names.found(buffer, indices, self.headers, self.place_in_header)

    def place_in_header(self, rest: bytes) -> int | None:
        """What stands behind a GUID in a header, as 32 bits; None: it must not stand there."""
        return None if rest else 0

    def require(self, found: Iterable[Found], of: int) -> None:
        """As the base says.

        :raises UnknownSchemasError: the registry does not know all schemas that may be named.
        """
        self.names.require(found, of)

    def shown(self, key: int) -> str:
        """As the base says."""
        return self.names.shown(key)

    def _layout(self, key: int) -> Layout | Fault:
        return self.names.unlisted(key) or super()._layout(key)


def target_types(table: TableSpec) -> dict[str, str]:
    """The types that fields fill, by name; of a Nested that of its records."""
    types = {column.name: column.type for column in table.columns}
    for head, elements in nested_groups(types).items():
        types[head] = f"Array(Tuple({declared(elements.items())}))"
    return types


def required_option(table: TableSpec, name: str) -> str:
    """An option of the format.

    :raises TerminalError: it is not given.
    """
    value = dict(table.options).get(name, "")
    if not value:
        raise TerminalError(
            f"table {table.target}: format {table.format} needs the option {name}",
            f"Write {name} = … in the options of {table.format} in the entry {table.entry}.",
        )
    return value
