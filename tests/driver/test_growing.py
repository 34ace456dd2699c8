"""The thread that reads the tables gives fields columns when a loop wants them (R14)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.clickhouse.adding import ColumnsRefusedError, add_columns
from sluice.clickhouse.http import Server
from sluice.core.dynamic import DynamicColumns, NewField
from sluice.core.errors import TransientError
from sluice.core.load_spec import LoadSpec
from sluice.driver import growing, refreshing
from sluice.driver.ports import SchemaRead
from tests.driver.schema_reading import Reading, reading_of
from tests.driver.test_specs import LINEAGE, configuration_of
from tests.support.world import wait_for

RULES = DynamicColumns(allow=("a.*",), deny=("d.*",), columns_max=3)


@pytest.fixture
def on_error() -> str:
    return "stop-partition"


@pytest.fixture
def reading(
    tmp_path: Path, clickhouse_url: str, server: Server, database: str, on_error: str
) -> Iterator[Reading]:
    configuration = configuration_of(tmp_path, clickhouse_url, lineage='"auto"')
    clickhouse = replace(
        configuration.clickhouse, user="", password=type(configuration.clickhouse.password)("")
    )
    table = replace(
        configuration.tables[0],
        target=f"{database}.orders",
        unknown_fields="refuse",
        dynamic_columns=RULES,
        on_error=on_error,  # type: ignore[arg-type]
    )
    server.execute(
        f"CREATE TABLE {database}.orders (id UInt64, {LINEAGE}) ENGINE = MergeTree ORDER BY id"
    )
    configuration = replace(configuration, clickhouse=clickhouse, tables=(table,))
    with reading_of(configuration, server, f"{database}.orders") as found:
        yield found


def want(reading: Reading, *fields: tuple[str, str]) -> SchemaRead:
    """Ask for columns, and wait for a reading that knows what came of it."""
    told = len(reading.told)
    reading.reader.want({"orders": tuple(NewField(*field) for field in fields)})
    wait_for(lambda: len(reading.told) > told, 60, "a reading")
    return reading.told[-1]


def names(spec: LoadSpec) -> list[str]:
    return [column.name for column in spec.tables[0].columns if not column.name.startswith("_")]


def test_wanted_columns_are_in_the_next_spec(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    first = want(reading, ("a1", "Int"), ("d1", ""), ("other", "Int"))
    assert names(first.spec) == ["id", "a1"]
    dynamic = first.spec.tables[0].dynamic
    assert dynamic is not None and dynamic.passed_over == ("d1",)
    assert reading.examined == 1 and first.today is not None
    again = want(reading, ("a1", "Int"), ("d1", ""))
    assert again.spec is first.spec and again.today is None
    only_passed_over = want(reading, ("d2", ""))
    assert only_passed_over.today is None, "no table has changed"
    dynamic = only_passed_over.spec.tables[0].dynamic
    assert dynamic is not None and dynamic.passed_over == ("d1", "d2")
    with caplog.at_level(logging.WARNING):
        full = want(reading, ("a2", "Int"), ("a3", "Null"), ("a4", "Int"))
    assert names(full.spec)[-2:] == ["a2", "a3"]
    assert "dynamic_columns.max = 3 is reached" in caplog.text
    assert "column a2 Nullable(Int64) was added" in caplog.text
    dynamic = full.spec.tables[0].dynamic
    assert dynamic is not None and dynamic.passed_over == ("d1", "d2"), "kept by a new reading"


def test_what_two_partitions_saw_of_a_field_is_one_column(reading: Reading) -> None:
    reading.reader._grower.want({"orders": (NewField("a1", "Int"),)})
    found = want(reading, ("a1", "Float"))
    assert found.spec.tables[0].columns[-1].type == "Nullable(Float64)"


def test_servers_that_do_not_do_it_now_are_asked_again(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refreshing, "AGAIN_SECONDS", 0.1)
    real, asked = add_columns, []

    def adds_later(*parts: object) -> dict[str, str]:
        asked.append(parts)
        if len(asked) == 1:
            raise TransientError("read-only now", "wait")
        return real(*parts)  # type: ignore[arg-type]

    monkeypatch.setattr(growing, "add_columns", adds_later)
    told = want(reading, ("a1", "Int"))
    assert len(asked) == 1 and "a1" not in names(told.spec), "whoever still wants it asks again"
    assert "a1" in names(want(reading, ("a1", "Int")).spec)


@pytest.mark.parametrize("on_error", ["stop-partition", "park"])
def test_a_refusal_stands_until_a_person_asks(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, on_error: str
) -> None:
    error = ColumnsRefusedError("columns cannot be added", "GRANT it")

    def refuses(*_: object) -> dict[str, str]:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(growing, "add_columns", refuses)
        refused = want(reading, ("a1", "Int"))
    parks = on_error == "park"
    assert refused.altered == ({"orders": error} if parks else {})
    assert refused.barred == ({} if parks else {"orders": error})
    still = want(reading, ("a1", "Int"))
    assert (still.altered, still.barred) == (refused.altered, refused.barred)
    reading.reader.ask()
    wait_for(lambda: reading.told[-1].asked, 60, "the reading that was asked for")
    assert reading.told[-1].altered == reading.told[-1].barred == {}
    assert "a1" in names(want(reading, ("a1", "Int")).spec)
