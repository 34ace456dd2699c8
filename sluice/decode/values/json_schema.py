"""JSON behind the header of a schema registry, and compared with its schema where that is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from sluice.core.formats import REGISTRY_OPTION, needs_registry
from sluice.core.load_spec import TableSpec
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.messages.buffer import MessageBuffer, Value
from sluice.decode.messages.fault import BREAKS_SCHEMA, CANNOT_PARSE, Fault
from sluice.decode.messages.framing import JSON_OBJECTS
from sluice.decode.messages.members import values_of
from sluice.decode.schema.headed import Registered, UnsupportedSchemaError, required_option
from sluice.decode.schema.named import SchemaNames, registry_headers
from sluice.decode.values.steps import Step

#: So much is shown of a value that a schema does not allow.
_SHOWN_CHARACTERS = 120
#: Texts with control characters are none of JSON's, but the engine takes them.
_JSON = json.JSONDecoder(strict=False)


class RegisteredJson(Step):
    """Takes the header off. With `validate`, a message that its schema does not allow is a fault.

    :raises TerminalError: the options are not complete.
    """

    def __init__(self, table: TableSpec) -> None:
        self._names = SchemaNames(table)
        self._has_rows = table.rows == "many"
        self._compares = needs_registry(table.format, table.options)
        if self._compares:
            required_option(table, REGISTRY_OPTION)
        self._validators = Registered[Any](self._names, "JSON", self._validator)

    def values(self, buffer: MessageBuffer) -> Iterator[Value | Fault]:
        """As the port says.

        :raises UnknownSchemasError: the registry does not know a schema that is needed.
        """
        everything = np.arange(buffer.messages)
        found = self._names.found(buffer, everything, registry_headers, _nothing_behind)
        keys: list[int | None] = [None] * buffer.messages
        for each in found:
            for index in np.concatenate(each.indices).tolist():
                keys[index] = each.key
        if self._compares:
            self._names.require(found, buffer.messages)
        for key, value in zip(keys, buffer.iterate(everything), strict=True):
            if key is None:
                yield self._names.no_header
                continue
            body = value[self._names.header_bytes(key) :]
            yield (self._fault(key, body) if self._compares else None) or body

    def _fault(self, key: int, body: Value) -> Fault | None:
        """What the schema has against a message. What is no object, the format's decoder tells."""
        validator = self._validators.of(key)
        if isinstance(validator, Fault):
            return validator
        shown = self._names.shown(key)
        text = bytes(body).decode(errors="replace")
        try:
            documents = [*values_of(text, _JSON)] if self._has_rows else [_JSON.decode(text)]
        except (ValueError, RecursionError) as error:
            whole = (np.zeros(1, np.int64), np.array([len(body)]))
            if JSON_OBJECTS.faults(body, *whole).all() and not self._has_rows:
                return None
            return Fault(BREAKS_SCHEMA, f"it cannot be compared with {shown}: {error}")
        if self._has_rows and len(documents) == 1 and isinstance(documents[0], list):
            if _takes_arrays(validator):
                return _compared(validator, documents[0], shown)
            documents = documents[0]
        for number, document in enumerate(documents):
            fault = _compared(validator, document, shown)
            if fault is not None:
                return fault.in_row(number) if self._has_rows else fault
        return None

    def _validator(self, schema: RegisteredSchema, key: int) -> Any:
        try:
            return _validator_of(schema)
        except UnsupportedSchemaError as error:
            return Fault(CANNOT_PARSE, f"{self._names.shown(key)} is no JSON Schema: {error}")


def _nothing_behind(rest: bytes) -> int | None:
    return None if rest else 0


def _validator_of(schema: RegisteredSchema) -> Any:
    """
    :raises UnsupportedSchemaError: it is not a JSON Schema.
    """
    from jsonschema import SchemaError
    from jsonschema.validators import Draft7Validator, validator_for
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    try:
        own = json.loads(schema.text)
        kind = validator_for(own, default=Draft7Validator)
        kind.check_schema(own)
        # What a schema refers to stands beside it; nothing is fetched.
        others = [
            (name, Resource.from_contents(json.loads(text), default_specification=DRAFT7))
            for name, text in schema.references
        ]
    except (ValueError, RecursionError, SchemaError) as error:
        said = str(error).partition("\n")[0]
        raise UnsupportedSchemaError(said[:_SHOWN_CHARACTERS]) from error
    return kind(own, registry=Registry().with_resources(others))


def _takes_arrays(validator: Any) -> bool:
    """Whether the value that a serializer compares with a schema may be an array. If it may not, an
    array is of rows that are each such a value."""
    from referencing.exceptions import Unresolvable

    try:
        return not any(map(_is_about_type, validator.iter_errors([])))
    except (Unresolvable, RecursionError):
        return True  # comparing says what is wrong


def _is_about_type(error: Any) -> bool:
    """Whether a schema takes no value of the type of the one that it does not allow."""
    if error.validator == "type":
        return True
    branches: dict[Any, bool] = {}
    for one in error.context if error.validator in ("anyOf", "oneOf") else ():
        branch = one.schema_path[0]
        branches[branch] = branches.get(branch, False) or _is_about_type(one)
    return bool(branches) and all(branches.values())


def _compared(validator: Any, document: Any, shown: str) -> Fault | None:
    """What is wrong with a document; of several, the first one in the order of the fields."""
    from jsonschema.exceptions import best_match
    from referencing.exceptions import Unresolvable

    try:
        error = best_match(validator.iter_errors(document))
    except (Unresolvable, RecursionError, TypeError, re.error) as broken:
        return Fault(CANNOT_PARSE, f"{shown} cannot be used: {type(broken).__name__} {broken}")
    except (ArithmeticError, ValueError) as broken:
        # A number that is none, or too large for a float, is compared with a `multipleOf`.
        return Fault(BREAKS_SCHEMA, f"it cannot be compared with {shown}: {broken}")
    if error is None:
        return None
    where = error.json_path.removeprefix("$").lstrip(".")
    at = f"field {where}: " if where else ""
    words = error.message
    if len(words) > _SHOWN_CHARACTERS:
        words = f"{words[:_SHOWN_CHARACTERS]}…"
    column = where if where.isidentifier() else ""
    return Fault(BREAKS_SCHEMA, f"{at}{shown} does not allow it: {words}", column)
