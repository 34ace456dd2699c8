"""What messages are, and what decoders make of them: good, bad, bad for one table, or by version.

A message says what it is: kind, its own number, and the value that partition keys look at. Which
fields it has and which schema it names follows from its number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sluice.core.dynamic import DynamicColumns
from sluice.testbed.simulate.clickhouse import ROW_NUMBERS
from sluice.testbed.simulate.kafka import Stored

#: So many messages long a field comes up that was not there before.
_NEW_AGE = 40
_NEW_MAX = 6
#: The table entry that loads a topic into a table again, and what its rows say more than others.
AGAIN = "again"
AGAIN_NUMBERS = 1 << 20
#: Values lie in [0, VALUES).
VALUES = 6
#: So many messages long a schema is named.
_SCHEMA_AGE = 8
#: What messages say that entries with a route take, and others.
ROUTED, _NOT_ROUTED = "mine", "other"
#: Which new fields get columns, in worlds that give them any (R14).
RULES = DynamicColumns(allow=("new.*",), deny=("old.*",))


@dataclass(frozen=True, slots=True)
class Judged:
    """What a decoder makes of a message for one table: its value, or None if it is bad."""

    number: int
    value: int | None


def judge(value: bytes, decoder: int, is_partitioned: bool) -> Judged:
    """What the decoder of this version makes of a message.

    Kinds: g good; b bad; c bad for partitioned tables; x bad for odd decoders; v good,
    with a value that depends on the decoder.
    """
    head, _, _ = value.partition(b";")
    kind, number, content = head[:1], *head[1:].split(b",")
    found = int(content)
    bad = kind == b"b" or (kind == b"c" and is_partitioned) or (kind == b"x" and decoder % 2 == 1)
    if kind == b"v":
        found = (found + decoder) % VALUES
    return Judged(int(number), None if bad else found)


def rows_of(judged: Judged, entry: str, *, is_many: bool) -> list[tuple[int, int]]:
    """Number and value of each row that a good message makes.

    :param entry: of the tables.
    :param is_many: messages have none, one or several rows, whose values lie in different
        ClickHouse partitions.
    """
    assert judged.value is not None
    first = AGAIN_NUMBERS if entry == AGAIN else 0
    if not is_many:
        return [(first + judged.number, judged.value)]
    first += judged.number * ROW_NUMBERS
    return [(first + row, (judged.value + row) % VALUES) for row in range(judged.number % 4)]


def message_of(row: int, entry: str, *, is_many: bool) -> int:
    """The number of the message that a row of this number is of."""
    number = row - (AGAIN_NUMBERS if entry == AGAIN else 0)
    return number // ROW_NUMBERS if is_many else number


def field_of(number: int) -> str | None:
    """The field that a message has and that no table has from the beginning; None for most."""
    if number < 0:
        return None  # of an aborted transaction
    if number % 5 == 3:
        return f"new{(number // _NEW_AGE) % _NEW_MAX}"
    if number % 11 == 4:
        return f"old{number % 3}"
    return None


def schema_of(number: int) -> int | None:
    """The number of the schema that a message names; None: it names none."""
    # Below zero: of an aborted transaction.
    return 1 + number // _SCHEMA_AGE if number > 0 and number % 2 == 1 else None


def is_routed(number: int) -> bool:
    """Whether entries with a route take a message."""
    return number % 3 != 0


def with_route(stored: Stored, number: int) -> Stored:
    """A message whose key and headers say whether a route takes it; its value does anyway."""
    name = (ROUTED if is_routed(number) else _NOT_ROUTED).encode()
    return replace(stored, key=name, headers=(*stored.headers, ("table", name)))


def envelope_tables(messages: Sequence[bytes]) -> list[bytes | None]:
    """Stands for `sluice.decode.envelope.walk.envelope_tables`."""
    numbers = (judge(value, 0, False).number if value else 0 for value in messages)
    return [ROUTED.encode() if is_routed(number) else None for number in numbers]


def make_message(
    rng: random.Random, number: int, now_ms: int, oversize: int
) -> tuple[Stored, str | None]:
    """A message, and the kind of fault that it stands for.

    :param oversize: more bytes than the dead-letter topic takes.
    """
    point, content = rng.random(), rng.randrange(VALUES)
    kind, fault, padding = b"g", None, rng.randrange(20)
    if point < 0.02:
        kind, fault = b"b", "bad message"
    elif point < 0.03:
        kind, fault = b"c", "message bad for one table only"
    elif point < 0.05:
        kind, fault = b"x", "message that decoders judge differently"
    elif point < 0.08:
        kind, fault = b"v", "message that decoders judge differently"
    elif point < 0.09:
        return Stored(None, b"key", (), number, now_ms), "tombstone"
    elif point < 0.10:
        fault, padding = "heavy message", rng.randrange(200, 900)
    elif point < 0.103:
        kind, fault, padding = b"b", "oversize dead letter", oversize
    value = b"%s%d,%d;%s" % (kind, number, content, b"." * padding)
    return Stored(value, None, (("h", b"1"),), number, now_ms), fault
