"""Change events of Debezium: what columns may ask of them, and why one makes no row."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from hashlib import md5
from typing import Any
from uuid import UUID

from sluice.core.load_spec import TableSpec
from sluice.decode.messages.fault import NO_ROW, UNAVAILABLE_VALUE, Fault

#: Fields of a row that the event says, beside those of the row itself: `op`, whether it is "d",
#: `ts_ms`, and `source`.
OPERATION, DELETED, TIME_MS, SOURCE = "__op", "__deleted", "__ts_ms", "__source"
ADDED = (OPERATION, DELETED, TIME_MS, SOURCE)
#: The unit of those that are moments, whatever the entry says of the others.
TICKS: dict[tuple[str, ...], str] = {
    (TIME_MS,): "ms",
    **{(SOURCE, f"ts_{unit}"): unit for unit in ("ms", "us", "ns")},
}
#: By the name of a schema of Connect, the moments that its numbers are, as Avro calls them.
MOMENTS = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.Timestamp": "timestamp-millis",
    "io.debezium.time.MicroTimestamp": "timestamp-micros",
    "io.debezium.time.NanoTimestamp": "timestamp-nanos",
    "io.debezium.time.Time": "time-millis",
    "io.debezium.time.MicroTime": "time-micros",
    "io.debezium.time.NanoTime": "time-nanos",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}
#: What Debezium writes for a value that did not change and that the log does not hold. It takes the
#: shape of the column: of arrays of numbers the items are the bytes of this text.
UNAVAILABLE = "__debezium_unavailable_value"
UNAVAILABLE_CODES = tuple(UNAVAILABLE.encode())
#: The item of an array of UUIDs.
UNAVAILABLE_UUID = str(
    UUID(bytes=md5(UNAVAILABLE.encode(), usedforsecurity=False).digest(), version=3)
)
#: Of a geometry and a geography of PostGIS, which are points then.
UNAVAILABLE_SHAPES = tuple(
    map(
        bytes.fromhex,
        (
            "0101000020E6100000000000FC83D797C1000000FC83D797C1",
            "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
        ),
    )
)


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


#: Bytes as a text.
UNAVAILABLE_BASE64 = _base64(UNAVAILABLE.encode())
#: A map as a text.
UNAVAILABLE_MAP = json.dumps({UNAVAILABLE: UNAVAILABLE}, separators=(",", ":"))


def _in_json() -> Iterator[Any]:
    yield from (UNAVAILABLE, UNAVAILABLE_BASE64, UNAVAILABLE_MAP)
    yield from ([UNAVAILABLE], [UNAVAILABLE_BASE64], [UNAVAILABLE_UUID])
    yield {UNAVAILABLE: UNAVAILABLE}
    yield UNAVAILABLE_CODES
    yield [float(code) for code in UNAVAILABLE_CODES]
    unscaled = [_base64(bytes([code])) for code in UNAVAILABLE_CODES]
    yield unscaled
    yield [{"scale": 0, "value": one} for one in unscaled]
    yield from ({"wkb": _base64(shape), "srid": 4326} for shape in UNAVAILABLE_SHAPES)


_IN_JSON = frozenset(json.dumps(one, separators=(",", ":")) for one in _in_json())
_IN_JSON_MAX = 2 * max(map(len, _IN_JSON))


def is_unavailable(value: str) -> bool:
    """Whether a value of a row says that it is not known.

    :param value: as it stands in JSON.
    """
    if len(value) > _IN_JSON_MAX:
        return False
    return (value if value.startswith('"') else value.replace(" ", "")) in _IN_JSON


def tells_deletes(table: TableSpec) -> bool:
    """Whether a row of the table says that it was deleted.

    :param table: whose columns are the fields that are read.
    """
    return any(column.name in (OPERATION, DELETED) for column in table.columns)


def no_row(why: str) -> Fault:
    """Of an event without a row that the table could take."""
    return Fault(NO_ROW, f"the change event makes no row: {why}")


def unavailable(column: str) -> Fault:
    """Of a row whose value the event does not know."""
    return Fault(
        UNAVAILABLE_VALUE,
        f"column {column} did not change, and Debezium does not know its value; in PostgreSQL set "
        "REPLICA IDENTITY FULL for the table",
        column,
    )
