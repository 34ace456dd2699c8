"""Plans of inserts: pure."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from hypothesis import given
from hypothesis import strategies as st

from sluice.clickhouse.insert import plan_insert, query_id_of, query_id_prefix
from sluice.clickhouse.sql import identifier, literal, render

TOKEN = "orders/0/dc1/AbCd/orders/3/orders+shop.orders/s1/10-20"


def test_the_plan_names_columns_token_and_settings() -> None:
    body = memoryview(b"block")
    plan = plan_insert("shop", "orders", ["id", "a`b"], body, TOKEN, "q-1", {"async_insert": "0"})
    keys = parse_qs(urlsplit(plan.path).query)
    assert keys["query"] == ["INSERT INTO `shop`.`orders` (`id`, `a\\`b`) FORMAT Native"]
    assert keys["insert_deduplication_token"] == [TOKEN]
    assert keys["query_id"] == ["q-1"]
    assert keys["async_insert"] == ["0"]
    assert plan.body[-1] is body
    assert plan.body_bytes == 5


def test_no_token_for_servers_without() -> None:
    plan = plan_insert("shop", "orders", ["id"], b"", None, "q", {})
    assert "insert_deduplication_token" not in plan.path


def test_a_long_statement_moves_into_the_body() -> None:
    columns = [f"column_with_a_long_name_{number}" for number in range(1000)]
    plan = plan_insert("shop", "orders", columns, b"block", TOKEN, "q", {})
    assert len(plan.path) < 1000
    assert plan.body == (plan.query.encode() + b"\n", b"block")


def test_query_ids_derive_from_tokens() -> None:
    prefix = query_id_prefix(TOKEN)
    assert prefix.startswith("sluice-")
    assert len(prefix) == len("sluice-") + 24
    assert query_id_of(TOKEN, "a1") == f"{prefix}-a1"
    assert query_id_prefix(TOKEN + "x") != prefix


@given(st.text())
def test_literals_close_where_they_open(text: str) -> None:
    quoted = literal(text)
    inside = quoted[1:-1].replace("\\\\", "").replace("\\'", "")
    assert quoted[0] == quoted[-1] == "'"
    assert "'" not in inside
    assert not inside.endswith("\\")


def test_render_fills_names_and_values() -> None:
    sql = "SELECT {n:UInt64} FROM {t:Identifier} WHERE has({l:Array(String)}, {s:String})"
    assert render(sql, {"n": 2**64 - 1, "t": "a b", "l": ["x"], "s": "it's {n:UInt64}"}) == (
        "SELECT 18446744073709551615 FROM `a b` WHERE has(['x'], 'it\\'s {n:UInt64}')"
    )
    assert identifier("x`y") == "`x\\`y`"
