"""What is wrong with a configuration file: collected, and reported all at once."""

from __future__ import annotations

import re
from collections.abc import Callable

from sluice.core.errors import ConfigurationError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class RefusedError(ValueError):
    """A value cannot be used. The text says why and what would do; it holds no secret."""


class Findings:
    """Collects findings, one line each: `sluice.toml: batch.max_bytes: ...`.

    :param file: the file as the user named it; or of each key the one that it stands in.
    """

    def __init__(self, file: str | Callable[[str], str]) -> None:
        self._file = file
        self._lines: list[str] = []

    def add(self, where: str, what: str) -> None:
        """:param where: the path of the key, "" for the file as a whole."""
        file = self._file if isinstance(self._file, str) else self._file(where)
        self._lines.append(f"{file}: {where}: {what}" if where else f"{file}: {what}")

    def raise_if_any(self) -> None:
        """:raises ConfigurationError: something was found; the message has a line for each."""
        if self._lines:
            raise ConfigurationError("\n".join(self._lines)) from None


def join_path(parent: str, key: str) -> str:
    """`batch` and `max_bytes` are `batch.max_bytes`; keys with dots come in quotes."""
    shown_key = key if _BARE_KEY.fullmatch(key) else f'"{key}"'
    return f"{parent}.{shown_key}" if parent else shown_key
