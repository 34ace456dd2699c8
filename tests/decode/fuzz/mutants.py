"""Messages with wounds: what a broken producer, disk or network may leave of good ones."""

from __future__ import annotations

import random

from tests.decode.text_fuzz import TOKENS

#: Bytes that mean something to readers of binary formats.
BYTES_OF_NOTE = (0, 1, 2, 0x0A, 0x12, 0x7F, 0x80, 0xC0, 0xC1, 0xCF, 0xDB, 0xFE, 0xFF)
#: Lengths that lead out of a message, as varints and as numbers of fixed width.
LENGTHS = (
    *(b"\xff" * 4 + b"\x0f", b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\xff\xff\xff\x7f"),
    *(
        (2**power - 1).to_bytes(8, order)
        for power in (31, 40, 62, 64)
        for order in ("little", "big")
    ),
)


def mutated(value: bytes, other: bytes, chance: random.Random) -> bytes:
    """The message with one to four wounds.

    :param other: a message to take pieces from.
    """
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(value) + 1)
        value = chance.choice(_WOUNDS)(value, at, other, chance)
    return value


def _token(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    return value[:at] + chance.choice(TOKENS) + value[at:]


def _token_instead(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    return value[:at] + chance.choice(TOKENS) + value[at + chance.choice((1, 1, 2, 8)) :]


def _bit(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    if at == len(value):
        return value
    return value[:at] + bytes((value[at] ^ 1 << chance.randrange(8),)) + value[at + 1 :]


def _byte(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    symbol = chance.choice((*BYTES_OF_NOTE, chance.randrange(256)))
    return value[:at] + bytes((symbol,)) + value[at + chance.randrange(2) :]


def _cut(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    return value[:at] if chance.random() < 0.7 else value[at:]


def _removed(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    return value[:at] + value[at + chance.choice((1, 1, 2, 5, 20)) :]


def _doubled(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    piece = value[at : at + chance.choice((1, 2, 5, 20, 200))]
    return value[:at] + piece * chance.choice((2, 2, 3, 20)) + value[at + len(piece) :]


def _spliced(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    return value[:at] + other[chance.randrange(len(other) + 1) :]


def _inserted(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    begin = chance.randrange(len(other) + 1)
    return value[:at] + other[begin : begin + chance.randrange(50)] + value[at:]


def _two(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    return value + chance.choice((b"", b"", b"\n", b" ", b",", b"\x00")) + other


def _length(value: bytes, at: int, other: bytes, chance: random.Random) -> bytes:
    length = chance.choice(LENGTHS)
    return value[:at] + length + value[at + chance.choice((0, 1, len(length))) :]


#: Of a value, a place in it, another value.
_WOUNDS = (
    *(_token, _token, _token_instead, _bit, _bit, _byte, _byte, _cut, _removed, _doubled),
    *(_spliced, _inserted, _two, _length),
)
