"""What Kafka Connect's schema of a JSON message says of values that JSON cannot say by itself:
moments as numbers of milliseconds, decimals as bytes in base64.

Where a column takes it, such a value is written as the text that it means. Anything else stays as
it is, and the column decides.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import MAX_EMAX, Context, Decimal
from typing import Any

#: By the name of a schema: how many of its units are a second.
_TICKS = {
    "org.apache.kafka.connect.data.Timestamp": 10**3,
    "io.debezium.time.Timestamp": 10**3,
    "io.debezium.time.MicroTimestamp": 10**6,
    "io.debezium.time.NanoTimestamp": 10**9,
}
_DAYS = ("org.apache.kafka.connect.data.Date", "io.debezium.time.Date")
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_EPOCH = date(1970, 1, 1)
_DAY_SECONDS = 86400
_SCALE_MAX = 76
_EXACT = Context(prec=10_000, Emax=MAX_EMAX)

#: Writes a value anew; None: it stays as it is.
Rewrite = Callable[[str], str | None]


def rewrites(fields: Any, types: Mapping[str, str]) -> dict[str, Rewrite]:
    """By field, how its values are written, where that differs.

    :param fields: of a schema of Connect, as it stands in a message.
    :param types: of the columns that fields fill.
    """
    found: dict[str, Rewrite] = {}
    for one in fields if isinstance(fields, list) else ():
        if not isinstance(one, dict) or one.get("field") not in types:
            continue
        name, kind = str(one.get("name", "")), types[one["field"]]
        takes_moments = "Date" in kind
        if name in _TICKS and takes_moments:
            found[one["field"]] = _moment_of(_TICKS[name])
        elif name in _DAYS and takes_moments:
            found[one["field"]] = _day
        elif name == _DECIMAL:
            parameters = one.get("parameters")
            scale = parameters.get("scale") if isinstance(parameters, dict) else None
            if str(scale).isdecimal() and int(str(scale)) <= _SCALE_MAX:
                found[one["field"]] = _decimal_of(int(str(scale)))
    return found


def _moment_of(ticks: int) -> Rewrite:
    digits = len(str(ticks)) - 1

    def moment(value: str) -> str | None:
        number = _integer(value)
        if number is None:
            return None
        seconds, rest = divmod(number, ticks)
        days, second = divmod(seconds, _DAY_SECONDS)
        day = _day_text(days)
        if day is None:
            return None
        clock = f"{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
        fraction = f"{rest:0{digits}}".rstrip("0")
        return f'"{day}T{clock}{f".{fraction}" if fraction else ""}Z"'

    return moment


def _day(value: str) -> str | None:
    number = _integer(value)
    text = None if number is None else _day_text(number)
    return None if text is None else f'"{text}"'


def _day_text(days: int) -> str | None:
    try:
        return (_EPOCH + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _integer(value: str) -> int | None:
    digits = value[1:] if value.startswith("-") else value
    return int(value) if digits.isdecimal() and len(digits) < 20 else None


def _decimal_of(scale: int) -> Rewrite:
    def number(value: str) -> str | None:
        if not value.startswith('"'):
            return None
        try:
            raw = base64.b64decode(json.loads(value), validate=True)
        except (ValueError, binascii.Error):
            return None
        if not raw or len(raw) > 40:
            return None
        unscaled = Decimal(int.from_bytes(raw, "big", signed=True))
        return f'"{_EXACT.scaleb(unscaled, -scale):f}"'

    return number
