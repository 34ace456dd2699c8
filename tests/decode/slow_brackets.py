"""The rules of brackets.c in Python, to compare with."""

from __future__ import annotations

import re

from sluice.decode.messages.brackets import ARRAYS, JSON_WHITESPACE, OBJECTS

#: A string, two signs, whitespace, a bracket, colon or comma, other text, a sign. No backslash, and
#: no newline in a string.
_TOKEN = re.compile(
    rb'"[^"\\\n]*(?:\\[^\n][^"\\\n]*)*"|[-+]{2}|[ \t\r\n]+|[{}\[\],:]'
    rb'|[^"\\{}\[\],: \t\r\n+-]+|[-+]'
)


def is_one_row(value: bytes, kind: bytes) -> bool:
    """Whether a message has the structure of one row, looked at one symbol after the other.

    :param kind: OBJECTS or ARRAYS, what a row is.
    """
    text = value.strip(JSON_WHITESPACE)
    if not text.startswith(kind[:1]):
        return False
    opened: list[bytes] = []
    at, before = 0, b""
    while found := _TOKEN.match(text, at):
        at, symbol = found.end(), found[0]
        if symbol[0] in JSON_WHITESPACE:
            continue
        if symbol in _CLOSES and _misses(before, symbol, opened):
            return False
        if kind == ARRAYS:
            # The engine reads a number of two signs, but only near the end of its file.
            is_empty = symbol == b"]" and before == b"[" and len(opened) == 1
            if is_empty or symbol in _TWO_SIGNS:
                return False
        before = symbol
        if symbol in (b"{", b"["):
            opened.append(symbol)
        elif symbol in (b"}", b"]"):
            if opened.pop() + symbol not in (OBJECTS, ARRAYS):
                return False
            if not opened:
                return at == len(text)
    return False


_CLOSES = (b",", b"}", b"]")
_TWO_SIGNS = (b"--", b"-+", b"+-", b"++")


def _misses(before: bytes, symbol: bytes, opened: list[bytes]) -> bool:
    """Whether a value is missing behind a colon or in an array. In other places where one is, the
    engine finds it."""
    if before == b":":
        return True
    if before == b"," and opened[-1] == b"[":
        return True
    return before == b"[" and symbol == b","
