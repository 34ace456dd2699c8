"""Which schema each message names: in a header of its own at its begin, or in a header of Kafka.

Confluent's serializers write a zero byte and the schema's number, or, into a header, a byte 1 and
the schema's GUID. Where a header is looked for and is not there, the begin of the message counts.
They append their header to those that are there, as of a message that is passed on from another
topic, so the last one names the schema.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sluice.core.formats import REGISTRY_OPTION
from sluice.core.load_spec import TableSpec
from sluice.core.schema_ids import GUID_BYTES, RegisteredSchema, number_of_guid, shown_schema
from sluice.decode.messages.buffer import MessageBuffer, Piece
from sluice.decode.messages.facts import SCHEMA_IN_HEADER
from sluice.decode.messages.fault import CANNOT_PARSE, UNKNOWN_SCHEMA, Fault
from sluice.decode.messages.views import Indices
from sluice.decode.schema.registry import UnknownSchemasError, registry_of, require_known

REGISTRY_HEADER_BYTES = 5
#: The headers of Kafka with a byte 1 and the GUID of the schema, of values and of keys.
SCHEMA_HEADER, KEY_SCHEMA_HEADER = "__value_schema_id", "__key_schema_id"
#: In the options of a table of keys; no option of the file.
HEADER_OPTION = "schema_header"
_GUID_FOLLOWS = b"\x01"
#: Above these bits of a key stands what stands for a GUID.
_GUID_SHIFT = 64

NO_REGISTRY_HEADER = Fault(
    CANNOT_PARSE, "the message does not begin with a zero byte and a schema number"
)


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
    """Messages that name one schema, with where their bodies begin; None: they name none."""

    key: int | None
    indices: list[NDArray[np.int64]] = field(default_factory=list)
    lengths: list[NDArray[np.int64]] = field(default_factory=list)

    def add(self, indices: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        self.indices.append(indices)
        self.lengths.append(lengths)


def sorted_by_schema(
    buffer: MessageBuffer, indices: Indices, headers_of: Callable[[Piece], Headers]
) -> list[Found]:
    """The messages by schema, in the order in which they first name it."""
    by_key: dict[int | None, Found] = {}

    def of(key: int | None) -> Found:
        return by_key.setdefault(key, Found(key))

    for piece in buffer.pieces(indices):
        headers, own = headers_of(piece), indices[piece.places]
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


class SchemaNames:
    """How the messages of an entry name their schemas. The key of a schema holds its number, or
    what stands for its GUID, and 32 bits for a type's place in it."""

    def __init__(self, table: TableSpec) -> None:
        self._url = dict(table.options).get(REGISTRY_OPTION, "")
        self._in_header = SCHEMA_IN_HEADER in table.options
        self._header = dict(table.options).get(HEADER_OPTION, SCHEMA_HEADER)
        self._listed = None if table.schemas is None else frozenset(table.schemas)
        #: What is wrong with a message that names none.
        self.no_header = NO_REGISTRY_HEADER
        if self._in_header:
            said = (
                f"no schema is named: no header {self._header} holds a byte 1 and a GUID, and "
                f"{NO_REGISTRY_HEADER.error}"
            )
            self.no_header = Fault(CANNOT_PARSE, said)

    @staticmethod
    def number(key: int) -> int:
        """Of the schema that a key names: its own, or what stands for its GUID."""
        return key >> _GUID_SHIFT or key & 0xFFFFFFFF

    @staticmethod
    def place(key: int) -> int:
        """The 32 bits of a type's place in its schema."""
        return key >> 32 & 0xFFFFFFFF

    @staticmethod
    def header_bytes(key: int) -> int:
        """So many bytes stand before the body of a message, a type's place left out."""
        return 0 if key >> _GUID_SHIFT else REGISTRY_HEADER_BYTES

    def shown(self, key: int) -> str:
        """What names the schema, for people."""
        return f"schema {shown_schema(self.number(key))} of the registry"

    def schema(self, key: int) -> RegisteredSchema | None:
        """The schema itself, as a `SchemaSource` gives it."""
        return registry_of(self._url).schema(self.number(key))

    def found(
        self,
        buffer: MessageBuffer,
        indices: Indices,
        headers_of: Callable[[Piece], Headers],
        place_of: Callable[[bytes], int | None],
    ) -> list[Found]:
        """The messages by the key of their schema.

        :param place_of: a type's place of what stands behind a GUID; None: nothing may.
        """
        if not self._in_header or buffer.facts is None:
            return sorted_by_schema(buffer, indices, headers_of)
        by_key: dict[int | None, list[int]] = {}
        left: list[int] = []
        for index in indices.tolist():
            said = [value for name, value in buffer.facts.headers[index] if name == self._header]
            header = next((value for value in reversed(said) if value is not None), None)
            if header is None:
                left.append(index)
                continue
            by_key.setdefault(_key_of(header, place_of), []).append(index)
        found = sorted_by_schema(buffer, np.array(left, np.int64), headers_of)
        for key, some in by_key.items():
            found.append(Found(key, [np.array(some, np.int64)], [np.zeros(len(some), np.int64)]))
        return found

    def require(self, found: Iterable[Found], of: int) -> None:
        """Ask the registry for all schemas that may be named.

        :param of: how many messages there are.
        :raises UnknownSchemasError: it does not know them all.
        """
        named: dict[int, int] = {}
        for each in found:
            number = None if each.key is None else self.number(each.key)
            if number is not None and self._is_listed(number):
                named[number] = named.get(number, 0) + sum(map(len, each.indices))
        if named:
            require_known(self._url, named, of)

    def unlisted(self, key: int) -> Fault | None:
        """What is wrong with a schema that the text does not speak of."""
        if self._is_listed(self.number(key)):
            return None
        shown = shown_schema(self.number(key))
        return Fault(UNKNOWN_SCHEMA, f"the registry did not know schema {shown} in time")

    def _is_listed(self, number: int) -> bool:
        return self._listed is None or number in self._listed


def schemas_named(table: TableSpec, buffer: MessageBuffer) -> tuple[set[int], set[int]]:
    """The schemas that messages name, of a format whose schemas are in a registry: those that it
    knows, and those that it was asked for and does not know."""
    url = dict(table.options).get(REGISTRY_OPTION, "")
    if not url:
        return set(), set()
    names = SchemaNames(table)
    found = names.found(buffer, np.arange(buffer.messages), registry_headers, lambda _: 0)
    numbers = {names.number(each.key) for each in found if each.key is not None}
    try:
        require_known(url, dict.fromkeys(numbers, 1), len(numbers))
    except UnknownSchemasError as error:
        return set(error.found.known), set(error.found.numbers)
    return numbers, set()


def _key_of(header: bytes, place_of: Callable[[bytes], int | None]) -> int | None:
    """The key that a header says; None: it says none."""
    if header[:1] != _GUID_FOLLOWS or len(header) < 1 + GUID_BYTES:
        return None
    place = place_of(header[1 + GUID_BYTES :])
    if place is None:
        return None
    return number_of_guid(header[1 : 1 + GUID_BYTES]) << _GUID_SHIFT | place << 32


def bytes_at_begin(piece: Piece, length: int) -> tuple[NDArray[np.bool_], NDArray[np.uint8]]:
    """Which messages have so many bytes, and these bytes of each; zeros for the others."""
    begins, ends = piece.bounds
    is_long = ends - begins >= length
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
