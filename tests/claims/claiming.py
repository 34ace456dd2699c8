"""Keys and owners by number, for tests of the local store."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from sluice.claims.local import LocalStore
from sluice.claims.owners import Keys, Owners
from sluice.core.claims import KEY_BYTES, OWNER_BYTES

NOW = 1_800_000_000
HOUR = 3600
RECORD_BYTES = KEY_BYTES + OWNER_BYTES + 8


def keys_of(numbers: list[int]) -> Keys:
    raw = b"".join(hashlib.blake2b(b"%d" % n, digest_size=KEY_BYTES).digest() for n in numbers)
    return np.frombuffer(raw, np.uint8).reshape(-1, KEY_BYTES)


def owners_of(numbers: list[int]) -> Owners:
    raw = b"".join(n.to_bytes(OWNER_BYTES, "big") for n in numbers)
    return np.frombuffer(raw, np.uint8).reshape(-1, OWNER_BYTES)


def numbers_of(owners: Owners) -> list[int]:
    return [int.from_bytes(line.tobytes(), "big") for line in owners]


def claim(
    store: LocalStore, keys: list[int], owner: int, until_s: int = NOW + HOUR, now_s: int = NOW
) -> list[int]:
    """Who has each key, after this owner claimed all of them."""
    owners = owners_of([owner] * len(keys))
    return numbers_of(store.claim(keys_of(keys), owners, until_s, now_s))


def segments_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*"))
