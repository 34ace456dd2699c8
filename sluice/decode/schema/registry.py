"""Schemas by number, from a schema registry.

This package does not speak to registries: whoever decodes says with `provide` how each is
reached (sluice.kafka.registry does it, with credentials that no text holds). A number means
one schema for ever, so an answer is kept as long as the process lives, and a replay finds
the same schema on any worker.

That a number means nothing is not for ever: a follower of the registry may be behind, and a
schema may be deleted. So it decides no row. Either the text says which numbers there are, or a
message that names another one makes its range refused (`UnknownSchemasError`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol

from sluice.core.errors import TerminalError, TransientError
from sluice.core.receipts import UnknownSchemas
from sluice.core.schema_ids import RegisteredSchema, shown_schema

#: So many unknown schemas of a range are asked for. Where bytes that are no header are taken for
#: one, each message names another number, and each answer takes a while.
ASKED_MAX = 64


class UnknownSchemasError(TransientError):
    """Messages name schemas that the registry does not know, and the text does not speak of."""

    hint = (
        "Register the schemas, or look whether the messages are another format's; what the "
        "registry does not know for the time of [registry] patience becomes dead letters."
    )

    def __init__(self, found: UnknownSchemas) -> None:
        super().__init__(f"the registry does not know schema {shown_schema(found.numbers[0])}")
        self.found = found


class SchemaSource(Protocol):
    """A registry."""

    def schema(self, number: int) -> RegisteredSchema | None:
        """The schema of this number; None if the registry says that there is none, or that what it
        refers to is not there.

        :param number: or what stands for a GUID (`sluice.core.schema_ids`).
        :raises TransientError: the registry does not answer.
        :raises TerminalError: it refuses to.
        """
        ...


class KeptSource:
    """Asks a source once for each schema that it has. Used from any thread."""

    def __init__(self, source: SchemaSource) -> None:
        self._source = source
        self._known: dict[int, RegisteredSchema] = {}

    def is_kept(self, number: int) -> bool:
        """Whether nobody has to be asked for it."""
        return number in self._known

    def schema(self, number: int) -> RegisteredSchema | None:
        """As the source. That there is no such schema is asked for again."""
        found = self._known.get(number)
        if found is None:
            found = self._source.schema(number)
            if found is not None:
                self._known[number] = found
        return found


_sources: dict[str, KeptSource] = {}
_lock = threading.Lock()


def provide(url: str, source: SchemaSource) -> None:
    """From now on the registry of this URL is asked through this source, in this process.

    What is known of its schemas stays known.
    """
    with _lock:
        kept = _sources.setdefault(url, KeptSource(source))
        kept._source = source


def registry_of(url: str) -> KeptSource:
    """The registry of this URL.

    :raises TerminalError: nobody said how it is reached.
    """
    source = _sources.get(url)
    if source is None:
        raise TerminalError(
            f"nothing is known about the schema registry {url}",
            "This is a fault of the caller: it has to provide the registry before decoding.",
        )
    return source


def require_known(url: str, named: Mapping[int, int], of: int) -> None:
    """Ask a registry for all schemas that messages name, those that most of them name first.

    :param named: how many messages name each number.
    :param of: how many messages there are.
    :raises UnknownSchemasError: it does not know all of them.
    """
    source = registry_of(url)
    unknown: list[int] = []
    known: list[int] = []
    for number in sorted(named, key=lambda number: (-named[number], number)):
        if source.is_kept(number):
            known.append(number)
        elif len(unknown) < ASKED_MAX:
            (unknown if source.schema(number) is None else known).append(number)
    if unknown:
        messages = sum(named.values()) - sum(named[number] for number in known)
        found = UnknownSchemas(tuple(unknown), tuple(sorted(known)), messages, of)
        raise UnknownSchemasError(found)
