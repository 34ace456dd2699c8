"""What format the messages of a sample are in, as far as their bytes tell; pure."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Envelope
from sluice.decode.messages.framing import begins_like

#: A format is recognised if so many of the messages are in it; the others are told of.
SHARE = 0.8
#: Messages of several rows are the rule, and no accident, from this share on.
_MANY_SHARE = 0.01
_DELIMITERS = ("\t", ",", ";", "|")
_SHOWN_BYTES = 24
_LINE_CHARACTERS_MAX = 60
#: What the first line of a message of CSV or TSV has; "": the sample is to tell.
FirstLine = Literal["", "names", "values"]
_NUMBER = re.compile(r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?")

#: First bytes of whole files, which may be messages.
_FILES = {
    b"Obj\x01": "Avro",
    b"PAR1": "Parquet",
    b"ORC": "ORC",
    b"ARROW1": "Arrow",
}
_JSON_SPACE = " \t\r\n"
_BY_HAND = "Write the configuration by hand: `sluice init` gives an example"


@dataclass(frozen=True, slots=True)
class Recognised:
    """A format, and the rows that were read.

    :param format: as the configuration calls it.
    :param records: rows by field, where the format is JSON; values as Python reads them.
    :param lines: rows by position, where the format is text.
    :param names: of the fields by position.
    :param unreadable: messages in no format, or in another one.
    :param envelope: what the rows were taken out of.
    :param on_null: of the table entry.
    :param remark: what was assumed, for people; "" for nothing.
    """

    format: str
    rows: Literal["one", "many"] = "one"
    options: dict[str, str] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    lines: list[list[Any]] = field(default_factory=list)
    names: tuple[str, ...] = ()
    unreadable: int = 0
    envelope: Envelope = ""
    on_null: Literal["dead-letter", "default"] = "dead-letter"
    remark: str = ""


def recognise(topic: str, values: Sequence[bytes], first_line: FirstLine = "") -> Recognised:
    """The format that most of the messages are in.

    :param first_line: as the user says it.
    :raises TerminalError: none is recognised; says what was seen. Or the first line of the only
        message may have names or values.
    """
    found = _json(topic, values) or _file(topic, values) or _delimited(topic, values, first_line)
    if found is not None:
        return found
    like, count = Counter(map(begins_like, values)).most_common(1)[0]
    if like and _enough(count, values):
        raise TerminalError(
            f"the format of topic {topic} is not recognised: {count} of {len(values)} messages "
            f"begin like {like}",
            f"{_BY_HAND}, and that is to be set there.",
        )
    raise TerminalError(
        f"the format of topic {topic} is not recognised: {seen(values)}",
        "Protobuf, MsgPack, RowBinary and Avro without a header cannot be told by their bytes. "
        f"{_BY_HAND}, and `format` with [table.options] names the format.",
    )


def seen(values: Sequence[bytes]) -> str:
    """What stands in the messages, in a sentence."""
    texts = sum(_text(value) is not None for value in values)
    sizes = sorted(map(len, values))
    first = values[0][:_SHOWN_BYTES]
    text = _text(first)
    shown = json.dumps(text) if text is not None and text.isprintable() else first.hex(" ")
    return (
        f"of {len(values)} messages of {sizes[0]} to {sizes[-1]} bytes, {texts} are UTF-8 text; "
        f"the first begins with {shown}"
    )


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _enough(part: int, values: Sequence[bytes]) -> bool:
    return part >= SHARE * len(values) and part > 0


def _json(topic: str, values: Sequence[bytes]) -> Recognised | None:
    """Objects, several of them, arrays of them; or arrays of values."""
    records: list[dict[str, Any]] = []
    lines: list[list[Any]] = []
    objects = several = positional = 0
    for value in values:
        documents = _documents(value)
        if documents is None:
            continue
        if len(documents) == 1 and isinstance(documents[0], list):
            items = documents[0]
            if items and not any(isinstance(item, dict) for item in items):
                positional += 1
                lines.append(items)
                continue
            documents = items
            several += 1
        elif len(documents) > 1:
            several += 1
        if all(isinstance(document, dict) for document in documents):
            objects += 1
            records += documents
    if _enough(objects, values):
        rows: Literal["one", "many"] = "many" if several > _MANY_SHARE * len(values) else "one"
        unreadable = len(values) - objects + (several if rows == "one" else 0)
        return Recognised("JSONEachRow", rows, records=records, unreadable=unreadable)
    if _enough(positional, values):
        width = Counter(map(len, lines)).most_common(1)[0][0]
        whole = [line for line in lines if len(line) == width]
        return Recognised(
            "JSONCompactEachRow",
            lines=whole,
            names=_numbered(width),
            unreadable=len(values) - len(whole),
        )
    return None


def _documents(value: bytes) -> list[Any] | None:
    """The JSON documents of a message, one after the other; None if it is something else."""
    text = _text(value)
    if text is None or not text.strip(_JSON_SPACE):
        return None
    decoder, documents, position = json.JSONDecoder(), [], 0
    try:
        while position < len(text):
            if text[position] in _JSON_SPACE:
                position += 1
                continue
            document, position = decoder.raw_decode(text, position)
            documents.append(document)
    except (ValueError, RecursionError):
        return None
    return documents


def named_schemas(values: Sequence[bytes]) -> Counter[int]:
    """How many messages name each schema of a registry: a zero byte and its number. Which kind of
    schema it is, only the registry knows. Empty where most messages are something else."""
    numbers = [number for value in values if (number := number_of(value)) is not None]
    found = Counter(numbers if _enough(len(numbers), values) else ())
    # No few schemas: these bytes are something else.
    return Counter() if len(found) > max(8, len(numbers) // 4) else found


def number_of(value: bytes) -> int | None:
    """Of the schema that a message names; None: it has no registry's header."""
    return int.from_bytes(value[1:5], "big") if value[:1] == b"\0" and len(value) > 5 else None


def _file(topic: str, values: Sequence[bytes]) -> Recognised | None:
    for head, name in _FILES.items():
        whole = sum(value.startswith(head) for value in values)
        if _enough(whole, values):
            raise TerminalError(
                f"topic {topic} holds whole {name} files as messages",
                f'{_BY_HAND}, with format = "{name}" and rows = "many"; give the table a column '
                "for each of theirs.",
            )
    return None


def _delimited(topic: str, values: Sequence[bytes], first_line: FirstLine) -> Recognised | None:
    """Lines of as many values each; the first delimiter that makes them so."""
    texts = [text for value in values if (text := _text(value)) is not None and text.strip()]
    if not _enough(len(texts), values):
        return None
    for delimiter in _DELIMITERS:
        tables = [_parsed(text, delimiter) for text in texts]
        widths = Counter(len(line) for table in tables for line in table)
        if not widths:
            continue
        width, count = widths.most_common(1)[0]
        if width < 2 or count < 0.95 * widths.total():
            continue
        whole = [table for table in tables if table and all(len(line) == width for line in table)]
        if _enough(len(whole), values):
            found = _lines(topic, whole, delimiter, first_line)
            return replace(found, unreadable=found.unreadable + len(values) - len(whole))
    return None


def _parsed(text: str, delimiter: str) -> list[list[str]]:
    if delimiter == "\t":
        return [line.rstrip("\r").split("\t") for line in text.split("\n") if line]
    try:
        reader = csv.reader(io.StringIO(text), delimiter=delimiter)
        return [line for line in reader if line]
    except csv.Error:
        return []


def _lines(
    topic: str, tables: list[list[list[str]]], delimiter: str, first_line: FirstLine
) -> Recognised:
    head, rest = tables[0][0], [line for table in tables[1:] for line in table]
    is_said = first_line == "names"
    may_be_names = first_line == "" and _may_be_names(head)
    if may_be_names and len(tables) == 1 and len(tables[0]) > 1:
        raise TerminalError(
            f"topic {topic}: nothing tells whether the first line of its only message, "
            f"{_shown(head, delimiter)}, has names or values",
            "Say it: --first-line names, or --first-line values.",
        )
    is_repeated = len(tables) > 1 and all(len(t) > 1 and t[0] == head for t in tables)
    named = is_said or (may_be_names and is_repeated)
    # A file that was produced line by line: the names are a message.
    is_message = may_be_names and not named and len(tables[0]) == 1 and head not in rest
    is_message = is_message and any(all(map(_NUMBER.fullmatch, each)) for each in _columns(rest))
    rows = [line for table in tables for line in (table[1:] if named else table)]
    several = any(len(table) > (2 if named else 1) for table in tables)
    kind = "TSV" if delimiter == "\t" else "CSV"
    return Recognised(
        f"{kind}WithNames" if named else kind,
        "many" if several else "one",
        {} if delimiter in "\t," else {"delimiter": delimiter},
        lines=[list(row) for row in (rest if is_message else rows)],
        names=tuple(head) if named or is_message else _numbered(len(head)),
        unreadable=int(is_message),
        remark=f"the first message, {_shown(head, delimiter)}, is taken for the names of the "
        "columns; it becomes a dead letter itself. Say --first-line values if it is a row"
        if is_message
        else "",
    )


def _columns(lines: list[list[str]]) -> list[list[str]]:
    return [list(each) for each in zip(*lines, strict=True)]


def _may_be_names(head: list[str]) -> bool:
    """Whether these are different texts, none of which is a number."""
    return len(set(head)) == len(head) and all(head) and not any(map(_NUMBER.fullmatch, head))


def _shown(line: list[str], delimiter: str) -> str:
    return json.dumps(delimiter.join(line)[:_LINE_CHARACTERS_MAX], ensure_ascii=False)


def _numbered(width: int) -> tuple[str, ...]:
    return tuple(f"c{number + 1}" for number in range(width))
