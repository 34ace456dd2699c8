"""What a deduplication key becomes in the load spec, and which tables cannot have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import Configuration
from sluice.core.claims import Deduplicate
from sluice.core.errors import ConfigurationError
from sluice.core.load_spec import LINEAGE_TYPES, Column, TableSpec, parse_spec
from sluice.driver.login import login_of_claims
from sluice.driver.specs import build_spec
from tests.config.support import MINIMAL, load_text
from tests.driver.test_specs import facts_of

LINEAGE = tuple(Column(name, type_text) for name, type_text in LINEAGE_TYPES.items())
COLUMNS = (
    Column("source", "LowCardinality(String)"),
    Column("id", "String"),
    Column("request", "Nullable(UUID)"),
    Column("country", "LowCardinality(Nullable(String))"),
    Column("hashed", "UInt64", "MATERIALIZED", "cityHash64(id)"),
    *LINEAGE,
)


def configured(folder: Path, key: str, more: str = "", table: str = "") -> Configuration:
    deduplicate = f'deduplicate = {{ key = [{key}], window = "7d"{more} }}\n'
    return load_text(folder, f"{MINIMAL}{deduplicate}{table}")


def built(
    folder: Path,
    key: str,
    more: str = "",
    table: str = "",
    columns: tuple[Column, ...] = COLUMNS,
) -> TableSpec:
    configuration = configured(folder, key, more, table)
    facts = {"orders": facts_of(columns)}
    spec = build_spec(configuration, "dc1", facts, "UTC", "chdb 1")
    assert parse_spec(spec.canonical()) == spec
    return spec.tables[0]


def test_the_key_is_required_and_the_scope_is_the_table(tmp_path: Path) -> None:
    spec = built(tmp_path, '"source", "id"', table='require = ["id", "request"]\n')
    assert spec.deduplicate == Deduplicate(("source", "id"), 604_800, "orders/default.orders")
    assert spec.require == ("id", "request", "source")


def test_a_scope_that_is_written_stays(tmp_path: Path) -> None:
    spec = built(tmp_path, '"id"', ', scope = "billing", duplicates = "dead-letter"')
    assert spec.deduplicate == Deduplicate(("id",), 604_800, "billing", "dead-letter")


def test_without_deduplicate_nothing_changes(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, MINIMAL)
    spec = build_spec(configuration, "dc1", {"orders": facts_of(COLUMNS)}, "UTC", "chdb 1")
    assert spec.tables[0].deduplicate is None and spec.tables[0].require == ()
    assert "deduplicate" not in spec.canonical()


def test_rows_without_a_key_need_a_key_that_can_be_null(tmp_path: Path) -> None:
    spec = built(tmp_path, '"request", "country"', ', on_null = "row"')
    assert spec.require == ()
    assert spec.deduplicate is not None and spec.deduplicate.on_null == "row"
    with pytest.raises(ConfigurationError, match=r"id in the key .* cannot be null") as caught:
        built(tmp_path, '"request", "id"', ', on_null = "row"')
    assert "would be one event" in str(caught.value)
    assert caught.value.hint == 'Make the column Nullable, or write on_null = "dead-letter".'


def test_a_key_may_be_one_expression(tmp_path: Path) -> None:
    spec = built(tmp_path, '"lower(concat(source, id))"')
    assert spec.require == ("source", "id")
    assert built(tmp_path, "\"nullIf(id, '')\"", ', on_null = "row"').require == ()
    with pytest.raises(ConfigurationError, match="cannot be null"):
        built(tmp_path, '"lower(id)"', ', on_null = "row"')
    with pytest.raises(ConfigurationError, match="cannot be computed"):
        built(tmp_path, '"id / 2"', ', on_null = "row"')


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ('"sourc"', r'sourc in the key .* no column .* fill; did you mean "source"\?'),
        ('"id", "lower(source)"', r"lower\(source\) in the key .* no column"),
        ('"hashed"', "hashed in the key .* no column of shop.orders that messages fill"),
        ('"_offset"', "_offset in the key .* no column of shop.orders that messages fill"),
        ('"concat(id, toString(now()))"', "has now, which says something else the next time"),
        ('"lower("', "cannot be read: "),
        ('"1 + 1"', "names no column of shop.orders that messages fill"),
    ],
)
def test_keys_that_the_table_does_not_have(tmp_path: Path, key: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        built(tmp_path, key)
    assert str(caught.value).startswith("table entry orders: ")
    assert caught.value.hint


@pytest.mark.parametrize("lineage", ["", 'lineage = "auto"\n'])
def test_claims_are_read_back_by_the_lineage(tmp_path: Path, lineage: str) -> None:
    without = tuple(column for column in COLUMNS if column.name != "_source")
    with pytest.raises(ConfigurationError, match="no lineage column _source") as caught:
        built(tmp_path, '"id"', table=lineage, columns=without)
    assert caught.value.hint.startswith("ALTER TABLE `shop`.`orders` ADD COLUMN `_source`")


def test_the_login_of_the_store(tmp_path: Path) -> None:
    local = configured(tmp_path, '"id"').deduplication
    assert local is not None
    assert login_of_claims(local) == (f"local:{tmp_path}/sluice-claims", "", "")
    section = (
        '[deduplication]\nstore = "rediss://host"\npassword_file = "secret"\nca_file = "ca.pem"\n'
    )
    far = configured(tmp_path, '"id"', table=section).deduplication
    assert far is not None
    (tmp_path / "secret").write_text("hunter2\n")
    assert login_of_claims(far) == ("rediss://host", "hunter2", str(tmp_path / "ca.pem"))
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigurationError, match=r"^deduplication.password_file: .* is empty"):
        login_of_claims(far)
