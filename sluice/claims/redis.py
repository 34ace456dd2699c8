"""Claims in Redis or Valkey.

A claim is a field of a hash, and a hash holds all keys that begin alike: the server keeps a hash of
up to 128 short fields in one piece, where a claim costs about 50 bytes, and its hash 75 [measured:
61 bytes a claim in all with 50 million of them, 82 with 11 million]. As a key of its own it would
cost more than twice that. 2**22 hashes hold 400 million claims so. Fewer would cost less memory
with few claims, and more time with many, since a hash is searched from its begin.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sluice.claims.connection import Connection, commands
from sluice.claims.masters import Address, Masters, connect, information
from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts, StoreRefusedError
from sluice.core.claims import OWNER_BYTES

#: So many commands are sent at once, and at most so many pieces before the first one's replies are
#: read: both fit into the buffers of two sockets, so that nobody waits for each other.
_LINES_MAX = 2048
_UNREAD_MAX = 2
_CLAIM_BYTES = OWNER_BYTES + 4
_UNTIL_MAX = 2**32 - 1
_BUCKETS = 2**22
#: Of those, so many are looked at to tell how many claims there are.
_SAMPLE = 4096
_PREFIX, _DRAWN_BYTES = b"sluice:", 4
_HEX = np.frombuffer(bytes(range(256)).hex().encode(), np.uint8).reshape(256, 2)
_BITS = np.array([0xFF, 0xFF, 0xFC], np.uint8)
_NOTES, _LIFE = b"sluice:notes", b"sluice:life"

#: Of a claim that has ended, or has gone meanwhile, or that its owner claims for longer: bucket;
#: field, claim, now.
_CLAIM_SCRIPT = b"""local held = redis.call('HGET', KEYS[1], ARGV[1])
local until_s = held and struct.unpack('>I4', held, 29)
local is_mine = held and string.sub(held, 1, 28) == string.sub(ARGV[2], 1, 28)
if held and until_s >= tonumber(ARGV[3])
  and not (is_mine and until_s < struct.unpack('>I4', ARGV[2], 29)) then return held end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return ARGV[2]"""
#: Bucket; field, owner.
_RELEASE_SCRIPT = b"""local held = redis.call('HGET', KEYS[1], ARGV[1])
if held and string.sub(held, 1, 28) == ARGV[2] then
  return redis.call('HDEL', KEYS[1], ARGV[1])
end
return 0"""
#: Bucket; now. The number that it dropped has four digits, so that all replies are of one length.
_SWEEP_SCRIPT = b"""local all, dropped = redis.call('HGETALL', KEYS[1]), 0
for i = 2, #all, 2 do
  if struct.unpack('>I4', all[i], 29) < tonumber(ARGV[1]) then
    dropped = dropped + redis.call('HDEL', KEYS[1], all[i - 1])
  end
end
return string.format('%04d', math.min(dropped, 9999))"""
#: Where what was drawn is, where notes are; what was drawn; then names, each with its note.
_KEEP_SCRIPT = b"""if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
return 1"""
_SCRIPTS = (_CLAIM_SCRIPT, _RELEASE_SCRIPT, _SWEEP_SCRIPT)
_CLAIM, _RELEASE, _SWEEP = (hashlib.sha1(script).hexdigest().encode() for script in _SCRIPTS)


class RedisStore:
    """See `ClaimStore`. It connects when it is asked something, again after each error.

    :param address: see `masters.address_of`.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        self._masters: Masters | None = None
        #: The run that was told last: a connection that is made anew must not lead to another one
        #: before that is told, too.
        self._told = ""
        #: What is in the names of hashes. Who still claims in a database that was just emptied
        #: claims where nobody looks any more, and not what others make again from the tables.
        self._life = b""
        #: What is drawn for the life of each master's database.
        self._lives: list[bytes] = []
        self._swept = 0
        self._sampled = 0

    def run(self) -> str:
        had_one, self._told = self._masters is not None, ""
        try:
            self._take_run(self._connected())
        except StoreAwayError:
            # Servers, and what is before them, close connections that were idle for long
            if not had_one:
                raise
            self._take_run(self._connected())
        return self._told

    def _take_run(self, masters: Masters) -> None:
        self._told, self._life, self._lives = _run_of_all(masters)

    def claim(self, keys: Keys, owners: Owners, until_s: int, now_s: int) -> Owners:
        names, fields = self._buckets(keys), keys[:, 2:]
        claims = np.empty((len(keys), _CLAIM_BYTES), np.uint8)
        claims[:, :OWNER_BYTES] = owners
        end = min(until_s, _UNTIL_MAX).to_bytes(4, "big")
        claims[:, OWNER_BYTES:] = np.frombuffer(end, np.uint8)
        is_new = self._ask(names, b":", 1, b"HSETNX", names, fields, claims)[:, 0] == ord("1")
        found = owners.copy()
        if is_new.all():
            return found
        old = np.flatnonzero(~is_new)
        held = self._ask(names[old], b"$32\r\n", _CLAIM_BYTES, b"HGET", names[old], fields[old])
        found[old] = held[:, :OWNER_BYTES]
        until = np.ascontiguousarray(held[:, OWNER_BYTES:]).view(">u4")[:, 0]
        is_mine = (found[old] == owners[old]).all(axis=1)
        # Zeros: it was there a moment ago, and somebody has released it
        is_over = (until < now_s) | (until == 0) | (is_mine & (until < min(until_s, _UNTIL_MAX)))
        if is_over.any():
            over = old[is_over]
            arguments = (names[over], fields[over], claims[over], b"%d" % now_s)
            script = (b"EVALSHA", _CLAIM, b"1", *arguments)
            found[over] = self._ask(names[over], b"$32\r\n", _CLAIM_BYTES, *script)[:, :OWNER_BYTES]
        return found

    def release(self, keys: Keys, owners: Owners) -> None:
        names = self._buckets(keys)
        self._ask(names, b":", 1, b"EVALSHA", _RELEASE, b"1", names, keys[:, 2:], owners)

    def keep(self, notes: Mapping[str, str], run: str) -> None:
        masters = self._connected()
        if run != self._told:
            raise StoreAwayError(f"the store of claims is another run than {run}")
        every = self._all_notes() if len(masters.connections) > 1 else []
        words = []
        for name, text in notes.items():
            number = max((before.get(name, (0, ""))[0] for before in every), default=0) + 1
            words += [name.encode(), f"{number} {text}".encode() if text else b""]
        for connection, tag, life in zip(
            masters.connections, masters.tags, self._lives, strict=True
        ):
            # One that was emptied meanwhile has none of the claims that the notes vouch for.
            keys = (_LIFE + tag, _NOTES + tag)
            if connection.call(b"EVAL", _KEEP_SCRIPT, b"2", *keys, life, *words) != 1:
                raise StoreAwayError(f"store of claims {connection.endpoint} was emptied")

    def notes(self) -> dict[str, str]:
        every = self._all_notes()
        names = set[str].intersection(*map(set, every))
        # Each server keeps its claims no worse than its own notes: what the worst of them has
        # holds for all
        oldest = {name: min(notes[name] for notes in every)[1] for name in names}
        return {name: text for name, text in oldest.items() if text}

    def _all_notes(self) -> list[dict[str, tuple[int, str]]]:
        """What each server has: how often a note was written, and its text."""
        masters, every = self._connected(), []
        for connection, tag in zip(masters.connections, masters.tags, strict=True):
            reply = connection.call(b"HGETALL", _NOTES + tag)
            assert isinstance(reply, list)
            texts = [text.decode() for text in reply if isinstance(text, bytes)]
            parts = [text.partition(" ") for text in texts[1::2]]
            every.append(
                {
                    name: (int(number), text)
                    for name, (number, _, text) in zip(texts[::2], parts, strict=True)
                }
            )
        return every

    def sweep(self, now_s: int, seconds: float) -> int:
        deadline, dropped = time.monotonic() + seconds, 0
        for _ in range(0, _BUCKETS, _LINES_MAX):
            names = self._numbered(np.arange(self._swept, self._swept + _LINES_MAX) % _BUCKETS)
            script = (b"EVALSHA", _SWEEP, b"1", names, b"%d" % now_s)
            digits = self._ask(names, b"$4\r\n", 4, *script) - ord("0")
            dropped += int((digits @ np.array([1000, 100, 10, 1])).sum())
            self._swept = (self._swept + _LINES_MAX) % _BUCKETS
            if time.monotonic() >= deadline:
                break
        return dropped

    def facts(self) -> StoreFacts:
        """How it is doing. Its claims are counted in some buckets of all."""
        run, masters = self.run(), self._connected()
        memory = [information(connection, b"memory") for connection in masters.connections]
        limits = [int(each.get("maxmemory", "0")) for each in memory]
        keys = self._estimate(masters)
        return StoreFacts(
            run,
            keys,
            sum(int(each["used_memory"]) for each in memory),
            sum(limits) if all(limits) else None,
            "; ".join(dict.fromkeys(filter(None, map(_loses, masters.connections)))),
        )

    def _estimate(self, masters: Masters) -> int:
        """About how many claims there are: others are looked at each time."""
        self._sampled = (self._sampled + 1) % (_BUCKETS // _SAMPLE)
        names = self._numbered(np.arange(self._sampled, _BUCKETS, _BUCKETS // _SAMPLE))
        found = 0
        for connection, lines in masters.parts(names, _LINES_MAX):
            here = names[lines]
            connection.send(commands(len(here), b"HLEN", here))
            lengths = [connection.reply() for _ in range(len(here))]
            found += sum(length for length in lengths if isinstance(length, int))
        return found * (_BUCKETS // _SAMPLE)

    def close(self) -> None:
        if self._masters is not None:
            self._masters.close()
            self._masters = None

    def _buckets(self, keys: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The names of the hashes of keys, of which the first three bytes count."""
        self._connected()
        prefix = np.frombuffer(b"%b%b:" % (_PREFIX, self._life), np.uint8)
        names = np.empty((len(keys), len(prefix) + 6), np.uint8)
        names[:, : len(prefix)] = prefix
        names[:, len(prefix) :] = _HEX[keys[:, :3] & _BITS].reshape(len(keys), 6)
        return names

    def _numbered(self, numbers: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The names of hashes by their number below _BUCKETS."""
        return self._buckets((numbers << 10).astype(">u4").view(np.uint8).reshape(-1, 4))

    def _connected(self) -> Masters:
        """Once a connection is lost all are made anew: another server may be the master now."""
        if self._masters is None or not self._masters.are_open:
            self.close()
            masters = connect(self._address)
            try:
                run, self._life, self._lives = _run_of_all(masters)
                if self._told and run != self._told:
                    raise StoreAwayError(f"the store of claims is another run now: {run}")
                for connection in masters.connections:
                    for script in _SCRIPTS:
                        connection.call(b"SCRIPT", b"LOAD", script)
            except BaseException:
                masters.close()
                raise
            self._masters = masters
        return self._masters

    def _ask(
        self,
        names: NDArray[np.uint8],
        head: bytes,
        size: int,
        *arguments: bytes | NDArray[np.uint8],
    ) -> NDArray[np.uint8]:
        """One command for each line; replies as in `Connection.replies`, in the same order.

        :param names: of the buckets.
        """
        masters = self._connected()
        found = np.empty((len(names), size), np.uint8)
        unread = deque[tuple[Connection, slice | NDArray[np.intp], int]]()

        def read() -> None:
            connection, lines, count = unread.popleft()
            found[lines] = connection.replies(count, head, size)

        try:
            for connection, lines in masters.parts(names, _LINES_MAX):
                count = len(names[lines])
                here = (each if isinstance(each, bytes) else each[lines] for each in arguments)
                connection.send(commands(count, *here))
                unread.append((connection, lines, count))
                if len(unread) > _UNREAD_MAX * len(masters.connections):
                    read()
            while unread:
                read()
        except BaseException:
            # Replies that nobody has read would be taken for those of the next question
            self.close()
            raise
        return found


def _run_of_all(masters: Masters) -> tuple[str, bytes, list[bytes]]:
    """See `ClaimStore.run`; what is in the names of hashes; and what is drawn for this life of each
    master's database."""
    runs = [
        _run_of(connection, _LIFE + tag)
        for connection, tag in zip(masters.connections, masters.tags, strict=True)
    ]
    lives = [run.rpartition("-")[2].encode() for run in runs]
    if masters.node_of_slot is None:
        return f"{runs[0]}@0", lives[0], lives
    # Which of them has a slot counts too: a slot that was moved while a node was away is empty
    digest = hashlib.sha256(masters.node_of_slot.tobytes())
    digest.update(" ".join(runs).encode())
    # Each node has a life of its own: one that is emptied must not hide what the others have
    return f"{digest.hexdigest()[:40]}@0", b"", lives


def _run_of(connection: Connection, life: bytes) -> str:
    """What the server drew at its start, and again when it became a master, and what is drawn for
    a database that is empty: a person may empty it while the server goes on."""
    memory = information(connection, b"memory")
    policy = memory.get("maxmemory_policy", "noeviction")
    if int(memory.get("maxmemory", "0")) and policy != "noeviction":
        raise StoreRefusedError(
            f"store of claims {connection.endpoint} drops keys when it is full: maxmemory-policy "
            f"is {policy}",
            "CONFIG SET maxmemory-policy noeviction, and write it into its configuration.",
        )
    replication = information(connection, b"replication")
    if replication.get("role") != "master":
        connection.close()
        raise StoreAwayError(f"store of claims {connection.endpoint} has become a replica")
    drawn = connection.call(b"GET", life)
    if drawn is None:
        connection.call(b"SET", life, secrets.token_hex(_DRAWN_BYTES).encode(), b"NX")
        drawn = connection.call(b"GET", life)
    assert isinstance(drawn, bytes)
    run = information(connection, b"server")["run_id"]
    return f"{run[:16]}-{replication.get('master_replid', '')[:8]}-{drawn.decode()}"


def _loses(connection: Connection) -> str:
    """What it costs if this server is lost, as far as it tells its settings."""
    saves = information(connection, b"persistence").get("aof_enabled") == "1"
    replicas = int(information(connection, b"replication").get("connected_slaves", "0"))
    shown = _settings(connection)
    found = []
    if not saves:
        found.append("a crash takes all claims since its last snapshot (appendonly is off)")
    elif (every := shown.get("appendfsync", "unknown")) != "always":
        found.append(f"a power failure takes the last seconds (appendfsync is {every})")
    if replicas:
        found.append("a failover takes what the replica did not have yet")
        if shown.get("min-replicas-to-write") == "0":
            found.append("a master that is cut off goes on (min-replicas-to-write is 0)")
    return "; ".join(found)


def _settings(connection: Connection) -> dict[str, str]:
    """Those that a service shows; it may show none."""
    found = {}
    try:
        # By a connection of its own, since an error closes it
        other = Connection(connection.endpoint)
        for name in ("appendfsync", "min-replicas-to-write"):
            reply = other.call(b"CONFIG", b"GET", name.encode())
            if isinstance(reply, list) and len(reply) == 2 and isinstance(reply[1], bytes):
                found[name] = reply[1].decode()
        other.close()
    except (StoreAwayError, StoreRefusedError):
        pass
    return found
