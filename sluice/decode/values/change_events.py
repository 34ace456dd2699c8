"""Envelopes of Debezium and Kafka Connect around JSON: the row inside is the message."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from sluice.core.load_spec import TableSpec
from sluice.decode.messages.buffer import Value
from sluice.decode.messages.events import (
    ADDED,
    DELETED,
    OPERATION,
    SOURCE,
    TIME_MS,
    UNAVAILABLE,
    no_row,
    tells_deletes,
    unavailable,
)
from sluice.decode.messages.fault import CANNOT_PARSE, Fault
from sluice.decode.messages.framing import JSON_OBJECTS
from sluice.decode.messages.members import Member, members_of, object_of
from sluice.decode.values.connect_types import Rewrite, rewrites, rewritten
from sluice.decode.values.steps import ValueStep

#: Schemas of messages are the same for thousands of them.
_SCHEMAS_MAX = 256


class _Unwrapping(ValueStep):
    """What Connect's converter of JSON may put around: a schema and a payload."""

    def __init__(self, table: TableSpec) -> None:
        self.types = {column.name: column.type for column in table.columns}
        self._rewrites: dict[tuple[str, str], dict[str, Rewrite]] = {}

    def following(self, value: Value) -> Value | Fault:
        """As the port says."""
        try:
            found = self.row(members_of(value.decode("latin-1")))
        except ValueError as error:
            found = JSON_OBJECTS.explain(value)
            if found.error.endswith("is not one JSON object"):
                found = Fault(found.reason, f"{found.error}: {error}")
        except RefusedEventError as error:
            found = error.fault
        return value if found is None else found

    @abstractmethod
    def row(self, members: dict[str, Member]) -> Value | Fault | None:
        """Of an object; None: it is the row itself.

        :raises ValueError, RefusedEventError: it has none.
        """

    def payload(self, members: dict[str, Member]) -> tuple[dict[str, Member], str]:
        """What the schema is about, and the schema; without one, all there is, and ""."""
        if members.keys() != {"schema", "payload"}:
            return members, ""
        payload = members["payload"]
        if payload.is_null:
            raise RefusedEventError(no_row("its payload is null"))
        if not payload.is_object:
            raise RefusedEventError(Fault(CANNOT_PARSE, "its payload is no object"))
        return members_of(payload.value), members["schema"].value

    def written(self, members: list[Member], schema: str, inside: str) -> str:
        """The row of these members.

        :param inside: of the schema, the field whose schema is theirs; "": its own.
        """
        if schema in ("", "null"):
            return object_of(members)
        key = (schema, inside)
        if key not in self._rewrites:
            if len(self._rewrites) >= _SCHEMAS_MAX:
                self._rewrites.clear()
            self._rewrites[key] = rewrites(_fields(schema, inside), self.types)
        named = self._rewrites[key]
        if not named:
            return object_of(members)
        return object_of([rewritten(one, named.get) for one in members])


class RefusedEventError(Exception):
    """An event makes no row."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.error)
        self.fault = fault


class ConnectJson(_Unwrapping):
    """`{"schema": …, "payload": …}` is its payload; any other object is what it is."""

    def row(self, members: dict[str, Member]) -> Value | Fault | None:
        """As the base says."""
        payload, schema = self.payload(members)
        if payload is members:
            return None
        return self.written(list(payload.values()), schema, "").encode("latin-1")


class DebeziumJson(_Unwrapping):
    """A change event is the row after it; of a deleted row, the row before it."""

    def __init__(self, table: TableSpec) -> None:
        super().__init__(table)
        self._added = [name for name in ADDED if name in self.types]
        self._tells_deletes = tells_deletes(table)

    def row(self, members: dict[str, Member]) -> Value | Fault | None:
        """As the base says."""
        event, schema = self.payload(members)
        operation = event.get("op")
        if operation is None or not operation.value.startswith('"'):
            return Fault(CANNOT_PARSE, "the message is no change event of Debezium: it has no op")
        op = str(json.loads(operation.value))
        if op not in ("c", "r", "u", "d"):
            return no_row(f'its op is "{op[:20]}"')
        is_deleted, side = op == "d", "before" if op == "d" else "after"
        if is_deleted and not self._tells_deletes:
            return no_row("it says that a row was deleted, which no column of the entry tells")
        row = event.get(side)
        if row is None or row.is_null:
            return no_row(f'its op is "{op}", and {side} is null')
        if not row.is_object:
            return Fault(CANNOT_PARSE, f"its field {side} is no object")
        fields = members_of(row.value)
        if UNAVAILABLE in row.value:
            for name, one in fields.items():
                if one.value == f'"{UNAVAILABLE}"' and name in self.types:
                    return unavailable(name)
        kept = list(fields.values())
        if is_deleted:
            # What the log does not keep of a deleted row is null there.
            kept = [one for one in kept if not one.is_null]
        kept += self._of_event(event, operation, is_deleted)
        return self.written(kept, schema, side).encode("latin-1")

    def _of_event(
        self, event: dict[str, Member], operation: Member, is_deleted: bool
    ) -> Iterator[Member]:
        """What columns ask of the event itself."""
        told = {
            OPERATION: operation,
            DELETED: Member("", "true" if is_deleted else "false"),
            TIME_MS: event.get("ts_ms"),
            SOURCE: event.get("source"),
        }
        for name in self._added:
            member = told[name]
            if member is not None:
                yield Member(f'"{name}"', member.value)


def _fields(schema: str, inside: str) -> Any:
    """The fields of a schema, or of one of its fields."""
    try:
        fields = json.loads(schema.encode("latin-1")).get("fields")
    except (ValueError, AttributeError, RecursionError):
        return None
    if not inside:
        return fields
    for one in fields if isinstance(fields, list) else ():
        if isinstance(one, dict) and one.get("field") == inside:
            return one.get("fields")
    return None
