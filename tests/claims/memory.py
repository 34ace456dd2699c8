"""Claims in the memory of one process, which a simulated world needs. It loses them with it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts
from sluice.core.claims import OWNER_BYTES


@dataclass
class Kept:
    """What several stores of one process share.

    :param claims: by key, the owner and until when.
    """

    drawn: str = field(default_factory=lambda: secrets.token_hex(8))
    claims: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryStore:
    """See `ClaimStore`."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept

    def run(self) -> str:
        return f"{self.kept.drawn}@0"

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        found = []
        with self.kept.lock:
            for key, owner in zip(map(bytes, keys), map(bytes, owners), strict=True):
                held = self.kept.claims.get(key)
                if held is None or held[1] < now_s or (held[0] == owner and held[1] < until_s):
                    held = self.kept.claims[key] = (owner, until_s)
                found.append(held[0])
        return np.frombuffer(bytearray().join(found), np.uint8).reshape(-1, OWNER_BYTES)

    def release(self, keys: Keys, owners: Owners) -> None:
        with self.kept.lock:
            for key, owner in zip(map(bytes, keys), map(bytes, owners), strict=True):
                if self.kept.claims.get(key, (b"", 0))[0] == owner:
                    del self.kept.claims[key]

    def keep(self, notes: Mapping[str, str], run: str) -> None:
        if run != self.run():
            raise StoreAwayError("another run")
        self.kept.notes.update(notes)

    def notes(self) -> dict[str, str]:
        return {name: text for name, text in self.kept.notes.items() if text}

    def sweep(self, now_s: int, seconds: float) -> int:
        """All at once, however long it takes."""
        with self.kept.lock:
            over = [key for key, (_, until_s) in self.kept.claims.items() if until_s < now_s]
            for key in over:
                del self.kept.claims[key]
        return len(over)

    def facts(self) -> StoreFacts:
        return StoreFacts(
            self.run(), len(self.kept.claims), 0, None, "the end of the process takes everything"
        )

    def close(self) -> None:
        """Nothing to let go."""
