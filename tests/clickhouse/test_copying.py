"""Where a copy of a view reads from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.clickhouse.copying import reading_from
from tests.ops.doctor_facts import FACTS

STORED = ("shop", "s")


@pytest.mark.parametrize(
    ("select", "copied"),
    [
        ("SELECT id FROM shop.orders", "SELECT id FROM `shop`.`s` AS `orders`"),
        ("SELECT orders.id FROM shop.orders AS o", "SELECT orders.id FROM `shop`.`s` AS o"),
        (
            "SELECT 'FROM shop.orders' FROM (SELECT * FROM `shop`.orders WHERE id > 1)",
            "SELECT 'FROM shop.orders' FROM (SELECT * FROM `shop`.`s` AS `orders` WHERE id > 1)",
        ),
        (
            "SELECT * FROM shop.orders INNER JOIN shop.users USING (id)",
            "SELECT * FROM `shop`.`s` AS `orders` INNER JOIN shop.users USING (id)",
        ),
    ],
)
def test_the_table_that_a_view_reads_is_another_one(select: str, copied: str) -> None:
    assert reading_from(select, FACTS, STORED) == copied


@pytest.mark.parametrize(
    "select",
    [
        "",
        "SELECT id FROM other.orders",
        "SELECT id FROM shop.orders2",
        "SELECT shop.orders.id FROM shop.orders",
        "SELECT id FROM shop.users INNER JOIN shop.orders USING (id)",
        "SELECT id FROM shop.orders WHERE id IN (SELECT id FROM shop.orders)",
    ],
)
def test_what_names_it_otherwise_than_once_after_from_is_not_copied(select: str) -> None:
    assert reading_from(select, FACTS, STORED) is None


def test_names_in_quotes() -> None:
    facts = replace(FACTS, table=".inner_id.7")
    found = reading_from("SELECT 1 FROM shop.`.inner_id.7`", facts, STORED)
    assert found == "SELECT 1 FROM `shop`.`s` AS `.inner_id.7`"
