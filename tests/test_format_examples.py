"""The examples of docs/FORMATS.md, EVENTS.md and DELIVERIES.md, run: an entry, its table, messages,
and what becomes of them.

Blocks that follow each other: ```toml with a [[table]], ```sql with the CREATE TABLE, ```hex or
any other word with a message a line (```keyed: its key, and its value if it has one), then ```text
with rows and `dead letter N: reason` (N from 0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sluice.clickhouse.schema import TableFacts
from sluice.config import load
from sluice.core.load_spec import Column, TableSpec
from sluice.decode.engine.session import literal, run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.facts import MessageFacts
from sluice.decode.messages.marked import memory_file
from sluice.decode.messages.origins import alone
from sluice.driver.specs import build_spec
from tests.decode.support import table

DOCUMENT = Path(__file__).parent.parent / "docs" / "FORMATS.md"
OTHERS = [DOCUMENT.with_name(name) for name in ("EVENTS.md", "DELIVERIES.md")]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BASE = """
[pipeline]
name = "p"
[[connector]]
name = "c"
brokers = "b:9092"
topics = ["events"]
[clickhouse]
database = "shop"
shards = { s1 = ["http://h:8123"] }
durability = "single"
[batch]
"""
#: When Kafka got all messages of the examples.
RECEIVED_MS = 1_767_225_600_000  # 2026-01-01 00:00:00


@dataclass(frozen=True)
class Example:
    entry: str
    table: str
    messages: tuple[bytes, ...]
    outcome: tuple[str, ...]
    keys: tuple[bytes, ...] = ()

    @property
    def name(self) -> str:
        found = re.search(r'name = "(\w+)"', self.entry)
        assert found
        return found[1]


def examples() -> list[Example]:
    blocks = [block for path in (DOCUMENT, *OTHERS) for block in BLOCK.findall(path.read_text())]
    found = []
    for first, second, third, fourth in zip(
        blocks, blocks[1:], blocks[2:], blocks[3:], strict=False
    ):
        if (first[0], second[0], fourth[0]) != ("toml", "sql", "text"):
            continue
        lines, keys = third[1].splitlines(), ()
        if third[0] == "hex":
            messages = tuple(bytes.fromhex(line.split("#")[0]) for line in lines)
        elif third[0] == "keyed":
            parts = [line.encode().partition(b" ") for line in lines]
            messages = tuple(value for _, _, value in parts)
            keys = tuple(key for key, _, _ in parts)
        else:
            messages = tuple(line.encode() for line in lines)
        found.append(Example(first[1], second[1], messages, tuple(fourth[1].splitlines()), keys))
    return found


def columns_of(statement: str) -> tuple[Column, ...]:
    """The columns of a CREATE TABLE, as the engine reads them."""
    structure = statement[statement.index("(") + 1 : statement.rindex(") ENGINE")]
    lines = run(f"DESCRIBE null({literal(structure)})", "TSVRaw").bytes().decode().splitlines()
    return tuple(Column(*line.split("\t")[:4]) for line in lines)


def text_of(example: Example, folder: Path) -> TableSpec:
    path = folder / "sluice.toml"
    entry = example.entry.replace("[[table]]\n", '[[table]]\nlineage = "auto"\n')
    path.write_text(BASE + entry)
    configuration = load(path, {})
    (table,) = configuration.tables
    facts = TableFacts(
        url="",
        database="shop",
        table=table.table,
        uuid="",
        engine=re.search(r"ENGINE = (\w+)", example.table)[1],  # type: ignore[index]
        engine_full=example.table.rpartition("ENGINE = ")[2],
        columns=columns_of(example.table),
        partition_key="",
        sorting_key=example.table.rpartition("ORDER BY ")[2].strip(),
        replicated=False,
        zookeeper_path="",
        replicas_total=1,
        replicas_active=1,
        is_readonly=False,
        window_blocks=1000,
        window_seconds=None,
        async_insert=False,
        dependents=(),
    )
    text = build_spec(configuration, "c", {table.name: facts}, "UTC", "chdb")
    return text.tables[0]


def decoded(text: TableSpec, messages: tuple[bytes, ...], keys: tuple[bytes, ...] = ()) -> Decoded:
    with MessageBuffer(framing_of(text)) as buffer:
        buffer.add(list(messages), range(len(messages)))
        count = len(messages)
        nobody: list[bytes | None] = [*keys] or [None] * count
        dead = [bool(keys) and not value for value in messages]
        times: list[int | None] = [RECEIVED_MS] * count
        buffer.facts = MessageFacts(alone("events", 0), nobody, times, [()] * count, dead)
        return make_decoder(text).decode(buffer, alone("events", 0))


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.name)
def test_an_example_does_what_it_says(example: Example, tmp_path: Path) -> None:
    made = decoded(text_of(example, tmp_path), example.messages, example.keys)
    lines: list[str] = []
    if made.rows:
        with memory_file(made.native) as path:
            zone = "SETTINGS session_timezone = 'UTC'"
            raw = run(f"SELECT * FROM file('{path}', Native) {zone}", "TSV").bytes()
        lines = raw.decode().splitlines()
    lines += [f"dead letter {bad.index}: {bad.reason}" for bad in made.bad]
    assert lines == list(example.outcome)


def test_dead_letters_name_the_meter(tmp_path: Path) -> None:
    """The comment in a check is how; and which of two reasons comes first."""
    (example,) = (example for example in examples() if example.name == "meter_events")
    entry = text_of(example, tmp_path)
    assert entry.deduplicate is not None and entry.deduplicate.scope == "p/shop.meter_events"
    assert entry.require == ("subject", "time", "source", "id")
    bad = {bad.index: bad for bad in decoded(entry, example.messages).bad}
    assert bad[2].error.startswith("the check /* meter tokens_total */ type != 'prompt' OR ")
    assert bad[3].error.startswith("the check /* meter request_seconds_total */ type != ")
    assert bad[4].error.startswith("the check /* declared types */ type IN ")
    assert all(bad[n].error.endswith(" does not hold") for n in (2, 3, 4))
    assert [bad[n].column for n in (5, 6, 7)] == ["id", "id", "subject"]


def test_the_envelope_of_the_document() -> None:
    """Its Python makes a message; the rows stand below it."""
    document = DOCUMENT.read_text()
    code = document[document.index("```python\n") + 10 :]
    code, rest = code[: code.index("```")], code[code.index("```") + 3 :]
    names: dict[str, Any] = {}
    exec(code, names)
    structure, rows = re.findall(
        r"Into `\((.*?)\)` this makes\n\n```\n(.*?)\n```", rest, re.DOTALL
    )[0]
    text = table(*columns_of(f"({structure}) ENGINE"), format="SQLBatchRequest", rows="many")
    made = decoded(text, (names["value"],))
    with memory_file(made.native) as path:
        zone = "SETTINGS session_timezone = 'UTC'"
        raw = run(f"SELECT * FROM file('{path}', Native) {zone}", "TSV").bytes()
    assert made.bad == () and raw.decode().splitlines() == rows.splitlines()


def test_there_are_examples_of_everything() -> None:
    named = {example.name for example in examples()}
    assert {"clicks", "visits", "usage", "meter_events", "accounts"} <= named and len(named) == len(
        examples()
    )
