"""A search for values that arrive as others: of what each format and type is given, everything that
was stored is compared with the exact value in Python."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import pytest

from sluice.core.load_spec import Column
from sluice.decode.engine.session import run
from tests.decode.test_exact_values import load

EXACT = Context(prec=1000, Emin=MIN_EMIN, Emax=MAX_EMAX)
#: The exact value of a text as this type; None: it is none.
Exact = Callable[[str], Any]


def an_integer(low: int, high: int) -> Exact:
    def exact(text: str) -> Any:
        number = a_decimal(1000, 0)({"true": "1", "false": "0"}.get(text, text))
        return int(number) if number is not None and low <= number <= high else None

    return exact


def a_decimal(precision: int, scale: int) -> Exact:
    def exact(text: str) -> Any:
        if not re.fullmatch("[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?", text):
            return None
        number = Decimal(text)
        _, digits, exponent = number.normalize(EXACT).as_tuple()
        assert isinstance(exponent, int)
        fits = number == 0 or (exponent >= -scale and len(digits) + exponent <= precision - scale)
        return number if fits else None

    return exact


def a_float(text: str) -> Any:
    text = {"true": "1", "false": "0"}.get(text, text)
    if re.fullmatch("(?i)[+-]?(nan|inf|infinity)", text):
        return str(float(text))
    try:
        number = float(text)
    except ValueError:
        return None
    return number if abs(number) != float("inf") and "_" not in text else None


TYPES: dict[str, Exact] = {
    "UInt8": an_integer(0, 255),
    "Int64": an_integer(-(2**63), 2**63 - 1),
    "UInt128": an_integer(0, 2**128 - 1),
    "Int256": an_integer(-(2**255), 2**255 - 1),
    "Decimal(9, 2)": a_decimal(9, 2),
    "Decimal(38, 20)": a_decimal(38, 20),
    "Float64": a_float,
    "IntervalDay": an_integer(-(2**63), 2**63 - 1),
}


def number_texts(seed: int, count: int) -> list[str]:
    chance = random.Random(seed)
    texts = {"", "-", "+", ".", "0", "-0", "+5", "007", "255", "256", "1e3", "1.", ".5", "1.239"}
    texts |= {
        "0.00000000000000000001",
        "1e-21",
        "99999999999",
        "true",
        "null",
        "nan",
        "-inf",
        "1_0",
    }
    texts |= {
        str(2**power + delta) for power in (63, 64, 128, 255, 256, 512) for delta in (-1, 0, 5)
    }
    while len(texts) < count:
        texts.add("".join(chance.choice("0123456789-+.eE5 ") for _ in range(chance.randint(1, 12))))
    return sorted(texts)


def compared(stored: Any) -> Any:
    if isinstance(stored, bool):
        return int(stored)
    return stored


def same(stored: Any, exact: Any) -> bool:
    if exact is None:
        return False
    if isinstance(exact, Decimal):
        return Decimal(stored) == exact
    if isinstance(exact, float):
        return float(stored) == exact
    if isinstance(exact, int):
        return int(stored) == exact
    return bool(str(stored).lstrip("-+").startswith(exact.lstrip("-+")[:3]))


def a_wire(fmt: str) -> tuple[Callable[[str], bytes], dict[str, Any], str]:
    """How a text stands in a message of a format, what else the table needs, and what may stand
    around the text without being part of it."""
    if fmt == "JSON text":
        return lambda text: b'{"a":%b}' % json.dumps(text).encode(), {}, ""
    if fmt == "JSON item":
        return lambda text: b'{"a":[%b]}' % json.dumps(text).encode(), {}, ""
    if fmt == "JSON element":
        return lambda text: b'{"a":{"x":%b}}' % json.dumps(text).encode(), {}, ""
    if fmt == "JSON array":
        return lambda text: b"[%b]" % json.dumps(text).encode(), {}, ""
    if fmt == "CSV":
        return lambda text: b'"%b"' % text.encode(), {}, " '"
    if fmt == "TSV":
        return str.encode, {}, " '"
    options = {"options": {"columns": "a String"}}
    return lambda text: bytes([len(text)]) + text.encode(), options, ""


WIRES = {
    "JSON text": ("JSONEachRow", "{}"),
    "JSON item": ("JSONEachRow", "Array({})"),
    "JSON element": ("JSONEachRow", "Tuple(x {})"),
    "JSON array": ("JSONCompactEachRow", "{}"),
    "CSV": ("CSV", "{}"),
    "TSV": ("TSV", "{}"),
    "RowBinary": ("RowBinary", "{}"),
}


def searched(wire: str, type_text: str, texts: list[str], exact: Exact) -> None:
    fmt, wrap = WIRES[wire]
    write, changes, around = a_wire(wire)
    texts = [text for text in texts if "\n" not in text and "\t" not in text]
    columns = [Column("a", wrap.format(type_text))]
    found, bad = load(fmt, columns, [write(text) for text in texts], **changes)
    stored = [text for place, text in enumerate(texts) if place not in bad]
    assert len(stored) == len(found)
    for text, row in zip(stored, found, strict=True):
        value = row[0]
        value = value[0] if wire == "JSON item" else value
        value = value["x"] if wire == "JSON element" else value
        said = exact(text.strip(around) if around else text)
        assert same(compared(value), said), (wire, type_text, text, value, said)
    usual = sum(exact(text) is not None for text in texts)
    assert len(stored) >= 0.2 * usual, "nearly everything was refused"


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("type_text", TYPES)
def test_numbers_arrive_as_they_are_or_not_at_all(wire: str, type_text: str) -> None:
    if type_text == "IntervalDay" and wire in ("RowBinary",):
        pytest.skip("no text becomes one there")
    searched(wire, type_text, number_texts(len(wire) + len(type_text), 250), TYPES[type_text])


def moments(seed: int, count: int) -> dict[str, set[datetime]]:
    """Texts with all moments that they may mean; none, if there is no such one."""
    chance = random.Random(seed)
    found: dict[str, set[datetime]] = {}
    while len(found) < count:
        year, month, day = chance.randint(1971, 2100), chance.randint(0, 13), chance.randint(0, 32)
        hour, minute, second = chance.randint(0, 25), chance.randint(0, 61), chance.randint(0, 61)
        digits = "".join(chance.choice("0123456789") for _ in range(chance.randint(1, 9)))
        digits = chance.choice(("", "", digits[:3] + "0" * (len(digits) - 3), digits))
        mark = chance.choice("-/.")
        orders = [(month, day)]
        shape = chance.randint(0, 3)
        if shape == 0:
            text = f"{year}{chance.choice('-/')}{month:02}{chance.choice('-/')}{day:02}"
            text = text[:4] + text[4] + text[5:7] + text[4] + text[8:]
        elif shape == 1:
            text = f"{year}{month:02}{day:02}"
        else:
            first, then = (day, month) if chance.random() < 0.7 else (month, day)
            text = f"{first:02}{mark}{then:02}{mark}{year}"
            orders = [(then, first)] if mark == "." else [(then, first), (first, then)]
        has_time = chance.random() < 0.8
        if has_time:
            text += chance.choice(" T" if shape < 2 else " ") + f"{hour:02}:{minute:02}:{second:02}"
            text += f".{digits}" if digits else ""
        else:
            hour = minute = second = 0
            digits = ""
        zone = chance.choice(("", "", "Z", "+02:00")) if has_time else ""
        meant: set[datetime] = set()
        for its_month, its_day in orders:
            try:
                moment = datetime(year, its_month, its_day, hour, minute, second, tzinfo=UTC)
            except ValueError:
                continue
            if digits.rstrip("0")[3:]:
                continue
            moment += timedelta(milliseconds=int((digits + "000")[:3]))
            meant.add(moment - timedelta(hours=2 if zone == "+02:00" else 0))
        found[text + zone] = meant
    return found


@pytest.mark.parametrize("wire", WIRES)
def test_dates_arrive_as_they_are_or_not_at_all(wire: str) -> None:
    meant = moments(len(wire), 600)

    def exact(text: str) -> Any:
        if len(meant[text]) != 1:
            return None
        return min(meant[text]).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]

    def same_text(texts: list[str]) -> None:
        fmt, wrap = WIRES[wire]
        write, changes, _ = a_wire(wire)
        columns = [Column("a", wrap.format("DateTime64(3, 'UTC')"))]
        found, bad = load(fmt, columns, [write(text) for text in texts], **changes)
        stored = [text for place, text in enumerate(texts) if place not in bad]
        for text, row in zip(stored, found, strict=True):
            value = row[0]
            value = value[0] if wire == "JSON item" else value
            value = value["x"] if wire == "JSON element" else value
            assert value == exact(text), (text, value, exact(text))
        lost = {text for text in texts if exact(text)} - set(stored)
        assert not lost, sorted(lost)[:5]

    same_text(sorted(meant))


def test_the_search_finds_what_it_is_for() -> None:
    """What the engine itself makes of these texts is not what they say."""
    texts = {"01/02/2026 10:00:00": "2026-02-01 10:00:00", "2026-01-00": "2026-01-01 00:00:00"}
    for text, read in texts.items():
        query = f"SELECT toString(parseDateTimeBestEffort('{text}', 'UTC'))"
        assert run(query, "TSV").bytes().decode().strip() == read
