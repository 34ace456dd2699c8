"""Spark's types into ClickHouse's: values at the limits, and what is refused before and at them."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_type

from sluice.clickhouse.capabilities import insert_settings, read_capabilities
from sluice.clickhouse.http import Server
from sluice.clickhouse.schema import TableFacts, describe_table
from sluice.core.errors import ConfigurationError
from sluice.decode.engine.types import parse_type
from sluice.stream.columns import plan_columns
from sluice.stream.errors import ValueRefusedError
from sluice.stream.staging import InsertManner, Stage
from sluice.stream.values import convert
from tests.support.fixtures import fresh_database

_DOCUMENT = Path(__file__).parents[2] / "docs" / "STREAMS.md"
_D = decimal.Decimal
_UTC = datetime.UTC
_DATE = datetime.date
_NAMED = t.StructType([t.StructField("a", t.LongType(), False), t.StructField("b", t.StringType())])
_LISTS = t.ArrayType(t.ArrayType(t.IntegerType(), False), False)


def _at(*parts: int) -> datetime.datetime:
    return datetime.datetime(*parts, tzinfo=_UTC)  # type: ignore[arg-type, misc]


#: Spark's type, ClickHouse's, values, and what toString gives for them in UTC.
FITTING: list[tuple[t.DataType, str, list[Any], list[str]]] = [
    (t.BooleanType(), "Bool", [True, False], ["true", "false"]),
    (t.ByteType(), "Int8", [-128, 127], ["-128", "127"]),
    (t.ShortType(), "Int16", [-32768, 32767], ["-32768", "32767"]),
    (t.IntegerType(), "Int32", [-(2**31), 2**31 - 1], ["-2147483648", "2147483647"]),
    (t.LongType(), "Int64", [-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)]),
    (t.LongType(), "UInt8", [0, 255], ["0", "255"]),
    (t.LongType(), "UInt16", [0, 65535], ["0", "65535"]),
    (t.LongType(), "UInt32", [0, 2**32 - 1], ["0", str(2**32 - 1)]),
    (t.LongType(), "UInt64", [0, 2**63 - 1], ["0", str(2**63 - 1)]),
    (t.LongType(), "Int8", [-128, 127], ["-128", "127"]),
    (t.LongType(), "Int128", [-(2**63), 2**63 - 1], [str(-(2**63)), str(2**63 - 1)]),
    (t.LongType(), "UInt256", [0, 2**63 - 1], ["0", str(2**63 - 1)]),
    (t.ByteType(), "LowCardinality(Int64)", [-1, 5], ["-1", "5"]),
    (t.FloatType(), "Float32", [0.5, -3.5e38 * 0.9], ["0.5", "-3.15e38"]),
    (t.FloatType(), "Float64", [0.5, float("inf")], ["0.5", "inf"]),
    (t.DoubleType(), "Float64", [5e-324, float("-inf")], ["5e-324", "-inf"]),
    (t.DecimalType(9, 2), "Decimal(9, 2)", [_D("-9999999.99")], ["-9999999.99"]),
    (t.DecimalType(18, 0), "Decimal(18, 0)", [_D(10**18 - 1)], ["9" * 18]),
    (
        t.DecimalType(38, 18),
        "Decimal(38, 18)",
        [_D("9" * 20 + "." + "9" * 18)],
        ["9" * 20 + "." + "9" * 18],
    ),
    (
        t.DecimalType(38, 2),
        "Decimal(76, 10)",
        [_D("-" + "9" * 36 + ".99")],
        ["-" + "9" * 36 + ".99"],
    ),
    (t.DecimalType(38, 2), "Decimal(10, 2)", [_D("99999999.99")], ["99999999.99"]),
    (t.DecimalType(20, 0), "UInt64", [_D(2**64 - 1), _D(0)], [str(2**64 - 1), "0"]),
    (t.DecimalType(20, 0), "Int8", [_D(-128)], ["-128"]),
    (t.DecimalType(38, 0), "Int128", [_D("-" + "9" * 38)], ["-" + "9" * 38]),
    (t.DecimalType(38, 0), "UInt256", [_D("9" * 38)], ["9" * 38]),
    (t.StringType(), "String", ["", "ä\0\n'", "x" * 1000], ["", "ä\0\n'", "x" * 1000]),
    (t.StringType(), "LowCardinality(String)", ["a", "b", "a"], ["a", "b", "a"]),
    (t.StringType(), "FixedString(3)", ["abc", "xyz"], ["abc", "xyz"]),
    (t.StringType(), "Enum8('a' = 1, 'it\\'s' = -2)", ["a", "it's"], ["a", "it's"]),
    (t.StringType(), "Enum16('x' = 1000)", ["x"], ["x"]),
    (
        t.StringType(),
        "UUID",
        ["01234567-89ab-cdef-0123-456789abcdef", "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF"],
        ["01234567-89ab-cdef-0123-456789abcdef", "ffffffff-ffff-ffff-ffff-ffffffffffff"],
    ),
    (t.StringType(), "IPv4", ["0.0.0.0", "255.249.10.1"], ["0.0.0.0", "255.249.10.1"]),
    (
        t.StringType(),
        "IPv6",
        ["2001:db8::1", "::", "1::", "::1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::ffff:1.2.3.4"],
        ["2001:db8::1", "::", "1::", "::1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:0", "::ffff:1.2.3.4"],
    ),
    (t.CharType(3), "String", ["a  "], ["a  "]),
    (t.VarcharType(3), "LowCardinality(String)", ["abc"], ["abc"]),
    (t.BinaryType(), "String", [b"ab", b"\0"], ["ab", "\0"]),
    (t.BinaryType(), "FixedString(2)", [b"ab"], ["ab"]),
    (t.DateType(), "Date", [_DATE(1970, 1, 1), _DATE(2149, 6, 6)], ["1970-01-01", "2149-06-06"]),
    (
        t.DateType(),
        "Date32",
        [_DATE(1900, 1, 1), _DATE(2299, 12, 31)],
        ["1900-01-01", "2299-12-31"],
    ),
    (
        t.TimestampType(),
        "DateTime('UTC')",
        [_at(1970, 1, 1), _at(2106, 2, 7, 6, 28, 15)],
        ["1970-01-01 00:00:00", "2106-02-07 06:28:15"],
    ),
    (
        t.TimestampType(),
        "DateTime64(6, 'UTC')",
        [_at(1900, 1, 1), _at(2299, 12, 31, 23, 59, 59, 999999)],
        ["1900-01-01 00:00:00.000000", "2299-12-31 23:59:59.999999"],
    ),
    (
        t.TimestampType(),
        "DateTime64(3, 'UTC')",
        [_at(1900, 1, 1, 0, 0, 0, 1000), _at(2299, 12, 31, 23, 59, 59, 999000)],
        ["1900-01-01 00:00:00.001", "2299-12-31 23:59:59.999"],
    ),
    (
        t.TimestampType(),
        "DateTime64(1, 'UTC')",
        [_at(2026, 1, 1, 0, 0, 0, 100000)],
        ["2026-01-01 00:00:00.1"],
    ),
    (
        t.TimestampType(),
        "DateTime64(9, 'UTC')",
        [_at(1900, 1, 1), _at(2262, 4, 11, 23, 47, 16, 854775)],
        ["1900-01-01 00:00:00.000000000", "2262-04-11 23:47:16.854775000"],
    ),
    (
        t.TimestampNTZType(),
        "DateTime64(6, 'UTC')",
        [datetime.datetime(2026, 3, 29, 2, 30)],
        ["2026-03-29 02:30:00.000000"],
    ),
    (
        t.TimeType(6),
        "Time64(6)",
        [datetime.time(0), datetime.time(23, 59, 59, 999999)],
        ["00:00:00.000000", "23:59:59.999999"],
    ),
    (t.TimeType(6), "Time64(3)", [datetime.time(1, 2, 3, 4000)], ["01:02:03.004"]),
    (t.ArrayType(t.LongType(), False), "Array(UInt16)", [[], [1, 65535]], ["[]", "[1,65535]"]),
    (t.ArrayType(t.LongType()), "Array(Nullable(Int64))", [[None, -1]], ["[NULL,-1]"]),
    (_LISTS, "Array(Array(Int64))", [[[1], []], []], ["[[1],[]]", "[]"]),
    (
        t.MapType(t.StringType(), t.IntegerType(), False),
        "Map(String, UInt8)",
        [{"a": 1, "b": 255}, {}],
        ["{'a':1,'b':255}", "{}"],
    ),
    (_NAMED, "Tuple(a UInt8, b Nullable(String))", [{"a": 255, "b": None}], ["(255,NULL)"]),
]

#: Spark's type, ClickHouse's, and a value that cannot be stored as it is.
REFUSED_VALUES: list[tuple[t.DataType, str, Any]] = [
    (t.LongType(), "UInt8", 256),
    (t.LongType(), "UInt64", -1),
    (t.LongType(), "Int32", 2**31),
    (t.LongType(), "UInt256", -1),
    (t.ByteType(), "UInt8", -1),
    (t.DecimalType(38, 2), "Decimal(10, 2)", _D("100000000.00")),
    (t.DecimalType(20, 0), "UInt64", _D(2**64)),
    (t.DecimalType(20, 0), "UInt64", _D(-1)),
    (t.DecimalType(38, 0), "UInt128", _D(-1)),
    (t.StringType(), "FixedString(3)", "abcd"),
    (t.StringType(), "FixedString(3)", "äb\0"),
    (t.StringType(), "Enum8('a' = 1)", "b"),
    (t.StringType(), "UUID", "not one"),
    (t.StringType(), "IPv4", "256.1.1.1"),
    (t.StringType(), "IPv4", "1.1.1"),
    (t.StringType(), "IPv6", "1::2::3"),
    (t.StringType(), "IPv6", "12345::"),
    (t.StringType(), "IPv6", "1:2:3:4:5:6:7"),
    (t.TimeType(6), "Time64(3)", datetime.time(0, 0, 0, 1)),
    (t.DateType(), "Date", _DATE(1969, 12, 31)),
    (t.DateType(), "Date", _DATE(2149, 6, 7)),
    (t.DateType(), "Date32", _DATE(1, 1, 1)),
    (t.TimestampType(), "DateTime", _at(1969, 12, 31, 23, 59, 59)),
    (t.TimestampType(), "DateTime", _at(2106, 2, 7, 6, 28, 16)),
    (t.TimestampType(), "DateTime", _at(2026, 1, 1, 0, 0, 0, 1)),
    (t.TimestampType(), "DateTime64(3)", _at(2026, 1, 1, 0, 0, 0, 999)),
    (t.TimestampType(), "DateTime64(4)", _at(2026, 1, 1, 0, 0, 0, 99)),
    (t.TimestampType(), "DateTime64(9)", _at(2262, 4, 11, 23, 47, 17)),
    (t.TimestampType(), "DateTime64(6)", _at(1899, 12, 31)),
    (t.TimestampType(), "DateTime64(6)", _at(9999, 12, 31)),
    (t.ArrayType(t.LongType(), False), "Array(UInt8)", [1, 256]),
    (t.MapType(t.StringType(), t.LongType(), False), "Map(String, UInt8)", {"a": -1}),
    (_NAMED, "Tuple(a UInt8, b Nullable(String))", {"a": 256, "b": "x"}),
]

REFUSED_TYPES: list[tuple[t.DataType, str, str]] = [
    (t.StringType(), "Int64", "cast(… AS bigint) fits"),
    (t.LongType(), "String", "cast(… AS string) fits"),
    (t.LongType(), "Float64", "cast(… AS double) fits"),
    (t.LongType(), "Bool", "cast(… AS boolean) fits"),
    (t.DoubleType(), "Float32", "cast(… AS float) fits"),
    (t.DoubleType(), "Decimal(10, 2)", "Decimal is not supported"),
    (t.DecimalType(10, 3), "Decimal(18, 2)", "loses nothing"),
    (t.TimestampType(), "Date", "cast(… AS date) fits"),
    (t.DateType(), "DateTime", "cast(… AS timestamp) fits"),
    (t.TimestampNTZType(), "DateTime64(6)", "cast it to timestamp"),
    (t.TimestampNTZType(), "DateTime64(6, 'Europe/Berlin')", "cast it to timestamp"),
    (t.DayTimeIntervalType(), "Int64", "cast(… AS bigint) fits"),
    (t.YearMonthIntervalType(), "Int64", "cast(… AS bigint) fits"),
    (t.CalendarIntervalType(), "String", "cast(… AS string) fits"),
    (t.GeographyType(4326), "String", "cast(… AS string) fits"),
    (t.GeometryType(0), "String", "cast(… AS string) fits"),
    (t.VariantType(), "String", "to_json"),
    (t.NullType(), "Nullable(String)", "cast(… AS string)"),
    (t.ArrayType(t.StringType(), False), "Array(Int64)", "an element"),
    (t.LongType(), "IPv4", "cast(… AS string) fits"),
    (t.DecimalType(20, 1), "UInt64", "loses nothing"),
    (t.TimeType(6), "Time", "Time is not supported"),
    (t.StringType(), "Dynamic", "Dynamic is not supported"),
    (t.StructType([t.StructField("x", t.LongType(), False)]), "Tuple(y Int64)", "by name"),
]


class Table:
    """A table with one column, and its server."""

    def __init__(self, url: str, database: str) -> None:
        self.server = Server(url)
        self.database = database

    def create(self, columns: str) -> TableFacts:
        self.server.execute(f"DROP TABLE IF EXISTS {self.database}.t SYNC")
        self.server.execute(
            f"CREATE TABLE {self.database}.t ({columns}) ENGINE = MergeTree ORDER BY tuple()",
            settings={"allow_suspicious_low_cardinality_types": "1"},
        )
        return describe_table(self.server, self.database, "t")

    def load(self, facts: TableFacts, schema: t.StructType, batch: pa.RecordBatch) -> list[str]:
        """What became of the first column's values."""
        plans = plan_columns(schema, facts, checks_nulls=False)
        manner = InsertManner(insert_settings(read_capabilities(self.server)), "lz4", 30.0)
        stage = Stage(self.server, facts, "staged", manner)
        stage.add([convert(batch, plans)])
        stage.check()
        rows = self.server.query(f"SELECT toString(x) AS x FROM {self.database}.staged")
        self.server.execute(f"DROP TABLE {self.database}.staged SYNC")
        return [row["x"] for row in rows]


@pytest.fixture(scope="module")
def table(embedded_server: Any) -> Iterator[Table]:
    for database in fresh_database(embedded_server.url):
        yield Table(embedded_server.url, database)


def _schema(spark: t.DataType, *, nullable: bool = False) -> t.StructType:
    return t.StructType([t.StructField("x", spark, nullable)])


def _batch(spark: t.DataType, values: list[Any]) -> pa.RecordBatch:
    """As Spark hands it over, in a session whose time zone is another one than the server's."""
    is_text = isinstance(spark, t.CharType | t.VarcharType)  # They come as strings.
    arrow = pa.string() if is_text else to_arrow_type(spark, timezone="America/New_York")
    return pa.record_batch({"x": pa.array(values, arrow)})


@pytest.mark.parametrize(("spark", "clickhouse", "values", "texts"), FITTING)
def test_values_at_the_limits(
    table: Table, spark: t.DataType, clickhouse: str, values: list[Any], texts: list[str]
) -> None:
    facts = table.create(f"x {clickhouse}")
    assert table.load(facts, _schema(spark), _batch(spark, values)) == texts


@pytest.mark.parametrize(("spark", "clickhouse", "value"), REFUSED_VALUES)
def test_a_value_beyond_them_is_refused_by_name(
    table: Table, spark: t.DataType, clickhouse: str, value: Any
) -> None:
    facts = table.create(f"x {clickhouse}")
    (plan,) = plan_columns(_schema(spark), facts, checks_nulls=False)
    with pytest.raises(ValueRefusedError, match="column x") as refused:
        convert(_batch(spark, [value]), (plan,))
    assert "cannot be a" in str(refused.value)


@pytest.mark.parametrize(("spark", "clickhouse", "words"), REFUSED_TYPES)
def test_types_that_do_not_fit_are_refused_at_the_start(
    table: Table, spark: t.DataType, clickhouse: str, words: str
) -> None:
    facts = table.create(f"x {clickhouse}")
    with pytest.raises(ConfigurationError) as refused:
        plan_columns(_schema(spark), facts, checks_nulls=False)
    assert f"column x ({spark.simpleString()} into {clickhouse})" in str(refused.value)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("spark", "clickhouse", "value"),
    [
        (t.LongType(), "Nullable(UInt8)", 7),
        (t.StringType(), "LowCardinality(Nullable(String))", "a"),
        (t.TimestampType(), "Nullable(DateTime('UTC'))", _at(2026, 1, 1)),
        (t.StringType(), "Nullable(UUID)", "01234567-89ab-cdef-0123-456789abcdef"),
        (t.StringType(), "Nullable(Enum8('a' = 1))", "a"),
        (t.StringType(), "Nullable(FixedString(1))", "a"),
        (t.DecimalType(5, 2), "Nullable(Decimal(9, 4))", _D("1.25")),
    ],
)
def test_null_stays_null(table: Table, spark: t.DataType, clickhouse: str, value: Any) -> None:
    facts = table.create(f"x {clickhouse}")
    found = table.load(facts, _schema(spark, nullable=True), _batch(spark, [None, value, None]))
    assert found[0] is None and found[2] is None and found[1] is not None


def test_each_type_of_spark_has_its_line() -> None:
    """What a new Spark brings has to be decided here, and told in the document."""
    abstract = {t.AtomicType, t.NumericType, t.IntegralType, t.FractionalType, t.DatetimeType}
    abstract |= {t.DataType, t.AnyTimeType, t.SpatialType, t.AnsiIntervalType, t.UserDefinedType}
    types = {
        each for each in vars(t).values() if isinstance(each, type) and issubclass(each, t.DataType)
    }
    fitting, refused = ({type(line[0]) for line in lines} for lines in (FITTING, REFUSED_TYPES))
    assert types - abstract - {t.StructField} == fitting | refused
    table = [line.split("|") for line in _DOCUMENT.read_text().splitlines() if line[:2] == "| "]
    for place, words in (
        (1, {line[0].simpleString() for line in FITTING}),
        (2, {parse_type(line[1]).bare().name for line in FITTING}),
    ):
        told = {word for row in table for word in re.findall(r"\w+", row[place])}
        assert {re.findall(r"\w+", word)[0] for word in words} <= told


def test_what_may_be_null_needs_a_place_for_it_or_is_looked_at(table: Table) -> None:
    facts = table.create("x Int64, l Array(Int64)")
    lists = t.ArrayType(t.LongType(), True)
    schema = t.StructType(
        [t.StructField("x", t.LongType(), True), t.StructField("l", lists, False)]
    )
    with pytest.raises(ConfigurationError) as refused:
        plan_columns(schema, facts, checks_nulls=False)
    assert str(refused.value).count("Spark says that it may be null") == 2
    assert "column l (array<bigint> into Array(Int64)), an element" in str(refused.value)
    plans = plan_columns(schema, facts, checks_nulls=True)
    good = pa.record_batch({"x": pa.array([1, 2]), "l": pa.array([[1], [2]])})
    assert convert(good, plans).num_rows == 2
    for bad in (
        pa.record_batch({"x": pa.array([1, None]), "l": pa.array([[1], [2]])}),
        pa.record_batch({"x": pa.array([1, 2]), "l": pa.array([[1], [None]])}),
        pa.record_batch({"x": pa.array([1, 2]), "l": pa.array([[1], None])}),
    ):
        with pytest.raises(ValueRefusedError, match="null in row"):
            convert(bad, plans)


def test_columns_are_found_by_name_and_all_that_is_wrong_is_told(table: Table) -> None:
    facts = table.create(
        "x Int64, other String, d Date DEFAULT '2020-01-01', m Int64 MATERIALIZED x + 1"
    )
    schema = t.StructType(
        [
            t.StructField("X", t.LongType(), False),
            t.StructField("m", t.LongType(), False),
            t.StructField("otter", t.StringType(), False),
        ]
    )
    with pytest.raises(ConfigurationError) as refused:
        plan_columns(schema, facts, checks_nulls=False)
    words = str(refused.value)
    assert 'column X of the query is not in the table; did you mean "x"?' in words
    assert 'column otter of the query is not in the table; did you mean "other"?' in words
    assert "column m of the table is MATERIALIZED and takes no values" in words
    assert "column other (String) of the table is missing in the query" in words
    assert "column d " not in words


def test_slices_of_nested_values_are_looked_at_where_they_are(table: Table) -> None:
    """A batch may be a piece of a larger one: what lies outside of it is nobody's error."""
    facts = table.create("x Map(String, Array(UInt8))")
    spark = t.MapType(t.StringType(), t.ArrayType(t.LongType(), False), False)
    whole = _batch(spark, [{"a": [256]}, {"b": [1]}, {"c": [2, 3]}, {"d": [-1]}])
    plans = plan_columns(_schema(spark), facts, checks_nulls=False)
    assert table.load(facts, _schema(spark), whole.slice(1, 2)) == ["{'b':[1]}", "{'c':[2,3]}"]
    with pytest.raises(ValueRefusedError, match="256"):
        convert(whole.slice(0, 2), plans)
