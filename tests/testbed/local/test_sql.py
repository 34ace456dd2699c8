"""Statements are told apart from their data."""

from __future__ import annotations

import pytest

from sluice.testbed.local.embedded import sql


@pytest.mark.parametrize(
    ("text", "head", "settings", "name", "data"),
    [
        ("INSERT INTO t FORMAT Native", "INSERT INTO t", "", "Native", ""),
        ("insert into t (a, b) format TSV\n1\t2", "insert into t (a, b)", "", "TSV", "1\t2"),
        ("INSERT INTO t (a)FORMAT CSV\r\n\n1", "INSERT INTO t (a)", "", "CSV", "\n1"),
        ("INSERT INTO t VALUES (1)", "INSERT INTO t", "", "Values", " (1)"),
        ("/* x */ INSERT INTO `a VALUES`.b VALUES(1)", "/* x */ INSERT INTO `a VALUES`.b", "",
         "Values", "(1)"),
        ("INSERT INTO t SETTINGS a = 'FORMAT', b = 1 FORMAT X", "INSERT INTO t",
         "SETTINGS a = 'FORMAT', b = 1 ", "X", ""),
        ("INSERT INTO FUNCTION null('x String') FORMAT X", "INSERT INTO FUNCTION null('x String')",
         "", "X", ""),
    ],
)  # fmt: skip
def test_inserts_with_data(text: str, head: str, settings: str, name: str, data: str) -> None:
    insert = sql.parse_insert(text)
    assert insert is not None
    assert (insert.head, insert.settings, insert.format) == (head, settings, name)
    assert text[insert.data_begin :] == data


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SELECT 1 FORMAT TSV",
        "INSERT INTO t SELECT 1",
        "INSERT INTO t (SELECT 1)",
        "INSERT INTO t WITH 1 AS x SELECT x",
        "INSERT INTO t FROM INFILE 'f' FORMAT CSV",
        "INSERT INTO t",
    ],
)
def test_statements_without_data(text: str) -> None:
    assert sql.parse_insert(text) is None


def test_reading_from_a_file() -> None:
    insert = sql.parse_insert("INSERT INTO t (a) SETTINGS x = 1 FORMAT CSV 1")
    assert insert is not None
    assert " ".join(insert.reading("/f", "gzip").split()) == (
        "INSERT INTO t (a) FROM INFILE '/f' COMPRESSION 'gzip' SETTINGS x = 1 FORMAT CSV"
    )
    insert = sql.parse_insert("INSERT INTO t SELECT a FROM input('a UInt8') FORMAT CSV 1")
    assert insert is not None
    assert insert.reading("/f", "").strip() == (
        "INSERT INTO t SELECT a FROM file('/f', CSV, 'a UInt8')"
    )


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("SELECT 1", ""),
        ("SELECT 1 FORMAT JSON", "JSON"),
        ("SELECT 1 format CSV SETTINGS max_threads = 1", "CSV"),
        ("SELECT 'FORMAT x' -- FORMAT y", ""),
        ("SELECT (SELECT 1 AS format)", ""),
    ],
)
def test_output_format(text: str, name: str) -> None:
    assert sql.output_format(text) == name


def test_only_text_outside_strings_is_rewritten() -> None:
    text = "SELECT 'system.processes', query_id FROM system.processes"
    shown = sql.show_query_ids(text)
    assert shown.startswith("SELECT 'system.processes', query_id FROM (SELECT * REPLACE")
    assert sql.show_query_ids("SELECT query_id FROM t") == "SELECT query_id FROM t"


def test_several_statements() -> None:
    assert sql.has_several_statements("SELECT 1; SELECT 2")
    assert not sql.has_several_statements("SELECT ';' ; -- end\n")
