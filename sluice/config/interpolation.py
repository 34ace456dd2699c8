"""`${NAME}` in strings of the configuration file is replaced from the environment.

`$${` stands for a literal `${`. The text as written stays attached to the value, so that
a message quotes the file and never what the environment holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sluice.config.findings import Findings, RefusedError, join_path
from sluice.core.tokens import NAME

_REFERENCE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

#: Takes the place of a value that could not be resolved; its finding was reported.
BROKEN = object()


class ResolvedText(str):
    """A string whose variables are replaced.

    :ivar written: the text as it stands in the file.
    """

    __slots__ = ("written",)

    written: str

    def __new__(cls, value: str, written: str) -> ResolvedText:
        text = super().__new__(cls, value)
        text.written = written
        return text

    @property
    def is_from_environment(self) -> bool:
        """Whether a variable took part, so that the value may be a secret."""
        return any(match[1] is not None for match in _REFERENCE.finditer(self.written))


def interpolate(written: str, environment: Mapping[str, str]) -> ResolvedText:
    """Replace the variables of one string.

    :raises RefusedError: a variable is not set, or a reference is malformed.
    """

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name = match[1]
        if name is None or not _VARIABLE.fullmatch(name):
            raise RefusedError(
                '"${" begins a variable like ${NAME}; write "$${" for the characters'
            )
        if name not in environment:
            raise RefusedError(f"the environment variable {name} is not set")
        return environment[name]

    return ResolvedText(_REFERENCE.sub(replace, written), written)


def interpolate_tree(
    value: Any, environment: Mapping[str, str], findings: Findings, where: str = ""
) -> Any:
    """The same tree with every string resolved; what fails becomes `BROKEN` and a finding."""
    if isinstance(value, str):
        try:
            return interpolate(value, environment)
        except RefusedError as refusal:
            findings.add(where, str(refusal))
            return BROKEN
    if isinstance(value, dict):
        return {
            key: interpolate_tree(item, environment, findings, join_path(where, key))
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            interpolate_tree(item, environment, findings, entry_path(where, index, item))
            for index, item in enumerate(value)
        ]
    return value


def entry_path(where: str, index: int, entry: object) -> str:
    """`connector[dc1]` for an entry with a name, else `connector[2]`, counted from 1."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if isinstance(name, str) and NAME.fullmatch(name):
        return f"{where}[{name}]"
    return f"{where}[{index + 1}]"
