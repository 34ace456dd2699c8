"""What the options of the text formats may say."""

from __future__ import annotations

import pytest

from sluice.core.formats import SKIPPED, column_names, delimiter_of, first_problem, null_text


def test_names_are_separated_by_commas() -> None:
    assert column_names("id, -,name , -") == ("id", SKIPPED, "name", SKIPPED)
    assert column_names("`a b`, `c,d`,e") == ("a b", "c,d", "e")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("", "missing"),
        ("a,,b", "missing"),
        ("a,", "missing"),
        ("a, b, a", "twice"),
        ("id UInt64", "not a column's name"),
        ("`a", "not closed"),
        ("`a` b", "no comma"),
    ],
)
def test_wrong_names_are_refused_in_words(value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        column_names(value)


@pytest.mark.parametrize(
    "value", ["", "ab", "é", '"', "'", "\\", "\n", "\r", "a", "7", ".", "-", "\0"]
)
def test_delimiters_that_are_part_of_values_are_refused(value: str) -> None:
    with pytest.raises(ValueError):
        delimiter_of(value)


def test_delimiters() -> None:
    assert [delimiter_of(value) for value in (",", ";", "|", "\t", " ")] == [
        ",",
        ";",
        "|",
        "\t",
        " ",
    ]


@pytest.mark.parametrize("value", ["", "x" * 33, "a'b", "é", "a\nb"])
def test_texts_for_null_that_cannot_be_read_are_refused(value: str) -> None:
    with pytest.raises(ValueError):
        null_text(value)


def test_the_first_problem_names_its_option() -> None:
    assert first_problem("CSV", (("delimiter", ";"), ("null", "NULL"))) == ""
    assert first_problem("CSV", (("delimiter", ";;"),)).startswith("option delimiter: ")
    assert first_problem("TSV", (("null", "a\tb"),)).startswith("option null: ")
    assert first_problem("Protobuf", (("schema", "whatever"),)) == ""
