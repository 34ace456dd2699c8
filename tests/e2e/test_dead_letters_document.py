"""The commands of docs/DEAD_LETTERS.md, in their order, with what they print."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_dead_letters import create
from tests.support.world import World

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "DEAD_LETTERS.md"


def examples(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of the document, and the lines that it prints."""
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines = block.splitlines()
        starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
        for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
            yield lines[start][2:], lines[start + 1 : end]


def matches(expected: list[str], printed: str) -> bool:
    """Whether this was printed; `…` stands for anything, on a line of its own for any lines.

    Columns are as wide as what stands in them, so spaces are no difference.
    """
    wanted, got = (re.sub(" +", " ", "\n".join(t)) for t in (expected, printed.splitlines()))
    parts = re.split("(\0|…)", re.sub("(?m)^…$", "\0", wanted))
    any_of = {"…": ".*", "\0": "(?s:.*)"}
    pattern = "".join(any_of.get(part, re.escape(part)) for part in parts)
    return re.fullmatch(pattern, got) is not None


def in_world(command: str, configuration: Path) -> list[str]:
    """The document's command, with the names that this test has for its own."""
    command = command.replace("sluice.toml", str(configuration))
    return shlex.split(
        command.replace("--topic orders", "--topic orders-document").replace(
            "TABLE orders", "TABLE orders_document"
        )
    )


def as_documented(world: World, printed: str) -> str:
    """What was printed, with the document's names."""
    for name in ("orders-document", "orders_document", world.name):
        printed = printed.replace(name, "orders")
    return printed


@pytest.mark.slow
def test_the_document(world: World) -> None:
    world.create_topic("orders-document", 1)
    create(world, "orders_document", "UInt16")
    values = [b'{"id":%d,"quantity":%d}' % (number, number) for number in range(3)]
    values += [b'{"id":3,"quantity":70000}', b'{"id":4,"quantity":80000}', b'{"id":5,"quan']
    producer = world.producer()
    for number, value in enumerate(values):
        key, trace = b"customer-%d" % number, [("trace", b"a1")]
        producer.produce("orders-document", value, key=key, headers=trace, partition=0)
    assert producer.flush(30) == 0
    configuration = world.configure({"orders_document": ["orders-document"]})
    world.drain(configuration)
    count = 0
    for command, expected in examples(DOCUMENT.read_text()):
        count += 1
        words = in_world(command, configuration)
        if words[0] == "clickhouse-client":
            world.execute(words[2])
        elif words[:2] == ["sluice", "run"]:
            world.drain(configuration)
        else:
            assert words[0] == "sluice"
            ended = subprocess.run(
                [sys.executable, "-m", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            printed = as_documented(world, ended.stdout)
            assert ended.returncode == 0, printed
            assert matches(expected, printed), f"{command} printed:\n{printed}"
    assert count == 10
    found = world.query("SELECT quantity FROM orders_document ORDER BY quantity")
    assert [int(str(row["quantity"])) for row in found] == [0, 1, 2, 70000, 80000]


def test_the_matching_notices() -> None:
    assert matches(["a  …", "b"], "a  1\nb\n")
    assert not matches(["a  …"], "a  1\nb\n")
    assert matches(["…"], "a\nb\n") and matches(["a", "…", "d"], "a\nb\nc\nd\n")
    assert not matches(["a", "…", "d"], "a\nb\nc\n")
    assert matches(["x"], "x\n") and matches(["a … c"], "a  b  c")
    assert not matches(["a"], "b\n")
