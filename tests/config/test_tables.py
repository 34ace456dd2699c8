"""What a [[table]] may say about formats, rows, routes, mappings and checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import TableConfiguration, load
from sluice.core.dynamic import DynamicColumns
from sluice.core.errors import ConfigurationError
from sluice.core.formats import FORMATS, OPTIONS
from sluice.core.load_spec import Mapped, Route
from sluice.decode.formats import FORMATS as DECODED
from tests.config.support import MINIMAL


def loaded(folder: Path, more: str) -> TableConfiguration:
    path = folder / "sluice.toml"
    path.write_text(f"{MINIMAL}\n{more}\n")
    (table,) = load(path, {}).tables
    return table


def test_all_that_a_table_may_say(tmp_path: Path) -> None:
    (tmp_path / "order.proto").write_text('syntax = "proto3";\n')
    table = loaded(
        tmp_path,
        """
        format = "Protobuf"
        options = { schema_file = "order.proto", message = "Order" }
        rows = "many"
        bad_rows = "drop-row"
        decompress = "zstd"
        route = { header = "" }
        require = ["b", "a"]
        check = ["a > 1", "b != ''"]
        [table.columns]
        b = "bee"
        a = { path = "x.y" }
        c = { value = 7 }
        d = { kafka = "timestamp" }
        e = { header = "trace" }
        f = { sql = "a + 1" }
        g = { value = true }
        [table.fields]
        z = "UInt8"
        """,
    )
    assert table.format == "Protobuf"
    assert table.options == (("message", "Order"), ("schema", 'syntax = "proto3";\n'))
    assert (table.rows, table.bad_rows) == ("many", "drop-row")
    assert table.route == Route("header", "", "orders")
    assert table.decompress == "zstd"
    assert (table.require, table.check) == (("b", "a"), ("a > 1", "b != ''"))
    assert table.columns == (
        Mapped("a", "path", "x.y"),
        Mapped("b", "field", "bee"),
        Mapped("c", "value", "7"),
        Mapped("d", "kafka", "_timestamp"),
        Mapped("e", "header", "trace"),
        Mapped("f", "sql", "a + 1"),
        Mapped("g", "value", "true"),
    )
    assert table.fields == (("z", "UInt8"),)


@pytest.mark.parametrize(
    ("written", "route"),
    [
        ('{ header = "a" }', Route("header", "", "a")),
        ('{ header = "a", name = "kind" }', Route("header", "kind", "a")),
        ('{ key_prefix = "vip:" }', Route("key-prefix", "", "vip:")),
        ('{ envelope = "" }\nformat = "SQLBatchRequest"', Route("envelope", "", "orders")),
        ('{ envelope = "a" }\nformat = "RawBLOB"', Route("envelope", "", "a")),
        (
            '{ envelope = "a" }\nformat = "Protobuf"\noptions = { schema = "x", message = "m" }',
            Route("envelope", "", "a"),
        ),
    ],
)
def test_routes(tmp_path: Path, written: str, route: Route) -> None:
    assert loaded(tmp_path, f"route = {written}").route == route


def test_an_option_whose_variable_is_not_set_is_not_missing_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, 'format = "Protobuf"\noptions = { message = "${NO}", schema = "x" }')
    (line,) = str(caught.value).splitlines()
    assert line.endswith("options.message: the environment variable NO is not set")


def dynamic(rules: str, *more: str) -> str:
    lines = ('unknown_fields = "refuse"', f"dynamic_columns = {{ {rules} }}", *more)
    return "\n".join(lines)


def test_dynamic_columns(tmp_path: Path) -> None:
    assert loaded(tmp_path, "").dynamic_columns is None
    whole = loaded(tmp_path, dynamic('allow = ["a.*", "b"], deny = ["ab"], max = 7'))
    assert whole.dynamic_columns == DynamicColumns(("a.*", "b"), ("ab",), 7)
    short = loaded(tmp_path, dynamic('allow = ["a.*"]', 'rows = "many"', 'require = ["a"]'))
    assert short.dynamic_columns == DynamicColumns(("a.*",), (), 50)


def test_every_option_is_explained_and_every_required_one_known() -> None:
    for one in FORMATS.values():
        assert set(one.required) <= set(one.options) <= set(OPTIONS), one.name


def test_every_format_that_may_be_named_has_a_decoder() -> None:
    differing = set(DECODED) ^ set(FORMATS)
    assert not differing, f"{differing}: no line in _FORMATS of sluice/core/formats.py"


@pytest.mark.parametrize(
    ("written", "key", "words"),
    [
        ('format = "JSONEachRw"', "format", 'did you mean "JSONEachRow"'),
        ('format = "Protobuf"', "options.message", "is missing: the name of the message type"),
        ('options = { delimiter = ";" }', "options.delimiter", "no option of JSONEachRow"),
        ('format = "CSV"\noptions = { delimeter = ";" }', "options.delimeter", '"delimiter"'),
        ('format = "CSV"\noptions = { delimiter = 1 }', "options.delimiter", "must be a string"),
        (
            'format = "Protobuf"\noptions = { schema_file = "no.proto", message = "M" }',
            "options.schema_file",
            "No such file",
        ),
        (
            'format = "Protobuf"\noptions = { schema = "x" }',
            "options.message",
            "is missing: the name of the message type",
        ),
        ('format = "Protobuf"\noptions = { message = "M" }', "options.schema", "is missing"),
        (
            'format = "Protobuf"\noptions = { message = "", schema = "x" }',
            "options.message",
            "is missing",
        ),
        (
            'format = "AvroSingleObject"\noptions = { schema = "x", schema_file = "own.avsc" }',
            "options.schema_file",
            "is given twice: schema and schema_file; keep one of them",
        ),
        (
            'format = "Protobuf"\noptions = { message = "M", schema_file = "own.avsc", '
            'descriptors = "x" }',
            "options.descriptors",
            "is given beside schema; keep one of them",
        ),
        (
            'format = "Protobuf"\noptions = { message = "M", "schema:a.proto" = "x", '
            'descriptors = "x" }',
            "options.descriptors",
            "is given beside schema:a.proto; keep one of them",
        ),
        ('bad_rows = "drop-row"', "bad_rows", 'needs rows = "many"'),
        ('rows = "several"', "rows", 'use "one" or "many"'),
        ("route = {}", "route", "says one of header, key_prefix, envelope"),
        ('route = { header = "a", key_prefix = "b" }', "route", "says one of"),
        ('route = { header = "a", names = "b" }', "route.names", "unknown key"),
        ('route = { key_prefix = "a", name = "b" }', "route.name", "is that of a header"),
        ('route = { envelope = "a" }', "route", "messages of JSONEachRow have none"),
        ('columns = { a = { path = "x", sql = "y" } }', "columns.a", "says one of"),
        ('columns = { a = { paths = "x" } }', "columns.a", "says one of"),
        ('columns = { a = { kafka = "offsets" } }', "columns.a", 'did you mean "offset"?'),
        ('columns = { a = { kafka = "now" } }', "columns.a", "DEFAULT now()"),
        ("columns = { a = { value = [1] } }", "columns.a", "a list"),
        ("columns = { a = 1 }", "columns.a", "must be a string"),
        ("fields = { a = 1 }", "fields.a", "must be a string"),
        ('require = "a"', "require", "must be a list"),
        ('check = ["a", "a"]', "check[2]", "named twice"),
        (dynamic('allow = ["a("]'), "dynamic_columns.allow[1]", "not a regular expression"),
        ('decompress = "gz"', "decompress", 'use "gzip" or "zstd" or "lz4" or "snappy"'),
        (
            'format = "SQLBatchRequest"\nrows = "many"\ndecompress = "lz4"\n'
            'route = { envelope = "" }',
            "route",
            "by envelope does not go with decompress",
        ),
        (
            dynamic('allow = ["a"]', 'decompress = "lz4"'),
            "dynamic_columns",
            "does not go with decompress",
        ),
        ('columns = { a = { key = "id" } }', "columns.a", "needs the section [table.key]"),
        ('key = { format = "CSV" }', "key", "no column reads a field of it"),
        ('key = { format = "Parquet" }', "key.format", "a key is one row"),
        ('key = { format = "Protobuf" }', "key.options.message", "is missing"),
        (
            'key = { format = "Protobuf", options = { schema = "x" } }',
            "key.options.message",
            "is missing",
        ),
        (
            'key = { format = "AvroSingleObject", options = { schema = "x", schema_file = "y" } }',
            "key.options.schema_file",
            "is given twice",
        ),
        ('key = { form = "CSV" }', "key.form", "unknown key"),
        (
            'columns = { a = { key = "id" } }\nkey = { format = "AvroConfluent" }',
            "key.format",
            "needs the section [registry]",
        ),
        ('timestamps = "s"', "timestamps", 'use "ms" or "us" or "ns"'),
        ('envelope = "kafka"', "envelope", 'use "debezium" or "connect"'),
        ('format = "CSV"\nenvelope = "connect"', "envelope", "needs one of the formats JSONEach"),
        ('envelope = "debezium"\nrows = "many"', "envelope", 'needs rows = "one"'),
        (
            dynamic('allow = ["a"]', 'envelope = "connect"'),
            "dynamic_columns",
            "does not go with envelope",
        ),
        ('format = "JSONConfluent"\noptions = { validate = "yes" }', "options.validate", "'true'"),
        (dynamic("max = 5"), "dynamic_columns.allow", "is missing"),
        (dynamic("allow = []"), "dynamic_columns.allow", "must not be empty"),
        (dynamic('allow = ["a"], max = 0'), "dynamic_columns.max", "use 1 or more"),
        (dynamic('allow = ["a"], max = true'), "dynamic_columns.max", "not true"),
        (dynamic('allow = ["a"], forbid = ["b"]'), "dynamic_columns.forbid", "unknown key"),
        ("dynamic_columns = true", "dynamic_columns", "must be a table"),
        (
            'dynamic_columns = { allow = ["a"] }',
            "dynamic_columns",
            'needs unknown_fields = "refuse": fields that are ignored are not seen',
        ),
        (
            dynamic('allow = ["a"]', 'format = "CSV"'),
            "dynamic_columns",
            'needs format = "JSONEachRow": new fields of CSV get no columns',
        ),
        (
            dynamic('allow = ["a"]', 'rows = "many"', 'bad_rows = "drop-row"'),
            "dynamic_columns",
            'needs bad_rows = "dead-letter"',
        ),
        (
            dynamic('allow = ["a"]', 'columns = { b = "c" }'),
            "dynamic_columns",
            "does not go with timestamps, [table.columns]",
        ),
    ],
)
def test_what_a_table_cannot_say(tmp_path: Path, written: str, key: str, words: str) -> None:
    (tmp_path / "own.avsc").write_text("x")
    with pytest.raises(ConfigurationError) as caught:
        loaded(tmp_path, written.replace("\\\n", "\n"))
    lines = str(caught.value).splitlines()
    found = [line for line in lines if f"table[orders].{key}: " in line]
    assert found and words in found[0], lines
