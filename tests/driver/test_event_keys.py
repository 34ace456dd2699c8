"""What a deduplication key becomes in the load spec, and which tables cannot have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.claims.stores import StoreAccess
from sluice.config import Configuration
from sluice.core.claims import Deduplicate
from sluice.core.errors import ConfigurationError
from sluice.core.load_spec import LINEAGE_TYPES, Column, TableSpec, parse_spec
from sluice.driver.specs import build_spec, store_access
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


def built(folder: Path, key: str, more: str = "", table: str = "") -> TableSpec:
    configuration = configured(folder, key, more, table)
    facts = {"orders": facts_of(COLUMNS)}
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


def test_expressions_in_a_key(tmp_path: Path) -> None:
    """What they are made of is required; what every message has, is not."""
    assert built(tmp_path, '"lower(concat(source, id))", "request"').require == (
        *("source", "id", "request"),
    )
    assert built(tmp_path, '"_topic", "concat(id, _topic)"').require == ("id",)
    assert built(tmp_path, "\"nullIf(id, '')\"", ', on_null = "row"').require == ()
    assert built(tmp_path, '"_topic", "lower(country)"', ', on_null = "row"').require == ()


@pytest.mark.parametrize(
    ("key", "more", "words"),
    [
        ('"sourc"', "", r'sourc in the key .* no column .* fill; did you mean "source"\?'),
        ('"lower(id)", "sourc"', "", "sourc in the key"),
        ('"hashed"', "", "hashed in the key .* no column of shop.orders that messages fill"),
        ('"lower("', "", "cannot be read: "),
        ('"id / 2"', "", "cannot be computed: "),
        ("\"nullIf(id, '')\"", "", "may be null although its columns are there"),
        ('"lower(id)"', ', on_null = "row"', "cannot be null in shop.orders"),
    ],
)
def test_keys_that_the_table_cannot_have(tmp_path: Path, key: str, more: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        built(tmp_path, key, more)
    assert str(caught.value).startswith("table entry orders: ")
    assert caught.value.hint


def test_access_to_the_store(tmp_path: Path) -> None:
    local = configured(tmp_path, '"id"').deduplication
    assert local is not None
    assert store_access(local) == StoreAccess(f"local:{tmp_path}/sluice-claims")
    section = (
        '[deduplication]\nstore = "rediss://host:1"\nca_file = "ca.pem"\n'
        'password = { file = "secret" }\n'
    )
    far = configured(tmp_path, '"id"', table=section).deduplication
    assert far is not None
    (tmp_path / "secret").write_text("hunter2\n")
    assert store_access(far) == StoreAccess("rediss://host:1", "hunter2", str(tmp_path / "ca.pem"))
    (tmp_path / "secret").write_text("\n")
    with pytest.raises(ConfigurationError, match=r"^password: .*secret has an empty first line"):
        store_access(far)
