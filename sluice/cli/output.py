"""JSON on stdout, for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any


def print_json(value: object) -> None:
    """One JSON document; dataclasses become objects, secrets stay masked."""
    print(json_text(value, indent=2))


def print_json_list(values: Iterable[object]) -> None:
    """A JSON list, written while it is read, with a line for each element."""
    separator = "["
    for value in values:
        sys.stdout.write(f"{separator}\n{json_text(value)}")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def json_text(value: object, indent: int | None = None) -> str:
    """The JSON of a value; what JSON does not know is written as its text."""
    return json.dumps(value, default=_plain, indent=indent, ensure_ascii=False)


def _plain(value: object) -> Any:
    import dataclasses

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="backslashreplace")
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
