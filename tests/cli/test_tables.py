from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

import pytest

from sluice.cli.output import print_table


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    return Lines(capsys)


class Lines:
    """Prints tables, and gives their lines."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def of(self, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
        print_table(headers, rows)
        return self._capsys.readouterr().out.splitlines()


def test_numbers_stand_right_and_texts_left(lines: Lines) -> None:
    assert lines.of(("topic", "lag", "owner"), [("orders", 1234567, "a"), ("b", 0, None)]) == [
        "topic         lag  owner",
        "orders  1,234,567  a",
        "b               0  -",
    ]


def test_missing_numbers_and_fractions(lines: Lines) -> None:
    assert lines.of(("rate", "ok"), [(1234.5, True), (None, False)]) == [
        "    rate  ok",
        "1,234.50  yes",
        "       -  no",
    ]


def test_an_empty_table_has_its_headers(lines: Lines) -> None:
    assert lines.of(("a", "b"), []) == ["a  b"]


def test_no_line_for_headers_without_a_name(lines: Lines) -> None:
    assert lines.of(("", ""), [("purged", 1), ("kept", 20)]) == ["purged   1", "kept    20"]


def test_data_cannot_steer_the_terminal(lines: Lines) -> None:
    assert lines.of(("value",), [("\x1b[2Jgone\nnext\u202e",)]) == [
        "value",
        r"\x1b[2Jgone\nnext\u202e",
    ]


def test_what_looks_like_markup_stands_as_it_is(lines: Lines) -> None:
    assert lines.of(("value",), [("[red]x[/red] :smile:",)])[1] == "[red]x[/red] :smile:"


def test_long_texts_are_not_folded_without_a_terminal(lines: Lines) -> None:
    long = "ALTER TABLE " + "x" * 1000
    assert lines.of(("what", "more"), [(long, long)])[1] == f"{long}  {long}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_verdicts_are_coloured_and_long_texts_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name, value in {"TERM": "xterm", "COLUMNS": "60"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    words = [f"word{number}" for number in range(30)]
    print_table(("verdict", "what"), [("error", " ".join(words))], is_folded=True)
    written = terminal.getvalue()
    assert "\x1b[31merror" in written
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    assert max(map(len, plain.splitlines())) <= 60
    assert re.findall(r"word\d+", plain) == words
