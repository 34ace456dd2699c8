"""Reads one table of the file: every key once, typed, and none left over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sluice.config.findings import Findings, RefusedError, join_path, suggest
from sluice.config.interpolation import BROKEN, entry_path
from sluice.config.values import shown

T = TypeVar("T")


class Section:
    """A table of the file. After a finding, readers return a placeholder and go on.

    :param where: the path of this table, "" for the root.
    """

    def __init__(self, findings: Findings, where: str, values: dict[str, Any]) -> None:
        self._findings = findings
        self._where = where
        self._values = values
        self._known: set[str] = set()

    def refuse(self, key: str, what: str) -> None:
        """Report a finding about one key of this table."""
        self._findings.add(join_path(self._where, key), what)

    def refuse_inside(self, key: str, inner: str, what: str) -> None:
        """Report a finding about a key of a table with free keys."""
        self._findings.add(join_path(join_path(self._where, key), inner), what)

    def required(self, key: str, parse: Callable[[object], T], placeholder: T) -> T:
        """The value of a key that must be there."""
        if key not in self._values:
            self._known.add(key)
            self.refuse(key, "is missing")
            return placeholder
        return self.optional(key, parse, placeholder)

    def optional(self, key: str, parse: Callable[[object], T], default: T) -> T:
        """The value of a key, or its default."""
        self._known.add(key)
        value = self._values.get(key, BROKEN)
        if value is BROKEN:
            return default
        try:
            return parse(value)
        except RefusedError as refusal:
            self.refuse(key, str(refusal))
            return default

    def required_list(self, key: str, parse: Callable[[object], T]) -> tuple[T, ...]:
        """A list with at least one element and no element twice; () after a finding."""
        self._known.add(key)
        if key not in self._values:
            self.refuse(key, "is missing")
            return ()
        values = self._values[key]
        if values is BROKEN:
            return ()
        if not isinstance(values, list):
            self.refuse(key, f"must be a list like [{shown(values)}]")
            return ()
        if not values:
            self.refuse(key, "must not be empty")
        elements: list[T] = []
        for index, value in enumerate(values):
            where = entry_path(join_path(self._where, key), index, value)
            try:
                element = parse(value) if value is not BROKEN else None
            except RefusedError as refusal:
                self._findings.add(where, str(refusal))
                continue
            if element in elements:
                self._findings.add(where, f"{shown(value)} is named twice")
            elif element is not None:
                elements.append(element)
        return tuple(elements)

    def optional_list(self, key: str, parse: Callable[[object], T]) -> tuple[T, ...]:
        """The same; () if it is left out."""
        self._known.add(key)
        return self.required_list(key, parse) if key in self._values else ()

    def keys(self) -> list[str]:
        """All keys that are there, for tables whose keys are free."""
        self._known.update(self._values)
        return list(self._values)

    def raw(self, key: str) -> dict[str, Any]:
        """A table with free keys, as it is; empty if left out or not a table."""
        self._known.add(key)
        values = self._values.get(key, {})
        if isinstance(values, dict):
            return values
        self.refuse(key, f"must be a table, not {shown(values)}")
        return {}

    def table(self, key: str, is_required: bool = False) -> Section:
        """A table inside this one; an empty one if it is left out."""
        if is_required and key not in self._values:
            self.refuse(key, f"the section [{key}] is missing")
            self._known.add(key)
            return Section(Findings(""), "", {})
        return Section(self._findings, join_path(self._where, key), self.raw(key))

    def has(self, key: str) -> bool:
        """Whether the file has this key."""
        self._known.add(key)
        return key in self._values

    def entries(self, key: str) -> list[Section]:
        """The tables of [[key]], at least one."""
        self._known.add(key)
        values = self._values.get(key)
        if values is None or values == []:
            self.refuse(key, f"the section [[{key}]] is missing")
            return []
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self.refuse(key, f"write it with double brackets: [[{key}]]")
            return []
        return [
            Section(self._findings, entry_path(join_path(self._where, key), index, value), value)
            for index, value in enumerate(values)
        ]

    def finish(self) -> None:
        """Report the keys that nobody asked for. Call it after all were read."""
        for key in self._values:
            if key not in self._known:
                self.refuse(key, f"unknown key; {suggest(key, self._known)}")
