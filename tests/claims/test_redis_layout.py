"""How claims lie in Redis: what they take, and what a script leaves when it is broken off."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from sluice.claims import redis_layout as layout
from sluice.claims.owners import Owners
from sluice.claims.port import StoreAwayError, StoreRefusedError
from sluice.claims.stores import StoreAccess, open_store
from tests.claims.conformance import NOW, UNTIL, some_keys, some_owners, told
from tests.support.redis_server import RedisServer, run_redis


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with run_redis() as running:
        yield running


def messages(count: int, first: int = 0) -> Owners:
    """Messages of one partition."""
    owners = np.tile(some_owners(1), (count, 1))
    owners[:, 16:] = 0
    owners[:, 20:24] = np.arange(first, first + count, dtype=">u4").view(np.uint8).reshape(-1, 4)
    return owners


def test_what_a_claim_takes(server: RedisServer) -> None:
    """Field and value take 16 bytes each, an entry 32 at most, its place in a table 8 to 16."""
    store = open_store(StoreAccess(server.url))
    before = store.facts()
    for number in range(8):
        store.claim(some_keys(125_000, number), messages(125_000, number * 125_000), UNTIL, NOW)
    after = store.facts()
    assert after.keys == 1_000_000
    assert (after.used_bytes - before.used_bytes) / 1_000_000 <= 80
    server.ask("FLUSHALL")


def test_a_block_in_pieces() -> None:
    keys, owners = some_keys(20_000), messages(20_000)
    keys[::2, 14] = 7
    owners[5000:6000, 8] ^= 1
    owners[3000, 27] = 9
    known = layout.Stretches()
    pieces = list(layout.pieces(keys, owners, UNTIL, known))
    assert sorted(np.concatenate([piece.lines for piece in pieces]).tolist()) == list(range(20_000))
    for piece in pieces:
        fields, written, names, stretches = piece.arguments
        assert 0 < len(piece.lines) <= 512 and (np.diff(piece.lines) > 0).all()
        assert set((keys[piece.lines, 14] % 64).tolist()) == {piece.number}
        assert fields == keys[piece.lines, :14].tobytes()
        mine = owners[piece.lines]
        lines = np.frombuffer(written, np.uint8).reshape(-1, 32)[::-1]
        assert lines[:, :14].tobytes() == fields
        values = layout.values_told(lines[:, 14:].tobytes(), len(lines))
        assert values is not None
        there, _, which = layout.names_in(values)
        texts = [known.of(name) or b"" for name in there]
        assert b"".join(there) == b"".join(
            sorted(names[at : at + 6] for at in range(0, len(names), 6))
        )
        assert sorted(texts) == sorted(
            stretches[at : at + 20] for at in range(0, len(stretches), 20)
        )
        found = np.frombuffer(b"".join(texts), np.uint8).reshape(-1, 20)[which]
        assert told(layout.owners_in(values, found)) == told(mine)


def test_two_stretches_of_one_name_are_not_taken_for_each_other(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, owners, others = some_keys(100), messages(100), messages(100)
    others[:, 3] ^= 1
    one, other = open_store(StoreAccess(server.url)), open_store(StoreAccess(server.url))
    one.claim(keys, owners, UNTIL, NOW)
    name = layout.Stretches().name(owners[0, :20].tobytes())
    monkeypatch.setattr(layout.Stretches, "name", lambda self, stretch: name)
    with pytest.raises(StoreRefusedError, match="NAMESAKE") as raised:
        other.claim(keys, others, UNTIL, NOW)
    assert "table entry" in raised.value.hint
    with pytest.raises(StoreRefusedError, match="NAMESAKE"):
        other.release(keys, others)
    assert told(one.claim(keys, owners, UNTIL, NOW)) == told(owners)


def test_an_owner_that_nobody_wrote_is_not_made_up(server: RedisServer) -> None:
    keys = some_keys(100, 3)
    open_store(StoreAccess(server.url)).claim(keys, messages(100), UNTIL, NOW)
    other = open_store(StoreAccess(server.url))
    life = other.run().removesuffix("@0").rpartition("-")[2]
    for number in range(64):
        server.ask("DEL", f"sluice:2:{life}:{{{number:02x}}}:stretches")
    mine = some_owners(100)
    with pytest.raises(StoreAwayError, match="emptied"):
        other.claim(keys, mine, UNTIL, NOW)


def test_a_value_of_another_program_is_refused(server: RedisServer) -> None:
    store, keys = open_store(StoreAccess(server.url)), some_keys(1, 8)
    life = store.run().removesuffix("@0").rpartition("-")[2]
    connection = store._connected().connections[0]  # type: ignore[attr-defined]
    name = b"sluice:2:%b:{%02x}" % (life.encode(), keys[0, 14] % 64)
    connection.call(b"HSET", name, keys[0, :14].tobytes(), b"abcdefghij\xff\xff\xff\xffxyz")
    with pytest.raises(StoreRefusedError) as raised:
        store.claim(keys, messages(1), UNTIL, NOW)
    assert "Another program" in raised.value.hint
