"""Why a message makes no row."""

from __future__ import annotations

from dataclasses import dataclass

#: Reasons: short, stable codes that dead letters carry.
NOT_ONE_OBJECT = "not-one-object"
#: A message of another number of rows than one, where `rows = "one"`.
NOT_ONE_ROW = "not-one-row"
CANNOT_PARSE = "cannot-parse"
OUT_OF_RANGE = "out-of-range"
NULL_IN_COLUMN = "null-in-column"
UNKNOWN_FIELD = "unknown-field"
#: A message without any field of the table.
NO_COLUMN = "no-column"
#: A message that names a schema which its registry does not know.
UNKNOWN_SCHEMA = "unknown-schema"
#: A column that must be there is absent or null.
REQUIRED = "required"
#: A row breaks one of the entry's checks.
CHECK_FAILED = "check-failed"
#: No table entry of the topic takes the message.
NO_ROUTE = "no-route"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a message, wherever it stands."""

    reason: str
    error: str
    column: str = ""
