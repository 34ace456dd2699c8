"""The reasons of dead letters: short, stable codes, what each means, and what a person can do.

docs/DEAD_LETTERS.md has them as a table, which `python -m sluice.core.reasons` prints.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reason:
    """
    :param means: what is so with the message; a sentence without its full stop.
    :param advice: what to do, in sentences.
    """

    means: str
    advice: str


#: What to do about a reason that this version does not know.
OTHER_ADVICE = "Fix what the error names, then replay."

#: By code.
REASONS = {
    "not-one-object": Reason(
        "it is not one whole JSON object", "The message is not one whole object: fix its producer."
    ),
    "not-one-row": Reason(
        'it has another number of rows than one, with `rows = "one"`',
        'The message does not hold exactly one row: fix its producer, or set rows = "many".',
    ),
    "cannot-parse": Reason(
        "a value, or the whole message, is not what its column or its format takes",
        "A value is not of its column's type: fix the producer, or change the column.",
    ),
    "out-of-range": Reason(
        "a value would be cut, wrapped or rounded in its column",
        "A value does not fit its column: widen the column, or set "
        'fractions = "cut" if only digits of a second are too many, then replay.',
    ),
    "null-in-column": Reason(
        "a null came for a column that takes none, or the key that is to be read is not there",
        "A null came for a column that takes none: make it Nullable, or set "
        'on_null = "default", then replay.',
    ),
    "unknown-field": Reason(
        'it has a field that the table does not, with `unknown_fields = "refuse"`',
        "The message has a field that the table does not: add the column, or set "
        'unknown_fields = "ignore", then replay.',
    ),
    "no-column": Reason(
        "it has no field of the table at all",
        "The message has no field of the table: fix the names, upper and lower case are told "
        "apart, or map them in [table.columns], then replay.",
    ),
    "required": Reason(
        "a column of `require`, or of the key of `deduplicate`, is absent or null",
        "A field that must be there is not: fix the producer, or take it out of require, then "
        "replay.",
    ),
    "check-failed": Reason(
        "a condition of `check` does not hold",
        "A check of the entry does not hold: fix the producer, or the check, then replay.",
    ),
    "unknown-schema": Reason(
        "the registry did not know its schema within `patience`",
        "The registry did not know the schema in time: register it, then replay.",
    ),
    "other-schema": Reason(
        "an SQLBatchRequest has another `schema_hashcode` than the option `schema_hash` lists",
        "The producer knows another structure of the table: list its number, or fix the producer, "
        "then replay.",
    ),
    "breaks-schema": Reason(
        "its schema in the registry does not allow it, with `validate`",
        "The message is not what its schema says: fix the producer, or set validate to false, then "
        "replay.",
    ),
    "cannot-decompress": Reason(
        "it is not compressed as `decompress` says, is damaged, or is too large",
        "The value is not compressed as the entry says: fix the producer, or decompress, then "
        "replay.",
    ),
    "no-row": Reason(
        "a change event has no row for the table: a truncation, or a deletion that no column tells",
        "The change event makes no row: for deletions read __op or __deleted into a column, then "
        "replay; for others nothing is to be done.",
    ),
    "unavailable-value": Reason(
        "a change event does not hold a value that did not change",
        "The database did not write a value that did not change: set REPLICA IDENTITY FULL in "
        "PostgreSQL. If the row is not complete, load it again from the database.",
    ),
    "no-route": Reason(
        "no entry of its topic takes it",
        "No table entry takes the message: add one, or a route, then replay.",
    ),
    "parked": Reason(
        "in the parking topic: its table takes nothing for now",
        "Nothing is wrong with the message: fix its table, then replay.",
    ),
    "duplicate": Reason(
        "in the topic of duplicates: another message has made the row of its event",
        "Another message has made the row of its event: nothing is to be done.",
    ),
}


def table() -> str:
    """All reasons as a table of Markdown."""
    lines = ["| reason | the message | what to do |", "|---|---|---|"]
    lines += [f"| `{code}` | {one.means} | {one.advice} |" for code, one in REASONS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
