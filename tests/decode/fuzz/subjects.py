"""A table and good messages of every format."""

from __future__ import annotations

import random
from dataclasses import replace

from sluice.core.formats import FORMATS, TEXT_FORMATS
from sluice.core.load_spec import Column
from tests.decode.envelope_support import COLUMNS as ENVELOPE_COLUMNS
from tests.decode.envelope_support import some_messages
from tests.decode.fuzz.schema_subjects import SCHEMA_SUBJECTS
from tests.decode.fuzz.subject import Subject, fuzzed_table
from tests.decode.text_fuzz import COLUMNS as TEXT_COLUMNS
from tests.decode.text_fuzz import good as good_text
from tests.decode.typed_support import ATTACKED_COLUMNS, ATTACKED_SELECT, written

#: Formats in which a message is a file, which is read by itself with a few queries.
FILES = ("Native", "Parquet", "ORC", "Arrow", "ArrowStream")
_ROWS = ("RowBinary", "RowBinaryWithNamesAndTypes", "MsgPack")


def _text(table_format: str) -> tuple[Subject, ...]:
    text = fuzzed_table(table_format, TEXT_COLUMNS)
    many = replace(text, rows="many")

    def some(chance: random.Random) -> bytes:
        return good_text(table_format, chance, chance.choice((1, 1, 2, 3)))

    return (
        Subject(text, lambda chance: good_text(table_format, chance)),
        Subject(many, some),
        Subject(replace(many, bad_rows="drop-row"), some),
    )


def _behind_header(subject: Subject) -> Subject:
    text = replace(subject.text, format="JSONConfluent")
    return Subject(text, lambda chance: b"\0\0\0\0\7" + subject.good(chance))


def _typed(table_format: str) -> tuple[Subject, ...]:
    by_file = table_format in FILES
    rows = 3 if by_file else 1
    select = ATTACKED_SELECT
    if table_format == "ORC":
        # ORC has neither unsigned integers nor Enums: the engine writes other types for them.
        select = select.replace("number + {0} AS id", "toInt64(number + {0}) AS id")
    pool = [written(table_format, select.format(10 * i, rows)) for i in range(8)]
    many = fuzzed_table(table_format, ATTACKED_COLUMNS, rows="many")
    if by_file:
        return (Subject(many, lambda chance: chance.choice(pool), by_file=True),)

    def several(chance: random.Random) -> bytes:
        return b"".join(chance.choices(pool, k=chance.choice((1, 2, 3))))

    subjects = [Subject(replace(many, rows="one"), lambda chance: chance.choice(pool))]
    if table_format != "RowBinaryWithNamesAndTypes":  # its rows share one head
        subjects += [Subject(text, several) for text in (many, replace(many, bad_rows="drop-row"))]
    return tuple(subjects)


def _envelope() -> tuple[Subject, ...]:
    text = fuzzed_table("SQLBatchRequest", ENVELOPE_COLUMNS, rows="many")

    def one(chance: random.Random) -> bytes:
        return some_messages(chance, 1)[0]

    return Subject(text, one), Subject(replace(text, bad_rows="drop-row"), one)


def _whole(table_format: str) -> tuple[Subject, ...]:
    text = fuzzed_table(table_format, (Column("id", "Int32"),))

    def one(chance: random.Random) -> bytes:
        return str(chance.randrange(-99_999, 99_999)).encode()

    def lines(chance: random.Random) -> bytes:
        return b"\n".join(one(chance) for _ in range(chance.choice((1, 2, 3))))

    if table_format == "RawBLOB":
        return (Subject(text, one),)
    many = replace(text, rows="many")
    dropping = replace(many, bad_rows="drop-row")
    return Subject(text, one), Subject(many, lines), Subject(dropping, lines)


def subjects_of(table_format: str) -> tuple[Subject, ...]:
    """The ways in which messages of a format are read."""
    if table_format in ("RawBLOB", "LineAsString"):
        return _whole(table_format)
    if table_format in TEXT_FORMATS:
        return _text(table_format)
    if table_format in (*FILES, *_ROWS):
        return _typed(table_format)
    if table_format == "JSONConfluent":
        return tuple(_behind_header(one) for one in _text("JSONEachRow")[:2])
    if table_format == "SQLBatchRequest":
        return _envelope()
    assert table_format in SCHEMA_SUBJECTS, (
        f"{table_format}: say in tests/decode/fuzz/subjects.py what a table and good messages are"
    )
    return SCHEMA_SUBJECTS[table_format]()


ALL = tuple(FORMATS)
