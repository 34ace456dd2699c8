"""The messages: the examples of docs/FORMATS.md, kept ones, values, and mutants of a fixed seed.

`inputs/` holds, for each format, messages from the tests of decoding: a line is a table text (what
differs from `tests.decode.support.table`) and blocks of messages. Write new ones at its end.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sluice.core.load_spec import SPEC_VERSION, TableSpec, parse_spec
from sluice.core.schema_ids import RegisteredSchema
from sluice.decode.messages.facts import Headers, MessageFacts, alone
from sluice.decode.schema.registry import provide
from tests.decode.fuzz.mutants import mutated
from tests.decode.fuzz.subject import Subject
from tests.decode.fuzz.subjects import subjects_of
from tests.decode.support import table
from tests.golden.values import value_tables
from tests.test_format_examples import OF_FORMATS, RECEIVED_MS, examples, text_of

INPUTS = Path(__file__).parent / "inputs"
TOPIC, PARTITION = "orders", 3
#: Messages of a block of mutants, three of four mutated.
MUTANTS, MUTANTS_OF_FILES = 36, 16
#: Messages of a block in which one of twenty-five is mutated.
MOSTLY_GOOD = 75


@dataclass(frozen=True)
class Case:
    """A block of messages for one table entry.

    :param shows_rows: the outcome says of each message what its rows are; otherwise only of the
        block.
    """

    name: str
    text: TableSpec
    messages: tuple[bytes, ...]
    facts: MessageFacts
    shows_rows: bool = True


def cases_of(table_format: str) -> Iterator[Case]:
    """All of a format, in the order of its file."""
    yield from _examples(table_format)
    yield from _kept(table_format)
    for kind, text, messages in value_tables(table_format):
        yield Case(f"values/{kind}", text, messages, _no_facts(len(messages)))
    for number, subject in enumerate(subjects_of(table_format)):
        chance = random.Random(f"golden {table_format} {number}")
        yield from _fuzzed(f"mutants/{number}", subject, chance, is_first=not number)


def _no_facts(messages: int) -> MessageFacts:
    times: list[int | None] = [RECEIVED_MS] * messages
    nothing: list[Headers] = [()] * messages
    return MessageFacts(
        alone(TOPIC, PARTITION), [None] * messages, times, nothing, [False] * messages
    )


def _examples(table_format: str) -> Iterator[Case]:
    for example in examples(*OF_FORMATS):
        with TemporaryDirectory() as folder:
            text = text_of(example, Path(folder))
        if text.format == table_format:
            messages = tuple(one.value for one in example.messages)
            yield Case(f"example/{example.name}", text, messages, _no_facts(len(messages)))


def _fuzzed(name: str, subject: Subject, chance: random.Random, is_first: bool) -> Iterator[Case]:
    pool = [subject.good(chance) for _ in range(16)]

    def block(messages: int, is_mutated: range) -> tuple[bytes, ...]:
        values = [chance.choice(pool) for _ in range(messages)]
        for place in range(messages):
            if place % is_mutated.stop in is_mutated:
                values[place] = mutated(values[place], chance.choice(pool), chance)
        return tuple(values)

    count = MUTANTS_OF_FILES if subject.by_file else MUTANTS
    yield Case(name, subject.text, block(count, range(1, 4)), _no_facts(count))
    if is_first and not subject.by_file:
        values = block(MOSTLY_GOOD, range(24, 25))
        facts = _no_facts(MOSTLY_GOOD)
        yield Case(f"{name}/mostly-good", subject.text, values, facts, shows_rows=False)


class _KeptSchemas:
    """A registry of what a line of the inputs brings along."""

    def __init__(self, schemas: dict[str, Any]) -> None:
        self._schemas = schemas

    def schema(self, number: int) -> RegisteredSchema | None:
        found = self._schemas.get(str(number))
        if found is None:
            return None
        kind, text, references = found
        return RegisteredSchema(kind, text, tuple((name, one) for name, one in references))


def _kept(table_format: str) -> Iterator[Case]:
    path = INPUTS / f"{table_format}.jsonl"
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else ()):
        kept = json.loads(line)
        text = _text(table_format, kept["text"])
        if "schemas" in kept:
            # An address of its own, since a number means one schema for ever.
            url = f"http://{table_format}-{number}.golden"
            provide(url, _KeptSchemas(kept["schemas"]))
            options = tuple((n, url if n == "registry" else v) for n, v in text.options)
            text = replace(text, options=options)
        for place, block in enumerate(kept["blocks"]):
            messages = tuple(map(_bytes, block["messages"]))
            facts = _facts(block["facts"]) if "facts" in block else _no_facts(len(messages))
            yield Case(f"{number}.{place}/{block['from']}", text, messages, facts)


def _text(table_format: str, changes: dict[str, Any]) -> TableSpec:
    whole = asdict(table(format=table_format)) | changes
    head = {"pipeline": "p", "connector": "c", "decoder": "", "range_bytes_max": 1}
    raw = json.dumps({"version": SPEC_VERSION, "tables": [whole], **head})
    return parse_spec(raw).tables[0]


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def _facts(raw: dict[str, Any]) -> MessageFacts:
    def value(one: Any) -> bytes | None:
        return None if one is None else _bytes(one)

    headers: list[Headers] = [
        tuple((name, value(one)) for name, one in some) for some in raw["headers"]
    ]
    return MessageFacts(
        alone(TOPIC, PARTITION), [value(k) for k in raw["keys"]], raw["times"], headers
    )
