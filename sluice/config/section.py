"""A table of the file as a frozen dataclass that pydantic reads: its fields are the keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    ConfigDict,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails

from sluice.config.findings import RefusedError
from sluice.config.values import a_table, shown
from sluice.core.suggestions import suggest

T = TypeVar("T")

#: A key below this table, or the way to it, and what is wrong with it.
Conflict = tuple[str | tuple[str | int, ...], str]


def key_of(field: str) -> str:
    """What a field is called in the file, where values have units, and names have none."""
    return field.removesuffix("_seconds")


def refuse_all(conflicts: Iterable[Conflict], already: Iterable[ErrorDetails] = ()) -> None:
    """Report several findings at once.

    :param already: what pydantic has found.
    """
    found: list[InitErrorDetails] = [
        {
            "type": each["type"],
            "loc": each["loc"],
            "input": each["input"],
            "ctx": each.get("ctx", {}),
        }
        for each in already
    ]
    for where, what in conflicts:
        loc = where if isinstance(where, tuple) else (where,)
        found.append(
            {"type": "value_error", "loc": loc, "input": None, "ctx": {"error": RefusedError(what)}}
        )
    if found:
        raise ValidationError.from_exception_data("", found)


class Section:
    """A table of the file. Its subclasses are frozen dataclasses; building one checks nothing."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(alias_generator=key_of)

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        """What of this table does not go together; asked when each value alone is right.

        :param written: the table as it stands in the file.
        """
        return iter(())

    @model_validator(mode="wrap")
    @classmethod
    def _read(cls, written: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        keys = {key_of(field.name) for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = [
            (key, f"unknown key; {suggest(key, keys)}")
            for key in a_table(written)
            if key not in keys
        ]
        try:
            section = read(written)
        except ValidationError as error:
            refuse_all(unknown, error.errors())
            raise
        refuse_all([*section.conflicts(written), *unknown])
        return section


def _a_list(written: object, read: ValidatorFunctionWrapHandler) -> tuple[Any, ...]:
    if not isinstance(written, list):
        raise RefusedError(f"must be a list like [{shown(written)}]")
    if not written:
        raise RefusedError("must not be empty")
    values: tuple[Any, ...] = read(written)
    refuse_all(
        ((index,), f"{shown(written[index])} is named twice")
        for index, value in enumerate(values)
        if value in values[:index]
    )
    return values


def _entries(
    written: object, read: ValidatorFunctionWrapHandler, info: ValidationInfo
) -> tuple[Any, ...]:
    if not isinstance(written, list) or not all(isinstance(each, dict) for each in written):
        raise RefusedError(f"write it with double brackets: [[{info.field_name}]]")
    entries: tuple[Any, ...] = read(written)
    return entries


#: A list with an element at least, and none twice.
Listed = Annotated[tuple[T, ...], WrapValidator(_a_list)]
#: The tables of [[key]].
Entries = Annotated[tuple[T, ...], WrapValidator(_entries)]
