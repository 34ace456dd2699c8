"""What a block of messages became, as lines of text."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from sluice.core.errors import SluiceError
from sluice.core.load_spec import TableSpec
from sluice.decode.engine.session import run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import BadMessage, Decoded, TableDecoder
from sluice.decode.messages.facts import alone
from sluice.decode.messages.memory import memory_file
from tests.decode.support import FIRST_OFFSET, fill
from tests.golden.cases import PARTITION, TOPIC, Case, cases_of

OUTCOMES = Path(__file__).parent / "outcomes"
SOURCE = "p/c/t/e/0"
#: Rows of at most so many characters stand in the file as they are; of others, a digest.
SHOWN_CHARACTERS = 60


def digest(parts: Iterable[str | bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        found.update(f"{len(raw)}:".encode() + raw)
    return found.hexdigest()[:10]


def outcomes_of(table_format: str) -> Iterator[tuple[Case, list[str]]]:
    """Each case of a format with its lines: one of the block, then one of each message.

    A table text has one decoder, as with a worker.
    """
    decoders: dict[TableSpec, TableDecoder] = {}
    for case in cases_of(table_format):
        yield case, list(_lines(case, decoders))


def _decoded(case: Case, decoders: dict[TableSpec, TableDecoder]) -> Decoded:
    if case.text not in decoders:
        decoders[case.text] = make_decoder(case.text)
    decoder = decoders[case.text]
    with MessageBuffer(framing_of(case.text)) as buffer:
        decoder.watch(buffer)
        fill(buffer, list(case.messages))
        buffer.facts = replace(case.facts)
        return decoder.decode(buffer, alone(TOPIC, PARTITION, SOURCE))


def _lines(case: Case, decoders: dict[TableSpec, TableDecoder]) -> Iterator[str]:
    head = f"= {case.name}: {len(case.messages)} messages {digest(case.messages)}"
    try:
        made = _decoded(case, decoders)
    except SluiceError as error:
        yield f"{head}; {type(error).__name__}: {error}"
        return
    names, types, rows = _read(made)
    head += f"; {made.rows} rows of {made.messages} at {digest(map(str, made.offsets.tolist()))}"
    head += f", {made.clickhouse_partitions} partitions, {made.dropped_rows} dropped"
    if made.rows:
        head += f"; types {digest(types)}"
    if made.rows > 1:
        columns = zip(names, zip(*(row.split("\t") for row in rows), strict=True), strict=True)
        head += "; " + " ".join(f"{name}={digest(cells)}" for name, cells in columns)
    yield head
    said = {bad.index: _refused(bad) for bad in made.bad}
    said |= {(offset - FIRST_OFFSET) // 2: "empty" for offset in made.empty}
    of_messages: dict[int, list[str]] = {}
    for offset, row in zip(made.offsets.tolist(), rows, strict=True):
        of_messages.setdefault((offset - FIRST_OFFSET) // 2, []).append(row)
    if case.shows_rows:
        for index, some in of_messages.items():
            assert index not in said, "a message in two places"
            said[index] = _shown(some)
    for index in sorted(said):
        yield f"{index} {said[index]}"


def _read(made: Decoded) -> tuple[list[str], list[str], list[str]]:
    """Names, types and rows of a block as the engine reads them."""
    if not made.rows:
        return [], [], []
    with memory_file(made.native) as path:
        settings = "SETTINGS session_timezone='UTC', max_block_size=10000000, max_threads=1"
        query = f"SELECT * FROM file('{path}', Native) {settings}"
        text = run(query, "TSVWithNamesAndTypes").bytes().decode(errors="backslashreplace")
    names, types, *rows = text.split("\n")[:-1]
    return names.split("\t"), types.split("\t"), rows


def _refused(bad: BadMessage) -> str:
    words = bad.error.encode(errors="backslashreplace").decode()
    return f"bad {bad.reason} ({bad.column}) {words}"


def _shown(rows: list[str]) -> str:
    text = " | ".join(rows).replace("\r", "\\r").replace("\t", " ¦ ")
    if len(text) <= SHOWN_CHARACTERS and text.isprintable():
        return f"row {text}"
    return f"{len(rows)} rows {digest(rows)}"
