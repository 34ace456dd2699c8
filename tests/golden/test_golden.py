"""Nothing that a message becomes changes unseen."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence

import pytest

from sluice.decode.formats import FORMATS
from tests.golden.cases import Case
from tests.golden.outcome import OUTCOMES, outcomes_of

_SHOWN_MAX = 20
#: They take seconds each; most of their messages are from tests of decoding, which judge them.
_LARGE = {"JSONEachRow", "CSV", "TSV", "Protobuf", "RowBinary"}


def differences(expected: Sequence[str], found: Sequence[tuple[Case, list[str]]]) -> Iterator[str]:
    """What is not as it was, for people: the case, the message, then and now."""
    before: dict[str, list[str]] = {}
    for line in expected:
        if line.startswith("= "):
            block = before.setdefault(line[2:].split(": ")[0], [])
        block.append(line)
    for case, (head, *lines) in found:
        old_head, *old_lines = before.pop(case.name, [""])
        if not old_head:
            yield f"{case.name} is new"
            continue
        if head != old_head:
            old_words, words = old_head.split(), head.split()
            pairs = zip(old_words, words, strict=False)
            changed = [f"{one} -> {other}" for one, other in pairs if one != other]
            yield f"{case.name}: the block, {', '.join(changed) or f'{old_head} -> {head}'}"
        then, now = ({line.split(" ")[0]: line for line in some} for some in (old_lines, lines))
        for index in sorted({*then, *now}, key=int):
            if then.get(index) != now.get(index):
                yield (
                    f"{case.name} {_quoted(case, int(index))}\n"
                    f"  then {then.get(index)}\n  now  {now.get(index)}"
                )
    yield from (f"{name} is gone" for name in before)


def _quoted(case: Case, index: int) -> str:
    value = case.messages[index] if index < len(case.messages) else b""
    if len(value) > 300:
        value = value[:300]
    return repr(value.decode()) if value.isascii() else f"base64 {base64.b64encode(value).decode()}"


@pytest.mark.parametrize(
    "table_format",
    [pytest.param(each, marks=[pytest.mark.slow] if each in _LARGE else []) for each in FORMATS],
)
def test_messages_become_what_they_became(table_format: str) -> None:
    outcomes = OUTCOMES / f"{table_format}.txt"
    assert outcomes.exists(), f"a new format: run `python -m tests.golden {table_format}`, and read"
    expected = outcomes.read_text().split("\n")[:-1]
    found = list(differences(expected, list(outcomes_of(table_format))))
    assert not found, (
        f"{len(found)} differences; if they are meant, raise sluice.decode.RULES, say why, and run "
        "`make golden`:\n" + "\n".join(found[:_SHOWN_MAX])
    )


def test_a_difference_is_said_with_its_message() -> None:
    head, *lines = ("= a: 1 messages ff; 1 rows of 1", "0 row 5")
    case = Case("a", None, (b'{"x": 5}',), None)  # type: ignore[arg-type]
    assert list(differences([head, *lines], [(case, [head, *lines])])) == []
    (value,) = differences([head, "0 row 6"], [(case, [head, *lines])])
    assert value == "a '{\"x\": 5}'\n  then 0 row 6\n  now  0 row 5"
    (block,) = differences([head.replace("1 rows", "2 rows"), *lines], [(case, [head, *lines])])
    assert block == "a: the block, 2 -> 1"
    assert list(differences([], [(case, [head, *lines])])) == ["a is new"]
    assert list(differences([head], [])) == ["a is gone"]
