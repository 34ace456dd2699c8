"""A [[table]] that stands for an entry of each of its topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import Configuration, load
from sluice.config.applied import differences, document_of, under
from sluice.config.table import TableConfiguration
from sluice.core.errors import ConfigurationError
from tests.config.support import MINIMAL, changed, findings_of, load_text

TOPICS = '"db.shop.orders", "db.shop.items"'


def entry(settings: str, topics: str = TOPICS) -> str:
    """A file with one entry of these topics."""
    begin = MINIMAL[: MINIMAL.index("[[table]]")]
    begin = changed('topics = ["orders"]', f"topics = [{topics}]", begin)
    return f"{begin}[[table]]\ntopics = [{topics}]\n{settings}\n"


def by_name(configuration: Configuration) -> dict[str, TableConfiguration]:
    return {table.name: table for table in configuration.tables}


def test_each_topic_has_an_entry(tmp_path: Path) -> None:
    text = entry('name = "shop-{table}"\ntarget = "shop.{table}"\nsort = true')
    orders, items = load_text(tmp_path, text).tables
    assert (orders.name, orders.target, orders.topics) == (
        "shop-orders",
        "shop.orders",
        ("db.shop.orders",),
    )
    assert (items.name, items.target, items.topics) == (
        "shop-items",
        "shop.items",
        ("db.shop.items",),
    )
    assert orders.sort and items.sort


def test_without_a_target_the_name_is_the_table(tmp_path: Path) -> None:
    assert [t.target for t in load_text(tmp_path, entry('name = "{table}"')).tables] == [
        "default.orders",
        "default.items",
    ]
    text = entry('name = "{topic}"', '"shop.orders", "items"')
    assert [t.target for t in load_text(tmp_path, text).tables] == ["shop.orders", "default.items"]


def test_all_texts_of_an_entry_may_name_its_topic(tmp_path: Path) -> None:
    (tmp_path / "orders.avsc").write_text("of orders")
    (tmp_path / "items.avsc").write_text("of items")
    text = entry(
        'name = "{table}"\nformat = "AvroSingleObject"\noptions = { schema_file = "{table}.avsc" }'
        '\ncheck = ["a", "\'{topic}\' = b"]'
    )
    orders, items = load_text(tmp_path, text).tables
    assert orders.options == (("schema", "of orders"),)
    assert items.options == (("schema", "of items"),)
    assert items.check == ("a", "'db.shop.items' = b")


def test_a_further_topic_changes_no_other_entry(tmp_path: Path) -> None:
    settings = 'name = "shop-{table}"\ntarget = "shop.{table}"\ntombstones = "skip"'
    before = load_text(tmp_path, entry(settings))
    after = load_text(tmp_path, entry(settings, f'"db.shop.carts", {TOPICS}'))
    assert by_name(before).items() < by_name(after).items()
    found = differences(document_of(before), document_of(after))
    assert [(one.kind, one.what, one.name) for one in found] == [
        ("add", "topic", "db.shop.carts"),
        ("add", "table", "shop-carts"),
    ]
    assert by_name(under(before, document_of(after), "version 2", {})) == by_name(after)


def test_variables_are_no_placeholders(tmp_path: Path) -> None:
    text = entry('name = "${topic}-{table}"', '"shop.orders"')
    (only,) = load_text(tmp_path, text, {"topic": "eu"}).tables
    assert (only.name, only.topics) == ("eu-orders", ("shop.orders",))


def test_braces_in_an_entry_of_no_placeholder_are_text(tmp_path: Path) -> None:
    (only,) = load_text(tmp_path, entry('name = "one"\ncheck = ["a != \'{topic}\'"]')).tables
    assert only.check == ("a != '{topic}'",)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ('name = "one"\ntarget = "shop.{table}"', "name must hold {topic} or {table}"),
        (
            'name = "shop-{table}"\ntarget = "shop.all"',
            'target is "shop.all" for the topic "db.shop.orders" and for "db.shop.items"',
        ),
        ('name = "{table}"\ntopic_pattern = "a.*"', "leave topic_pattern out"),
    ],
)
def test_what_is_not_clear(tmp_path: Path, settings: str, words: str) -> None:
    (line,) = findings_of(tmp_path, entry(settings))
    assert line.startswith("sluice.toml: table[1]: ") and words in line, line


def test_two_topics_of_one_name_and_one_topic_twice(tmp_path: Path) -> None:
    (line,) = findings_of(tmp_path, entry('name = "{table}"', '"a.x", "b.x"'))
    assert 'name is "x" for the topic "a.x" and for "b.x"' in line
    (line,) = findings_of(tmp_path, entry('name = "{table}"', '"a.x", "a.x"'))
    assert 'name is "x" for the topic "a.x" and for "a.x"' in line


def test_a_topic_that_makes_no_table_is_named(tmp_path: Path) -> None:
    (line,) = findings_of(tmp_path, entry('name = "s-{table}"\ntarget = "shop.{topic}"', '"a.b"'))
    assert line.startswith('sluice.toml: table[s-b].target: "shop.a.b" is not a table')


@pytest.mark.parametrize("topic", ["${T}", "${ENV}_orders", "shop.${T}"])
def test_a_topic_of_which_a_variable_is_a_part_has_no_entry_of_its_own(
    tmp_path: Path, topic: str
) -> None:
    """`{table}` would be `${T}`, which is `shop.orders` only later: a table of another database."""
    text = entry('name = "shop-{table}"\ntarget = "{table}"', f'"db.shop.items", "{topic}"')
    (line,) = findings_of(tmp_path, text, {"T": "shop.orders", "ENV": "prod"})
    assert line.startswith(f'sluice.toml: table[1]: the topic "{topic}" has a variable'), line
    # An entry of one topic may name it so.
    text = entry('name = "orders"\ntarget = "shop.orders"', f'"{topic}"')
    assert load_text(tmp_path, text, {"T": "orders", "ENV": "prod"}).tables[0].topics


def test_without_topics_nothing_can_stand_for_each(tmp_path: Path) -> None:
    text = changed('topics = ["orders"]\n[batch]', 'topic_pattern = ".*"\n[batch]')
    text = changed('name = "orders"\ntopics = ["orders"]', 'name = "{topic}"', text)
    (line,) = findings_of(tmp_path, text)
    assert "name them in topics" in line


def test_errors_of_several_files_name_the_file_of_the_entry(tmp_path: Path) -> None:
    folder = tmp_path / "pipeline.d"
    folder.mkdir()
    (folder / "main.toml").write_text(MINIMAL)
    shop = entry('name = "shop-{table}"\nformat = "CSW"')
    (folder / "shop.toml").write_text(
        shop[: shop.index("[pipeline]")] + shop[shop.index("[[table]]") :]
    )
    with pytest.raises(ConfigurationError) as caught:
        load(folder, {})
    line = str(caught.value).splitlines()[0]
    assert line.startswith(f"{folder}/shop.toml: table[shop-orders].format: "), line
