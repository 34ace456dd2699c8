"""Mutated messages among good ones: no crash, each is rows or bad, and nobody's neighbour suffers.

Each message must become in company what it becomes alone.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from sluice.decode.messages.decoded import Decoded
from sluice.decode.sequential import row_binary
from tests.decode.support import FIRST_OFFSET, LINEAGE, rows
from tests.decode.typed_support import (
    ATTACKED_COLUMNS,
    ATTACKED_SELECT,
    typed_decode,
    typed_decoder,
    written,
)

#: Format: messages tried, and how many of them stand in one block.
TRIED = {
    "RowBinary": (1600, 800),
    "RowBinaryWithNamesAndTypes": (800, 400),
    "MsgPack": (1600, 800),
    "Native": (60, 30),
    "Parquet": (30, 30),
    "Arrow": (30, 30),
    "ArrowStream": (30, 30),
}
#: Of three rows in a message; the last number is the longest one that is not left to the engine.
SEVERAL = {
    "RowBinary": (400, 200, 260),
    "RowBinaryWithNamesAndTypes": (150, 75, 500),
    "MsgPack": (800, 400, 0),
}
BYTES_OF_NOTE = (0, 1, 0x7F, 0x80, 0xC0, 0xC1, 0xCF, 0xDB, 0xFF)


def mutated(chance: random.Random, seeds: list[bytes]) -> bytes:
    value = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(value) + 1)
        other = chance.choice(seeds)
        kind = chance.randrange(7)
        if kind == 0 and place < len(value):
            value[place] = chance.choice((*BYTES_OF_NOTE, chance.randrange(256)))
        elif kind == 1:
            del value[place : place + 1]
        elif kind == 2:
            value.insert(place, chance.randrange(256))
        elif kind == 3:
            del value[place:]
        elif kind == 4:
            value += other
        elif kind == 5:
            value[place:place] = other[: chance.randrange(50)]
        else:
            number = chance.choice((2**63, 2**64 - 1, 2**31, 2**62, 2**40))
            value[place : place + 8] = number.to_bytes(8, chance.choice(("little", "big")))
    return bytes(value)


def rows_of(decoded: Decoded) -> dict[int, list[list[Any]]]:
    """The rows of each message, by its index."""
    found: dict[int, list[list[Any]]] = {}
    for row in rows(decoded):
        index = (int(row[-2]) - FIRST_OFFSET) // 2
        found.setdefault(index, []).append(row[:-4])
    return found


@pytest.mark.parametrize(
    ("format_name", "several"),
    [(name, name not in SEVERAL) for name in TRIED] + [(name, True) for name in SEVERAL],
)
def test_mutated_messages(format_name: str, several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tried, together = TRIED[format_name]
    if several and format_name in SEVERAL:
        tried, together, longest = SEVERAL[format_name]
        monkeypatch.setattr(row_binary, "_CUT_BYTES_MAX", longest)
    decoder = typed_decoder(
        format_name,
        *ATTACKED_COLUMNS,
        *LINEAGE,
        lineage=("_topic", "_partition", "_offset", "_row"),
        rows="many" if several else "one",
    )
    chance = random.Random(20261121)
    seeds = [
        written(format_name, ATTACKED_SELECT.format(10 * i, 3 if several else 1)) for i in range(6)
    ]
    alone = {seed: rows_of(typed_decode(decoder, [seed]))[0] for seed in seeds}
    for _ in range(tried // together):
        good = {index: chance.choice(seeds) for index in range(0, together, 3)}
        values = [good.get(index) or mutated(chance, seeds) for index in range(together)]
        decoded = typed_decode(decoder, values)
        assert decoded.messages + len(decoded.bad) + len(decoded.empty) == together
        found = rows_of(decoded)
        bad = {fault.index: (fault.reason, fault.error, fault.column) for fault in decoded.bad}
        assert {index: found.get(index) for index in good} == {
            index: alone[value] for index, value in good.items()
        }
        for index in chance.sample(range(together), 10):
            single = typed_decode(decoder, [values[index]])
            assert rows_of(single).get(0) == found.get(index)
            faults = [(fault.reason, fault.error, fault.column) for fault in single.bad]
            assert faults == ([bad[index]] if index in bad else [])
