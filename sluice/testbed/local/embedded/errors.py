"""The engine's error codes as the HTTP interface of ClickHouse reports them."""

from __future__ import annotations

import re
from http import HTTPStatus

NOT_IMPLEMENTED = 48
SYNTAX_ERROR = 62
READONLY = 164
TOO_MANY_SIMULTANEOUS_QUERIES = 202
SESSION_NOT_FOUND = 372
SESSION_IS_LOCKED = 373
UNKNOWN_EXCEPTION = 1002

_STATUS_BY_CODE: dict[int, HTTPStatus] = {
    194: HTTPStatus.UNAUTHORIZED,
    **dict.fromkeys((192, 193, 497, 512, 516), HTTPStatus.FORBIDDEN),
    # what cannot be parsed or understood
    **dict.fromkeys(
        (6, 8, 15, 16, 25, 26, 27, 38, 41, 43, 44, 53, 62, 69, 70, 72, 117, 190, 376, 386, 457),
        HTTPStatus.BAD_REQUEST,
    ),
    # what is not there
    **dict.fromkeys(
        (46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 336, 372, 511),
        HTTPStatus.NOT_FOUND,
    ),
    48: HTTPStatus.NOT_IMPLEMENTED,
    159: HTTPStatus.REQUEST_TIMEOUT,
    223: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    381: HTTPStatus.LENGTH_REQUIRED,
    202: HTTPStatus.SERVICE_UNAVAILABLE,
    209: HTTPStatus.SERVICE_UNAVAILABLE,
    439: HTTPStatus.SERVICE_UNAVAILABLE,
}

_CODE = re.compile(r"Code: (\d+)\. ")
_REPEATED_PREFIX = re.compile(r"^(Code: \d+\. DB::Exception: )(?:Code: \d+\. DB::Exception: )+")
_REPEATED_SUFFIX = re.compile(r"( \([A-Z0-9_]+\))(?: \(version [^)]*\)\.?(?: \([A-Z0-9_]+\))?)+$")


class QueryError(Exception):
    """A request that failed, with the code and the text that ClickHouse has for it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text

    @property
    def status(self) -> HTTPStatus:
        """The HTTP status that a ClickHouse server answers for this code."""
        return _STATUS_BY_CODE.get(self.code, HTTPStatus.INTERNAL_SERVER_ERROR)


def refused(code: int, name: str, message: str) -> QueryError:
    """An error of the front itself, worded like the engine's."""
    return QueryError(code, f"Code: {code}. DB::Exception: {message}. ({name})")


def from_engine(error: BaseException) -> QueryError:
    """Translate what the engine raised. Its wrapped errors repeat themselves; once is enough."""
    text = _REPEATED_PREFIX.sub(r"\1", str(error).strip())
    text = _REPEATED_SUFFIX.sub(r"\1", text)
    match = _CODE.match(text)
    if match is None:
        return QueryError(
            UNKNOWN_EXCEPTION,
            f"Code: {UNKNOWN_EXCEPTION}. DB::Exception: {text}. (UNKNOWN_EXCEPTION)",
        )
    return QueryError(int(match.group(1)), text)
