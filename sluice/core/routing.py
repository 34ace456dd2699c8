"""Which table entries a message is for. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sluice.core.dead_letters import TABLE_HEADER
from sluice.core.load_spec import Route

#: Names of the header that says the table, unless the route names another.
TABLE_HEADERS = ("table", "__table_name")

Headers = Sequence[tuple[str, bytes | None]]
#: A message's key, headers and timestamp in milliseconds, if it has one.
Seen = tuple[bytes | None, Headers, int | None]


@dataclass(frozen=True, slots=True)
class Looked:
    """What decides where a message goes. `decode.routing.Routes` reads it.

    :param only: the one entry that it is for, if it says so.
    :param envelope: the table that its value names; None if no route asks, or it names none.
    """

    only: str | None
    key: bytes
    headers: Headers
    envelope: bytes | None


def looked(key: bytes | None, headers: Headers, envelope: bytes | None) -> Looked:
    """The facts of a message. The first header of a name counts."""
    only = next((content for name, content in headers if name == TABLE_HEADER), None)
    # A dead letter of no entry has an empty name: it is routed anew.
    return Looked(only.decode(errors="replace") if only else None, key or b"", headers, envelope)


def takes(entries: Collection[str], route: Route | None, message: Looked) -> bool:
    """Whether one of these entries, which have this route, takes a message."""
    if message.only is not None:
        return message.only in entries
    return matches(route, message)


def matches(route: Route | None, message: Looked) -> bool:
    """Whether a message that is for no one entry takes this route."""
    if route is None:
        return True
    value = route.value.encode()
    match route.by:
        case "key-prefix":
            return message.key.startswith(value)
        case "envelope":
            return message.envelope == value
        case _:
            names = (route.name,) if route.name else TABLE_HEADERS
            said = (content for name, content in message.headers if name in names)
            return next(said, None) == value
