from __future__ import annotations

from sluice.cli.tables import render


def test_numbers_stand_right_and_texts_left() -> None:
    text = render(("topic", "lag", "owner"), [("orders", 1234567, "a"), ("b", 0, None)])
    assert text.splitlines() == [
        "topic         lag  owner",
        "orders  1,234,567  a",
        "b               0  -",
    ]


def test_missing_numbers_and_fractions() -> None:
    text = render(("rate", "ok"), [(1234.5, True), (None, False)])
    assert text.splitlines() == ["    rate  ok", "1,234.50  yes", "       -  no"]


def test_an_empty_table_has_its_headers() -> None:
    assert render(("a", "b"), []) == "a  b"


def test_data_cannot_steer_the_terminal() -> None:
    text = render(("value",), [("\x1b[2Jgone\nnext\u202e",)])
    assert text.splitlines() == ["value", r"\x1b[2Jgone\nnext\u202e"]
