"""Claims in Redis or Valkey. How they lie there: `redis_layout`."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import deque
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from sluice.claims import redis_layout as layout
from sluice.claims.connection import OTHERS_KEYS, Connection, Reply, command
from sluice.claims.masters import Address, Masters, connect, information
from sluice.claims.owners import Keys, Owners
from sluice.claims.port import StoreAwayError, StoreFacts, StoreRefusedError

#: So many bytes of commands are sent at once, and at most so many such parts before the replies of
#: the first one are read: the server has something to do meanwhile.
_PART_BYTES = 1 << 17
_UNREAD_MAX = 2
#: Of this layout: what another one has written belongs to another store.
_PREFIX, _DRAWN_BYTES = b"sluice:2:", 4
_NOTES, _LIFE = _PREFIX + b"notes", _PREFIX + b"life"

#: Where what was drawn is, where notes are; what was drawn; then names, each with its note.
_KEEP_SCRIPT = b"""if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 2 do
  if ARGV[i + 1] == '' then redis.call('HDEL', KEYS[2], ARGV[i])
  else redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
end
return 1"""
#: What stands in braces in the names of hashes.
_TAGS = np.array([list(b"%02x" % number) for number in range(layout.HASHES)], np.uint8)
_SCRIPTS = (layout.CLAIM, layout.RELEASE, layout.SWEEP)
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
        self._stretches = layout.Stretches()
        #: The hash that a sweep goes on with, and where in it.
        self._swept = 0
        self._cursor = b"0"

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
        found = owners.copy()
        asked = list(layout.pieces(keys, owners, until_s, self._stretches)) if len(keys) else []
        told = [
            (piece, self._values(piece, reply))
            for piece, reply in zip(asked, self._run_each(_CLAIM, asked, now_s), strict=True)
            if reply
        ]
        if told:
            values = np.concatenate([values for _, values in told])
            numbers = np.repeat([p.number for p, _ in told], [len(p.lines) for p, _ in told])
            lines = np.concatenate([piece.lines for piece, _ in told])
            found[lines] = layout.owners_in(values, self._stretches_in(values, numbers))
        return found

    def release(self, keys: Keys, owners: Owners) -> None:
        if len(keys):
            self._run_each(_RELEASE, layout.pieces(keys, owners, 0, self._stretches), 0)

    def _run_each(self, script: bytes, asked: Iterable[layout.Piece], now_s: int) -> list[Reply]:
        hashes, now = self._hashes(), b"%d" % now_s
        return self._ask(
            (
                hashes[piece.number][0],
                command(
                    *(b"EVALSHA", script, b"2", *hashes[piece.number][1:], *piece.arguments, now)
                ),
            )
            for piece in asked
        )

    def _values(self, piece: layout.Piece, reply: Reply) -> NDArray[np.uint8]:
        found = None
        if isinstance(reply, bytes):
            found = layout.values_told(reply, len(piece.lines))
        if found is None:
            raise StoreRefusedError(f"store of claims: claims are {reply!r:.80}", OTHERS_KEYS)
        return found

    def _stretches_in(
        self, values: NDArray[np.uint8], numbers: NDArray[np.intp]
    ) -> NDArray[np.uint8]:
        """The stretch of each value.

        :param numbers: of the hashes that they are in.
        """
        names, first, which = layout.names_in(values)
        hashes = self._hashes()
        unknown = [at for at, name in enumerate(names) if self._stretches.of(name) is None]
        places = [hashes[number] for number in numbers[first[unknown]].tolist()]
        replies = self._ask(
            (connection, command(b"HGET", stretches, names[at]))
            for at, (connection, _, stretches) in zip(unknown, places, strict=True)
        )
        for at, reply in zip(unknown, replies, strict=True):
            if not isinstance(reply, bytes):
                raise StoreAwayError("the store of claims was emptied")
            self._stretches.know(names[at], reply)
        texts = b"".join(self._stretches.of(name) or b"" for name in names)
        found: NDArray[np.uint8] = np.frombuffer(texts, np.uint8).reshape(-1, layout.STRETCH_BYTES)
        return found[which]

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
        deadline, dropped, left = time.monotonic() + seconds, 0, layout.HASHES
        hashes, now = self._hashes(), b"%d" % now_s
        while left:
            connection, name, _ = hashes[self._swept]
            reply = connection.call(b"EVALSHA", _SWEEP, b"1", name, self._cursor, now)
            assert isinstance(reply, bytes)
            self._cursor, _, gone = reply.partition(b" ")
            dropped += int(gone)
            if self._cursor == b"0":
                self._swept = (self._swept + 1) % layout.HASHES
                left -= 1
            if time.monotonic() >= deadline:
                break
        return dropped

    def facts(self) -> StoreFacts:
        run, masters = self.run(), self._connected()
        memory = [information(connection, b"memory") for connection in masters.connections]
        limits = [int(each.get("maxmemory", "0")) for each in memory]
        keys = self._ask(
            (connection, command(b"HLEN", name)) for connection, name, _ in self._hashes()
        )
        return StoreFacts(
            run,
            sum(length for length in keys if isinstance(length, int)),
            sum(int(each["used_memory"]) for each in memory),
            sum(limits) if all(limits) else None,
            "; ".join(dict.fromkeys(filter(None, map(_loses, masters.connections)))),
        )

    def close(self) -> None:
        if self._masters is not None:
            self._masters.close()
            self._masters = None

    def _hashes(self) -> list[tuple[Connection, bytes, bytes]]:
        """Of each hash who has it, its name, and that of its stretches."""
        serving = self._connected().serving(_TAGS)
        names = [b"%b%b:{%02x}" % (_PREFIX, self._life, number) for number in range(layout.HASHES)]
        return [
            (connection, name, name + b":stretches")
            for connection, name in zip(serving, names, strict=True)
        ]

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

    def _ask(self, commands: Iterable[tuple[Connection, bytes]]) -> list[Reply]:
        """Commands, each to its server, and their replies."""
        replies: list[Reply] = []
        part: list[tuple[Connection, bytes]] = []
        unread = deque[list[Connection]]()
        size = 0

        def send() -> None:
            for connection in dict.fromkeys(connection for connection, _ in part):
                connection.send(b"".join(text for who, text in part if who is connection))
            unread.append([connection for connection, _ in part])
            part.clear()

        try:
            for connection, text in commands:
                part.append((connection, text))
                size += len(text)
                if size >= _PART_BYTES:
                    send()
                    size = 0
                if len(unread) > _UNREAD_MAX:
                    replies += [asked.reply() for asked in unread.popleft()]
            send()
            replies += [asked.reply() for connections in unread for asked in connections]
        except BaseException:
            # Replies that nobody has read would be taken for those of the next question
            self.close()
            raise
        return replies


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
