"""Values that must not be printed.

A `Secret` is not a string on purpose: a subclass of `str` would slip through joins,
`json.dumps` and format strings. What needs the value asks for it with `reveal()`.
"""

from __future__ import annotations

from collections.abc import Mapping

MASK = "***"

#: A property whose name contains one of these holds a secret, or the path to one.
_SECRET_WORDS = ("password", "secret", "key", "jaas", "token", "credential", "oauthbearer.config")


class Secret:
    """A value that prints as `***`. It survives pickling, since workers need it."""

    __slots__ = ("_value",)

    def __init__(self, value: str = "") -> None:
        self._value = value

    def reveal(self) -> str:
        """The value itself. Hand it to a client, never to a message or a log line."""
        return self._value

    def __repr__(self) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __bool__(self) -> bool:
        return bool(self._value)


def is_secret_name(name: str) -> bool:
    """Whether a property of this name has to be masked, e.g. `sasl.password`."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def reveal_all(properties: Mapping[str, str | Secret]) -> dict[str, str]:
    """The properties as a client takes them, secrets in the clear."""
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in properties.items()
    }
