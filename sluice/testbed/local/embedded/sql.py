"""What the front must know about a statement before the engine sees it. Pure text work.

ClickHouse's HTTP interface takes a statement and the data of an INSERT in one stream. The
embedded engine wants them apart: the statement as text, the data as a file. So this module
finds where a statement ends and its data begins, and rewrites the statement to read the data
from a file descriptor. The engine itself then parses the data with the target table's header,
as the server does: columns by name, defaults for absent ones, every input format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

#: The setting of the embedded engine that carries a request's query id (the engine makes its
#: own ids and takes none): visible in system.processes while the statement runs.
QUERY_ID_SETTING = "chdb_client_name"

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\n]*|\#[ !][^\n]*|/\*.*?(?:\*/|\Z))
      | (?P<string>'(?:[^'\\]|\\.|'')*'|\$(\w*)\$.*?\$\3\$)
      | (?P<quoted>`(?:[^`\\]|\\.|``)*`|"(?:[^"\\]|\\.|"")*")
      | (?P<word>[A-Za-z_0-9]+)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)

# fmt: off
_READING = frozenset((
    "SELECT", "WITH", "FROM", "VALUES", "(", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "EXISTS",
    "CHECK", "SET", "USE",
))
# fmt: on
_GIVEN_ID = f"Settings['{QUERY_ID_SETTING}']"
_ENGINE_QUERY_ID = f"if({_GIVEN_ID} = '', query_id, {_GIVEN_ID})"
_PROCESSES = f"(SELECT * REPLACE ({_ENGINE_QUERY_ID} AS query_id) FROM system.processes)"


@dataclass(frozen=True, slots=True)
class Token:
    """A token with its place in the text; `kind` is string, quoted, word or other."""

    kind: str
    text: str
    begin: int
    end: int

    def says(self, *words: str) -> bool:
        """True for an unquoted word (or sign) equal to one of these, whatever its case."""
        return self.kind in ("word", "other") and self.text.upper() in words


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT that brings data along.

    :param head: the text before the data clause, e.g. "INSERT INTO t (a, b)".
    :param settings: its own SETTINGS clause, "" without one.
    :param format: the data's format.
    :param data_begin: where in the text the data begins (characters).
    :param reads_input: it is INSERT … SELECT … FROM input(…); `head` is all of it.
    """

    head: str
    settings: str
    format: str
    data_begin: int
    reads_input: bool = False

    def reading(self, path: str, compression: str) -> str:
        """The statement that reads its data from the file `path` (`compression` "" for none)."""
        if self.reads_input:
            return _input_as_file(self.head, path, self.format, compression)
        packed = f" COMPRESSION '{compression}'" if compression else ""
        return f"{self.head} FROM INFILE '{path}'{packed} {self.settings} FORMAT {self.format}"


def tokens(text: str, begin: int = 0) -> Iterator[Token]:
    """Tokens of a statement, without spaces and comments; lazy, so data is not touched."""
    for match in _TOKEN.finditer(text, begin):
        kind = match.lastgroup
        if kind is not None and kind != "space":
            yield Token(kind, match.group(), match.start(), match.end())


def first_word(text: str) -> str:
    """The statement's first word in capitals, "" if it has none."""
    return next((token.text.upper() for token in tokens(text)), "")


def only_reads(text: str) -> bool:
    """True if the statement may come by GET, which ClickHouse treats as read-only."""
    return first_word(text) in _READING


def parse_insert(text: str) -> Insert | None:
    """Split an INSERT from its data; None if this is no INSERT with data.

    :param text: the statement, followed by data or not; bytes decoded as latin-1 or UTF-8.
    """
    stream = tokens(text)
    if not (first := next(stream, None)) or not first.says("INSERT"):
        return None
    depth = 0
    clause_begin = settings_begin = 0  # where the table's columns end; its SETTINGS clause
    for token in stream:
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        elif depth == 1 and token.says("SELECT") and not settings_begin:
            return _parse_insert_select(text, token.begin)
        elif depth:
            continue
        elif token.says("SETTINGS"):
            settings_begin = clause_begin = token.begin
        elif token.says("SELECT", "WITH"):
            return _parse_insert_select(text, token.begin)
        elif token.text == ";" or (token.says("FROM") and not clause_begin):
            return None  # FROM INFILE, or a statement without data
        elif token.says("VALUES", "FORMAT"):
            head = text[: clause_begin or token.begin].rstrip()
            settings = text[settings_begin : token.begin] if settings_begin else ""
            if token.says("VALUES"):
                return Insert(head, settings, "Values", token.end)
            name = next(stream, None)
            if name is None:
                return None
            return Insert(head, settings, name.text, _data_begin(text, name.end))
    return None


def output_format(text: str) -> str:
    """The format named by a trailing FORMAT clause, "" if there is none."""
    depth, previous, found = 0, None, ""
    for token in tokens(text):
        if token.text in ("(", "[", "{"):
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
        elif previous is not None and previous.says("FORMAT") and depth == 0:
            found = token.text if token.kind == "word" else ""
        previous = token
    return found


def has_several_statements(text: str) -> bool:
    """True if anything follows a semicolon; the HTTP interface takes one statement."""
    ended = False
    for token in tokens(text):
        if token.text != ";" and ended:
            return True
        ended = ended or token.text == ";"
    return False


def show_query_ids(text: str) -> str:
    """Let system.processes and KILL QUERY speak of the ids that clients gave.

    The engine gives every query an id of its own; the client's id travels in a setting.
    """
    if "processes" not in text and "query_id" not in text:
        return text
    found = list(tokens(text))
    if found and found[0].says("KILL"):
        places = [(t.begin, t.end, _ENGINE_QUERY_ID) for t in found if t.text == "query_id"]
    else:
        places = [
            (a.begin, c.end, _PROCESSES)
            for a, b, c in zip(found, found[1:], found[2:], strict=False)
            if (a.text, b.text, c.text) == ("system", ".", "processes")
        ]
    for begin, end, replacement in reversed(places):
        text = text[:begin] + replacement + text[end:]
    return text


def _data_begin(text: str, after_format: int) -> int:
    """Data starts after the spaces that follow the format's name and one line end."""
    match = re.compile(r"[ \t\f]*\r?\n?").match(text, after_format)
    return match.end() if match else after_format


def _parse_insert_select(text: str, begin: int) -> Insert | None:
    """INSERT … SELECT carries data only where it reads input(…)."""
    previous: Token | None = None
    reads_input = False
    for token in tokens(text, begin):
        if previous is not None:
            reads_input = reads_input or (previous.says("INPUT") and token.text == "(")
            if reads_input and previous.says("FORMAT") and token.kind == "word":
                head = text[: previous.begin]
                return Insert(head, "", token.text, _data_begin(text, token.end), True)
        previous = token
    return None


def _input_as_file(text: str, path: str, data_format: str, compression: str) -> str:
    """Replace input('structure') by file('path', format, 'structure')."""
    found = list(tokens(text))
    for name, opening, structure in zip(found, found[1:], found[2:], strict=False):
        if name.says("INPUT") and opening.text == "(" and structure.kind == "string":
            packed = f", '{compression}'" if compression else ""
            call = f"file('{path}', {data_format}, {structure.text}{packed}"
            return text[: name.begin] + call + text[structure.end :]
    return text
