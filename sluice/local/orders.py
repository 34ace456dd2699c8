"""Order events: what the demonstration and the benchmark load.

Nine fields, about 193 bytes of JSON. The values come from seeded random numbers, so that a
run can be repeated and nothing compresses better than real events would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

#: Where orders go. All types exist since ClickHouse 18.16.
COLUMNS = (
    "order_id UInt64",
    "user_id UInt32",
    "ordered_at DateTime",
    "amount Float64",
    "country String",
    "status String",
    "sku String",
    "quantity UInt16",
    "note String",
)
LINEAGE = ("_topic String", "_partition UInt32", "_offset UInt64", "_row UInt32")

#: Enough for every repeat that may come, however late (rule 10).
WINDOW_BLOCKS = 10_000

_COUNTRIES = ("DE", "US", "FR", "GB", "PL", "NL", "ES", "IT", "JP", "BR")
_STATUSES = ("placed", "paid", "packed", "shipped", "delivered", "returned")
_WORDS = (
    *("please", "leave", "parcel", "at", "the", "front", "door", "gift", "wrap", "ring", "twice"),
    *("call", "before", "delivery", "fragile", "handle", "with", "care", "urgent", "reorder"),
    *("sample", "invoice", "attached", "second", "address", "office", "hours", "only", "do"),
    *("not", "bend", "keep", "dry", "customer", "pickup", "express", "morning", "neighbour"),
)
_NOTES = 16_384
_NOTE_BYTES_MIN = 31
_CHUNK = 10_000
_FIRST_MOMENT = np.datetime64("2026-03-01T00:00:00")


def create_table_statement(target: str, *, window: bool) -> str:
    """CREATE TABLE for orders.

    :param window: False for a table that cannot deduplicate, as on servers before 22.2.
    """
    settings = f" SETTINGS non_replicated_deduplication_window = {WINDOW_BLOCKS}" if window else ""
    return (
        f"CREATE TABLE {target} ({', '.join(COLUMNS + LINEAGE)}) "
        f"ENGINE = MergeTree ORDER BY (user_id, ordered_at){settings}"
    )


class Orders:
    """A stream of valid order events; `order_id` counts from 0."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._notes = [self._note() for _ in range(_NOTES)]
        self._next_id = 0

    def take(self, count: int) -> Iterator[list[bytes]]:
        """The next `count` events, in chunks of at most 10,000."""
        while count > 0:
            chunk = min(count, _CHUNK)
            yield self._events(chunk)
            count -= chunk

    def _events(self, count: int) -> list[bytes]:
        numbers = self._random
        first = self._next_id
        self._next_id += count
        users = numbers.integers(1, 2_000_000, count).tolist()
        cents = numbers.lognormal(8.3, 0.9, count).astype(np.int64).tolist()
        moments = _FIRST_MOMENT + (first + np.arange(count)) // 50
        countries = numbers.integers(0, len(_COUNTRIES), count).tolist()
        statuses = numbers.integers(0, len(_STATUSES), count).tolist()
        articles = numbers.integers(0, 100_000, count).tolist()
        quantities = numbers.geometric(0.4, count).tolist()
        notes = numbers.integers(0, _NOTES, count).tolist()
        return [
            (
                f'{{"order_id":{order_id},"user_id":{user},"ordered_at":"{at[:10]} {at[11:]}",'
                f'"amount":{cent / 100},"country":"{_COUNTRIES[country]}",'
                f'"status":"{_STATUSES[status]}","sku":"SKU-{article:06d}",'
                f'"quantity":{quantity},"note":"{self._notes[note]}"}}'
            ).encode()
            for order_id, user, at, cent, country, status, article, quantity, note in zip(
                range(first, first + count),
                users,
                np.datetime_as_string(moments).tolist(),
                cents,
                countries,
                statuses,
                articles,
                quantities,
                notes,
                strict=True,
            )
        ]

    def _note(self) -> str:
        words: list[str] = []
        size = 0
        while size < _NOTE_BYTES_MIN:
            words.append(_WORDS[int(self._random.integers(len(_WORDS)))])
            size += len(words[-1]) + 1
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Defect:
    """A way to break an event.

    :param name: for people.
    :param apply: makes a message that can never become a row out of a good one; None, a
        tombstone, is no error and is skipped.
    """

    name: str
    apply: Callable[[bytes], bytes | None]


TOMBSTONE = Defect("tombstone", lambda event: None)

#: Every kind becomes a dead letter; none may cost its neighbours, or shift a row.
DEFECTS = (
    Defect("half an object", lambda event: event[: len(event) // 2]),
    Defect("text for a number", lambda event: _replaced(event, b'"user_id":', b'"somebody"')),
    Defect("a number out of range", lambda event: _replaced(event, b'"quantity":', b"70000")),
    Defect("a time out of range", lambda event: event.replace(b'_at":"20', b'_at":"22')),
    Defect("null", lambda event: _replaced(event, b'"amount":', b"null")),
    Defect("two objects", lambda event: event + event),
    Defect("an array", lambda event: b"[" + event + b"]"),
    Defect("no JSON", lambda event: b"order " + event[12:20]),
    Defect("nothing", lambda event: b""),
)


def _replaced(event: bytes, key: bytes, value: bytes) -> bytes:
    """The event with another value behind a key that is not the last one."""
    head, _, tail = event.partition(key)
    return head + key + value + tail[tail.index(b",") :]
