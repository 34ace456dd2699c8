"""What of a configuration is applied, and how it is put under another file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.config.applied import Difference, differences, document_of, under
from sluice.core.errors import ConfigurationError
from tests.config.support import MINIMAL, changed, load_text

MORE = MINIMAL.replace('topics = ["orders"]\n[batch]', 'topics = ["orders", "clicks"]\n[batch]')
MORE += '[[table]]\nname = "clicks"\ntopics = ["clicks"]\non_null = "${ON_NULL}"\n'
ENVIRONMENT = {"ON_NULL": "default", "PASSWORD": "secret-7"}


def test_a_document_has_no_secret_and_nothing_of_a_machine(tmp_path: Path) -> None:
    text = changed(
        'durability = "single"', 'durability = "single"\npassword = "secret-8"\nuser = "u"', MORE
    )
    text = text.replace("[batch]", '[connector.kafka]\n"sasl.password" = "secret-9"\n[batch]')
    document = document_of(load_text(tmp_path, text, ENVIRONMENT))
    assert json.loads(document) == {
        "connector": {"dc1": {"topics": ["clicks", "orders"]}},
        "table": [
            {"name": "clicks", "topics": ["clicks"], "on_null": "${ON_NULL}"},
            {"name": "orders", "topics": ["orders"]},
        ],
    }


def test_the_order_of_entries_and_topics_and_moments_make_no_difference(tmp_path: Path) -> None:
    start = 'start = 2026-01-31T00:00:00Z\ntopics = ["orders"]\n[batch]'
    one = load_text(tmp_path, MINIMAL.replace('topics = ["orders"]\n[batch]', start))
    again = under(one, document_of(one), "version 1", {})
    assert again.connectors == one.connectors and document_of(again) == document_of(one)


PROTO = """\
syntax = "proto3";
message Order {
  uint64 id = 1; // not a ${VARIABLE}, nor $${TWO}
  string name = 2;
}
"""
KEY = '{"type": "record", "name": "K", "fields": [{"name": "user", "type": "long"}]}'
WITH_FILES = (
    MINIMAL
    + """\
format = "Protobuf"
options = { schema_file = "${FOLDER}/order.proto", message = "Order" }
columns = { user = { key = "user" } }
key = { format = "AvroSingleObject", options = { schema_file = "key.avsc" } }
"""
)


def test_the_texts_of_files_are_applied_and_not_their_names(tmp_path: Path) -> None:
    """Who edits one, and starts a driver, has not applied it; and a driver elsewhere needs none."""
    environment = {"FOLDER": str(tmp_path)}
    (tmp_path / "order.proto").write_text(PROTO)
    (tmp_path / "key.avsc").write_text(KEY)
    before = load_text(tmp_path, WITH_FILES, environment)
    document = document_of(before)
    (tmp_path / "order.proto").write_text(PROTO.replace("string name", "bytes name"))
    edited = load_text(tmp_path, WITH_FILES, environment)
    assert edited.tables != before.tables
    assert differences(document, document_of(edited)) == [
        Difference(
            *("change", "table", "orders", ""),
            ('options.schema: from line 4 on "  string name = 2;" becomes "  bytes name = 2;"',),
        )
    ]
    for file in ("order.proto", "key.avsc"):
        (tmp_path / file).unlink()
    applied = under(load_text(tmp_path, MINIMAL), document, "version 1", environment)
    assert applied.tables == before.tables and document_of(applied) == document


def test_a_version_counts_and_all_else_is_the_files(tmp_path: Path) -> None:
    applied = document_of(load_text(tmp_path, MORE, ENVIRONMENT))
    text = MINIMAL.replace("localhost:9092", "east:9092").replace("8123", "8124")
    found = under(load_text(tmp_path, text), applied, "version 3", ENVIRONMENT)
    assert [table.name for table in found.tables] == ["clicks", "orders"]
    assert found.tables[0].on_null == "default"
    connector = found.connector("dc1")
    assert (connector.brokers, connector.topics) == ("east:9092", ("clicks", "orders"))
    assert found.clickhouse.shards[0].replicas == ("http://localhost:8124",)


def test_what_does_not_fit_the_file_names_the_version(tmp_path: Path) -> None:
    one = load_text(tmp_path, MINIMAL)
    tables = [{"name": "orders", "topics": ["orders"], "shards": ["s9"]}]
    document = json.dumps({"connector": {}, "table": tables})
    with pytest.raises(ConfigurationError) as caught:
        under(one, document, "version 3", {})
    assert str(caught.value).startswith(
        f'{one.path} under version 3: table[orders].shards: no shard is named "s9"'
    )
    assert f"`sluice apply {one.path}` puts the file in its place" in caught.value.hint


def test_differences_in_words(tmp_path: Path) -> None:
    one = document_of(load_text(tmp_path, MINIMAL))
    two = document_of(load_text(tmp_path, MORE, ENVIRONMENT))
    assert differences(one, two) == [
        Difference("add", "topic", "clicks", "dc1"),
        Difference("add", "table", "clicks"),
    ]
    assert [(each.kind, each.what) for each in differences(two, one)] == [
        ("remove", "topic"),
        ("remove", "table"),
    ]
    other = MINIMAL + 'format = "CSV"\n'
    other = other.replace("[batch]", 'unrouted = "skip"\n[batch]').replace("dc1", "dc1")
    three = document_of(load_text(tmp_path, other))
    assert differences(one, three) == [
        Difference("change", "connector", "dc1", keys=('unrouted: not set becomes "skip"',)),
        Difference("change", "table", "orders", keys=('format: not set becomes "CSV"',)),
    ]
    assert [each[:3] for each in differences(one, one.replace("dc1", "dc2"))] == [
        ("remove", "connector", "dc1"),
        ("add", "connector", "dc2"),
    ]
