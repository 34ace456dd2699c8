"""A schema of a registry, and what names it: its number, or its GUID.

A GUID is kept as a number beyond all numbers of schemas, so both stand where a number may.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

_GUIDS = 1 << 128
GUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema and all that it refers to.

    :param kind: AVRO, PROTOBUF or JSON.
    :param references: names (for Protobuf: import paths) and texts; what is referred to stands
        before what refers to it.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()


def number_of_guid(guid: bytes) -> int:
    """What stands for these 16 bytes."""
    return _GUIDS | int.from_bytes(guid, "big")


def guid_of(number: int) -> str:
    """The GUID that a number stands for, as text; "" if it is a schema's own number."""
    return str(UUID(int=number - _GUIDS)) if number >= _GUIDS else ""


def shown_schema(number: int) -> str:
    """The number or the GUID, for people."""
    return guid_of(number) or str(number)
