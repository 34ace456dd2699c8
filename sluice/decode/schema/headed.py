"""Messages whose schema stands outside of them: a header names it, or there is only one.

What Avro and Protobuf share: messages are sorted by schema (named.py), each is walked through with
it (structure.py), and the sound ones of one schema are written into one file for the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from sluice.core.errors import TerminalError
from sluice.core.formats import REGISTRY_OPTION
from sluice.core.load_spec import TableSpec
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.engine.session import declared
from sluice.decode.engine.types import nested_groups
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.format import Group, Natural, TypedFormat
from sluice.decode.messages.framing import in_words
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.messages.views import Indices
from sluice.decode.schema.named import (
    NO_REGISTRY_HEADER,
    Found,
    Headers,
    SchemaNames,
    registry_headers,
)
from sluice.decode.schema.structure import Positions, Results

#: Messages can name any number of schemas.
_SCHEMAS_MAX = 4096
_Made = TypeVar("_Made")


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
    #: Fields of the schema that are in none of the columns.
    ignored: Collection[str] = ()

    @abstractmethod
    def source(self, path: str) -> str:
        """What stands behind FROM."""

    @abstractmethod
    def walk(
        self, text: bytes, begins: Positions, ends: Positions
    ) -> tuple[Results, Collection[str]]:
        """Codes of structure.py for bodies; and what they have that the schema does not name."""

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

    #: What is wrong with a message that names no schema.
    no_header = NO_REGISTRY_HEADER

    @abstractmethod
    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """The messages by schema."""

    @abstractmethod
    def layout(self, key: int) -> Layout | Fault:
        """The layout of a schema, or why its messages cannot be read."""

    def known(self) -> Layout | None:
        """The layout of all messages, if there is only one."""
        return None

    def groups(self, buffer: MessageBuffer, indices: Indices) -> Iterator[Group]:
        """As the port says; schemas in the order in which messages first name them."""
        layout = self.known()
        if not len(indices) and layout is not None:
            yield from self._group(buffer, indices, indices, layout, {})
        unreadable: dict[int, Fault] = {}
        for found in self.found(buffer, indices):
            messages = np.concatenate(found.indices)
            if found.key is None:
                unreadable |= {i: self._without_header(v) for i, v in buffer.items(messages)}
                continue
            chosen = self.layout(found.key)
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

    def _group(
        self,
        buffer: MessageBuffer,
        messages: Indices,
        lengths: NDArray[np.int64],
        layout: Layout,
        unreadable: Mapping[int, Fault],
    ) -> Iterator[Group]:
        faults, ignored = dict(unreadable), set(layout.ignored)
        sound: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
        with MemoryFile("headed") as file:
            file.append(layout.head)
            place = 0
            for piece in buffer.pieces(messages):
                own = messages[piece.places]
                begins, ends = piece.bounds
                bodies = begins + lengths[piece.places]
                results, unknown = layout.walk(piece.text, bodies, ends)
                ignored.update(unknown)
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
                ignored=tuple(sorted(ignored)),
            )


class Registered(Generic[_Made]):
    """What is made of the schemas of a registry, once of each.

    :param kind: of the schemas, as registries call it.
    :param make: of a schema and its key; may raise an UnsupportedSchemaError.
    """

    def __init__(
        self,
        names: SchemaNames,
        kind: str,
        make: Callable[[RegisteredSchema, int], _Made | Fault],
    ) -> None:
        self._names = names

        @lru_cache(_SCHEMAS_MAX)
        def made(schema: RegisteredSchema, key: int) -> _Made | Fault:
            if schema.kind != kind:
                return Fault(CANNOT_PARSE, f"{names.shown(key)} is {schema.kind}, not {kind}")
            try:
                return make(schema, key)
            except UnsupportedSchemaError as error:
                return Fault(CANNOT_PARSE, f"{names.shown(key)}: {error}")

        self._made = made

    def of(self, key: int) -> _Made | Fault:
        """Of the schema that a key names, or why there is nothing. That the registry has no such
        schema is asked for again."""
        unlisted = self._names.unlisted(key)
        if unlisted is not None:
            return unlisted
        schema = self._names.schema(key)
        if schema is None:
            return Fault(CANNOT_PARSE, f"there is no {self._names.shown(key)}")
        return self._made(schema, key)


class RegisteredMessages(HeadedMessages):
    """Of those, messages that name their schema in a registry.

    A schema that the registry does not know makes no row and no fault: it refuses all messages,
    unless the text says which schemas there are.

    :raises TerminalError: the options are not complete.
    """

    #: Of the schemas, as registries call it.
    kind: str

    def __init__(self, table: TableSpec) -> None:
        required_option(table, REGISTRY_OPTION)
        self.table = table
        self.names = SchemaNames(table)
        self.no_header = self.names.no_header
        self._layouts = Registered[Layout](self.names, self.kind, self.make_layout)

    @abstractmethod
    def make_layout(self, schema: RegisteredSchema, key: int) -> Layout | Fault:
        """The layout of a schema, or why its messages cannot be read.

        :raises UnsupportedSchemaError: they cannot.
        """

    def layout(self, key: int) -> Layout | Fault:
        """As the base says."""
        return self._layouts.of(key)

    def headers(self, piece: Piece) -> Headers:
        """What stands at the begin of messages."""
        return registry_headers(piece)

    def found(self, buffer: MessageBuffer, indices: Indices) -> list[Found]:
        """As the base says.

        :raises UnknownSchemasError: the registry does not know all schemas that may be named.
        """
        found = self.names.found(buffer, indices, self.headers, self.place_in_header)
        self.names.require(found, len(indices))
        return found

    def place_in_header(self, rest: bytes) -> int | None:
        """What stands behind a GUID in a header, as 32 bits; None: it must not stand there."""
        return None if rest else 0


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
