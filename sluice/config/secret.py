"""Values that must not be printed.

A `Secret` is not a string on purpose: a subclass of `str` would slip through joins,
`json.dumps` and format strings. What needs the value asks for it with `reveal()`.
"""

from __future__ import annotations

from collections.abc import Mapping

from sluice.machine.secret_source import SecretSource

MASK = "***"

#: A property whose name contains one of these holds a secret, or the path to one.
_SECRET_WORDS = ("password", "secret", "key", "jaas", "token", "credential", "oauthbearer.config")


class Secret:
    """A value that prints as `***`. It survives pickling, since workers need it.

    :param value: itself, or where it is read from when it is needed.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str | SecretSource = "") -> None:
        self._value = value

    @property
    def source(self) -> SecretSource | None:
        """Where it is read from; None: the configuration holds it."""
        return self._value if isinstance(self._value, SecretSource) else None

    def reveal(self) -> str:
        """The value itself. Hand it to a client, never to a message or a log line.

        :raises ConfigurationError: its source does not give it.
        """
        return self._value.latest() if isinstance(self._value, SecretSource) else self._value

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


def known_of(properties: Mapping[str, str | Secret]) -> dict[str, str]:
    """The same, with the mask for what would have to be read from a file or a command."""
    known = {
        name: MASK if isinstance(value, Secret) and value.source else value
        for name, value in properties.items()
    }
    return reveal_all(known)


def reveal_all(properties: Mapping[str, str | Secret]) -> dict[str, str]:
    """The properties as a client takes them, secrets in the clear.

    :raises ConfigurationError: a secret cannot be had.
    """
    return {
        name: value.reveal() if isinstance(value, Secret) else value
        for name, value in properties.items()
    }
