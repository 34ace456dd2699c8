"""Why a message makes no row."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from sluice.decode.engine.pair import MISMATCH, NULL, RANGE

#: Reasons that dead letters carry; `sluice.core.dead_letters.REASONS` says what each means.
NOT_ONE_OBJECT = "not-one-object"
NOT_ONE_ROW = "not-one-row"
CANNOT_PARSE = "cannot-parse"
OUT_OF_RANGE = "out-of-range"
NULL_IN_COLUMN = "null-in-column"
UNKNOWN_FIELD = "unknown-field"
NO_COLUMN = "no-column"
UNKNOWN_SCHEMA = "unknown-schema"
OTHER_SCHEMA = "other-schema"
NO_ROW = "no-row"
UNAVAILABLE_VALUE = "unavailable-value"
CANNOT_DECOMPRESS = "cannot-decompress"
BREAKS_SCHEMA = "breaks-schema"
REQUIRED = "required"
CHECK_FAILED = "check-failed"
NO_ROUTE = "no-route"

#: By the kind of a value's fault, see `Conversion.fault`.
REASONS = {NULL: NULL_IN_COLUMN, RANGE: OUT_OF_RANGE, MISMATCH: CANNOT_PARSE}
#: Numbers that are no seconds since 1970 which anybody means, but parts of one.
_PARTS = re.compile(r'"?[0-9]{12,19}"?')
#: So much is said of a fault; what goes on is cut off.
_ERROR_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a message, wherever it stands.

    :param error: words for people, however many; 300 characters are kept.
    """

    reason: str
    error: str
    column: str = ""

    def __post_init__(self) -> None:
        if len(self.error) > _ERROR_CHARACTERS_MAX:
            object.__setattr__(self, "error", self.error[:_ERROR_CHARACTERS_MAX])

    def in_row(self, number: int) -> Fault:
        """The fault of a message that may have several rows, of which this one is at fault."""
        return replace(self, error=f"row {number}: {self.error}")


def refused_value(reason: str, shown: str, column: str, type_text: str, why: str = "") -> Fault:
    """Of a value that its column does not take.

    :param reason: NULL_IN_COLUMN, OUT_OF_RANGE or CANNOT_PARSE.
    :param shown: the value, for people.
    :param why: more words, if there are any.
    """
    if reason == OUT_OF_RANGE and not why and "Date" in type_text and _PARTS.fullmatch(shown):
        why = 'are these parts of a second? timestamps = "ms", "us" or "ns" says so'
    verb = "does not fit" if reason == OUT_OF_RANGE else "cannot be read as"
    said = "null in" if reason == NULL_IN_COLUMN else f"{shown} {verb}"
    because = f": {why}" if why else ""
    return Fault(reason, f"{said} column {column} {type_text}{because}", column)


def absent(column: str) -> Fault:
    """Of a message without a column that is required."""
    return Fault(REQUIRED, f"{column} is required, and absent or null", column)


def no_json(error: Exception) -> Fault:
    """Of a message that Python does not read as JSON."""
    why = "it is nested too deeply" if isinstance(error, RecursionError) else error
    return Fault(CANNOT_PARSE, f"the message is not JSON: {why}")


def refused_by_engine(error: Exception) -> Fault:
    """Of a message that the engine refuses without saying a column."""
    reason = OUT_OF_RANGE if getattr(error, "code", 0) in _RANGE_CODES else CANNOT_PARSE
    return Fault(reason, f"the message cannot be read: {engine_words(error)}")


def engine_words(error: Exception) -> str:
    """What the engine says of data, without what only says where in it."""
    words = re.sub(r"(Code: \d+\. )?DB::Exception: ", "", str(error))
    return " ".join(_NOISE.sub("", " ".join(words.split())).split())


#: The engine's codes of values that do not fit.
_RANGE_CODES = frozenset((69, 70, 321, 395, 407, 691))
_NOISE = re.compile(
    r"\s*: \(at row \d+\)|\s*: \(in file/uri [^)]*\)|: [Ww]hile executing .*|: In scope .*"
    r"|unhex\('[0-9a-f]*'?\)?|\.? \([A-Z]+_[A-Z_]+\)|\(version [^)]*\)|/proc/self/fd/\d+"
    r"|The table structure cannot be extracted from an? \w+ format file\. Error: "
    r"|std::exception\. Code: \d+, type: [\w:]+, e\.what\(\) = "
    r"| *\(\w+\) *\. You can specify the structure manually.*|\. You can specify the str.*",
    re.DOTALL,
)
