"""What stands for the loader's own view of claims: a connection to the store, the keys of a block's
rows, and how a store that lost them gets them back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts
from sluice.core.claim_notes import Part as PartOfClaims
from sluice.core.claims import KEY_BYTES, OWNER_BYTES
from sluice.core.errors import TransientError
from sluice.core.load_spec import TableSpec
from sluice.decode.keys.hashing import Keyed
from sluice.decode.messages.facts import Origins
from sluice.testbed.simulate import faults
from sluice.testbed.simulate.clickhouse import ROW_NUMBERS
from sluice.testbed.simulate.decoding import DecodedRows, with_rows
from sluice.testbed.simulate.messages import AGAIN, AGAIN_NUMBERS, judge
from sluice.testbed.simulate.parts import Parts

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A claim takes so many keys before somebody else's may come in between.
_CHUNK = 3
#: Of the calls by which a driver looks at the store, so many take no time, and never fail.
_LIGHT_SHARE = 0.8
#: A rebuild claims so many rows at once.
_REBUILT_AT_ONCE = 20


class SimulatedStore:
    """A connection to it; see `ClaimStore`. What it is asked between two answers of `run` it
    answers in one life, or not at all."""

    def __init__(self, parts: Parts) -> None:
        assert parts.kept is not None
        self._world = parts.world
        self._kept = parts.kept
        self._rules = parts.claim_rules
        #: Which life this is a connection to; "": it is none.
        self._connected = ""

    def run(self) -> str:
        if self._connected != self._kept.run:
            self._connected = ""
        self._ask("run of the store", is_light=True)
        return self._kept.run

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        world, kept = self._world, self._kept
        fault = self._ask("claim", is_light=False)
        asked = list(zip(map(bytes, keys), map(bytes, owners), strict=True))
        if fault == "claims: half done":
            self._claim(asked[: world.rng.randrange(len(asked) + 1)], until_s, now_s)
            self._lose("half of the claims")
        found: list[bytes] = []
        for begin in range(0, len(asked), _CHUNK):
            self._require_connected()
            found += self._claim(asked[begin : begin + _CHUNK], until_s, now_s)
            if begin + _CHUNK < len(asked) and world.rng.random() < 0.2:
                world.sleep(1)
        self._rules.claimed(asked, found, kept.run)
        if fault == "claims: answer lost":
            self._lose("the answer")
        if fault == "claims: a copy goes on without them" and asked:
            name = world.rng.choice(asked)[0]
            delay_ms = world.rng.randrange(world.rng.choice((2, 100, 20_000)))
            world.scheduler.at(delay_ms, lambda: kept.forget_newest(name))
        if fault == "claims: paused after the answer":
            world.process.paused_until = world.now + world.draw_pause_ms()
        elif fault == "claims: paused after the answer, and the store breaks":
            breaks = world.rng.choice((kept.restart, kept.fail_over, kept.lose))
            world.scheduler.at(world.rng.randrange(100), breaks)
            pause_ms = world.rng.randrange(int(world.plan.lease_seconds * 1_000))
            world.process.paused_until = world.now + pause_ms
        world.sleep(1)
        return np.frombuffer(b"".join(found), np.uint8).reshape(-1, OWNER_BYTES)

    def _claim(self, asked: Iterable[tuple[bytes, bytes]], until_s: int, now_s: int) -> list[bytes]:
        found = []
        for key, owner in asked:
            held = self._kept.claims.get(key)
            is_over = held is None or held[1] < now_s
            if held is None or is_over or (held[0] == owner and held[1] < until_s):
                if held is not None and is_over:
                    self._world.faults.note("same event long after it")
                held = (owner, until_s)
                self._kept.write(key, held)
                self._rules.owned(key, is_new=is_over)
            found.append(held[0])
        return found

    def release(self, keys: Keys, owners: Owners) -> None:
        self._ask("release claims", is_light=False)
        for key, owner in zip(map(bytes, keys), map(bytes, owners), strict=True):
            if self._kept.claims.get(key, (b"", 0))[0] == owner:
                self._kept.write(key, None)

    def keep(self, notes: Mapping[str, str], run: str) -> None:
        fault = self._ask("note", is_light=True)
        if run != self._kept.run:
            raise StoreAwayError("simulated: another run of the store")
        for name, text in notes.items():
            if text:
                self._rules.noted(name, text)
            self._kept.write(name, text)
        if fault == "look at claims: answer lost":
            self._lose("the answer")

    def notes(self) -> dict[str, str]:
        self._ask("notes", is_light=True)
        return {name: text for name, text in self._kept.notes.items() if text}

    def sweep(self, now_s: int, seconds: float) -> int:
        self._ask("sweep", is_light=True)
        over = [key for key, (_, until_s) in self._kept.claims.items() if until_s < now_s]
        for key in over:
            self._kept.write(key, None)
        return len(over)

    def facts(self) -> StoreFacts:
        return StoreFacts(self._kept.run, len(self._kept.claims), 0, None)

    def close(self) -> None:
        self._connected = ""

    def _ask(self, label: str, *, is_light: bool) -> str | None:
        """A place where the store may break.

        :raises StoreAwayError: it does not answer, or the connection has ended.
        """
        world = self._world
        table = faults.LOOK_AT_CLAIMS if is_light else faults.CLAIM
        fault = None
        if not (is_light and world.rng.random() < _LIGHT_SHARE):
            fault = world.call(label, table)
        if fault in ("claims: slow", "look at claims: slow"):
            world.sleep(world.rng.randrange(world.rng.choice((1_000, 19_000))))
        is_silent = fault in ("claims: no answer", "look at claims: no answer")
        if is_silent or self._kept.away_until > world.now:
            self._lose("no answer")
        self._require_connected()
        return fault

    def _require_connected(self) -> None:
        if self._connected not in ("", self._kept.run):
            self._lose("the connection has ended")
        self._connected = self._kept.run

    def _lose(self, what: str) -> None:
        self._connected = ""
        raise StoreAwayError(f"simulated: {what}")


class SimulatedRowKeys:
    """Stands for the real `RowKeys`."""

    def __init__(self, parts: Parts, table: TableSpec) -> None:
        self._world = parts.world
        self._rules = parts.claim_rules
        self._table = table

    def of(self, decoded: DecodedRows) -> Keyed:
        """The keys of a block's rows."""
        is_many = self._table.rows == "many"
        keys = [self._rules.key(self._table.entry, row.number) for row in decoded.native.rows]
        lines = b"".join(key or bytes(KEY_BYTES) for key in keys)
        rows = [row.number % ROW_NUMBERS if is_many else 0 for row in decoded.native.rows]
        return Keyed(
            np.frombuffer(lines, np.uint8).reshape(-1, KEY_BYTES),
            np.array(rows, np.uint32),
            np.array([key is not None for key in keys], np.bool_),
        )

    def texts(self, decoded: DecodedRows) -> list[str]:
        """As `RowKeys` gives them."""
        return [f'["{row.number}"]' for row in decoded.native.rows]

    def of_bad(self, decoded: DecodedRows, origins: Origins) -> tuple[Keys, NDArray[np.uint64]]:
        """What the keys of messages that make no row would be, and their places; for a planted
        bug."""
        places = np.array([bad.offset for bad in decoded.bad], np.uint64)
        numbers = origins.numbers(places)
        keys: list[bytes | None] = []
        for index, offset in enumerate(origins.offsets(places).tolist()):
            member = origins.members[0 if numbers is None else numbers[index]]
            message, _ = self._world.broker.log(member.source).places[offset]
            assert message is not None and message.value is not None
            first = AGAIN_NUMBERS if self._table.entry == AGAIN else 0
            times = ROW_NUMBERS if self._table.rows == "many" else 1
            number = judge(message.value, 0, False).number * times + first
            keys.append(self._rules.key(self._table.entry, number))
        has_key = np.array([key is not None for key in keys], np.bool_)
        return _lines(filter(None, keys), KEY_BYTES), places[has_key]


def kept(decoded: DecodedRows, mask: NDArray[np.bool_]) -> DecodedRows:
    """Stands for `sluice.decode.keys.kept.kept`."""
    rows = tuple(row for row, stays in zip(decoded.native.rows, mask, strict=True) if stays)
    parts = min(len(rows), decoded.clickhouse_partitions)
    return replace(with_rows(decoded, rows, 0), clickhouse_partitions=parts)


def rebuilding(parts: Parts) -> Any:
    """Stands for `sluice.driver.claims_rebuild.rebuild`."""

    def rebuild(path: Any, access: Any, spec: TableSpec, since_ms: int, run: str, *_: Any) -> None:
        world, rules = parts.world, parts.claim_rules
        world.faults.note("claims made again from the tables")
        store, of = SimulatedStore(parts), PartOfClaims.of_table(spec)
        for table in world.clickhouse.of_name(spec.table):
            fault = world.call("rows to claim", faults.QUERY)
            hosts = world.clickhouse.replicas_of(table.shard)
            is_away = all(host.down_until > world.now for host in hosts)
            if is_away or fault in ("query fails", "query is refused"):
                raise TransientError("simulated: rows are not read", "wait")
            asked = list(rules.rows_since(table, of.space, since_ms))
            for begin in range(0, len(asked), _REBUILT_AT_ONCE):
                keys, owners = zip(*asked[begin : begin + _REBUILT_AT_ONCE], strict=True)
                now_s = world.wall_ms() // 1000
                store.claim(
                    _lines(keys, KEY_BYTES), _lines(owners, OWNER_BYTES), now_s + of.seconds, now_s
                )

    return rebuild


def _lines(each: Iterable[bytes], size: int) -> Any:
    return np.frombuffer(b"".join(each), np.uint8).reshape(-1, size)
