"""The statement of an envelope: which columns its values are for.

`INSERT INTO t (a, b) VALUES (?, ?)`, or without columns: then the values are those of the first
columns of the table. Which table the statement names does not matter; routes decide that.
"""

from __future__ import annotations

import re
from collections import Counter

from sluice.decode.messages.fault import CANNOT_PARSE, UNKNOWN_FIELD, Fault

_NAME = r"(?:`(?:[^`\\]|\\.|``)+`|\"(?:[^\"\\]|\\.|\"\")+\"|[^\W\d]\w*)"
_STATEMENT = re.compile(
    rf"\s*INSERT\s+INTO\s+(?:TABLE\s+)?{_NAME}(?:\s*\.\s*{_NAME})?\s*"
    rf"(?:\((?P<columns>\s*{_NAME}(?:\s*,\s*{_NAME})*\s*)\)\s*)?"
    r"VALUES\s*\((?P<marks>\s*\?(?:\s*,\s*\?)*\s*)\)\s*;?\s*",
    re.IGNORECASE,
)
_COLUMN = re.compile(_NAME)
#: Longer statements are refused before anything is searched in them.
_STATEMENT_BYTES_MAX = 1 << 20


def read_statement(sql: bytes, positional: tuple[str, ...]) -> tuple[str, ...] | Fault:
    """The columns of the values, in their order, or why there are none.

    :param positional: the columns that a statement without columns fills.
    """
    try:
        text = sql.decode()
    except UnicodeDecodeError:
        return _refused(sql)
    match = None if len(sql) > _STATEMENT_BYTES_MAX else _STATEMENT.fullmatch(text)
    if match is None:
        return _refused(sql)
    marks = match["marks"].count("?")
    if match["columns"] is None:
        if marks > len(positional):
            said = f"{marks} values for the {len(positional)} columns that can be inserted"
            return Fault(UNKNOWN_FIELD, f"the table has fewer columns: {said}")
        return positional[:marks]
    columns = tuple(_unquoted(name) for name in _COLUMN.findall(match["columns"]))
    if len(columns) != marks:
        return Fault(CANNOT_PARSE, f"{len(columns)} columns but {marks} ? in the statement")
    if len(set(columns)) != len(columns):
        twice = Counter(columns).most_common(1)[0][0]
        return Fault(CANNOT_PARSE, f"column {twice} is there twice", twice)
    return columns


def _unquoted(name: str) -> str:
    quote = name[0]
    if quote not in '`"':
        return name
    return re.sub(r"\\(.)", r"\1", name[1:-1].replace(quote * 2, quote))


def _refused(sql: bytes) -> Fault:
    shown = sql[:200].decode(errors="replace")
    said = f"the statement is not INSERT INTO table (columns) VALUES (?, …): {shown!r}"
    return Fault(CANNOT_PARSE, said)
