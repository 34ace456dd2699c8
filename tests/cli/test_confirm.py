from __future__ import annotations

import io

import pytest

from sluice.cli.arguments import UsageError
from sluice.cli.output import confirm

STEPS = ["commit offset 7 for orders[3]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "is_yes"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False), ("", False), ("yep\n", False)],
)
def test_asks_on_a_terminal(
    answer: str, is_yes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert confirm(STEPS, is_agreed=False) is is_yes
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("This will:\n  - commit offset 7 for orders[3]\nGo on? [y/N] ")
    assert ("Nothing was done." in captured.err) is not is_yes


def test_yes_shows_and_does_not_ask(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert confirm(STEPS, is_agreed=True)
    assert capsys.readouterr().err == "This will:\n  - commit offset 7 for orders[3]\n"


def test_refuses_where_nobody_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="stdin is not a terminal") as caught:
        confirm(STEPS, is_agreed=False)
    assert "--yes" in caught.value.hint
