"""What must hold of claims (R20), seen by somebody who knows which message tells of which event."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sluice.claims.owners import owners_of
from sluice.core.claim_notes import Part as PartOfClaims
from sluice.core.claim_notes import Space
from sluice.core.claims import Deduplicate, key_space, loader_number
from sluice.core.dead_letters import DUPLICATE
from sluice.core.ranges import TopicPartition
from sluice.testbed.simulate.claims import Events, Kept
from sluice.testbed.simulate.clickhouse import COLUMNS, ROW_NUMBERS, Host, Part, Row, Table
from sluice.testbed.simulate.inserters import Inserters, key_of
from sluice.testbed.simulate.kafka import Transaction
from sluice.testbed.simulate.messages import AGAIN, AGAIN_NUMBERS
from sluice.testbed.simulate.processes import Records, WorkerProcess, in_words
from sluice.testbed.simulate.registry import Registry
from sluice.testbed.simulate.world import World

_SPACE = "space "
#: Of keys that were claimed from the tables.
_UNKNOWN = 1 << 40


class Stored(NamedTuple):
    """A row that was stored; it may have gone since.

    :param since_s: when the range was intended that claimed its key, as its task was told.
    :param part_ms: when its part came, by the server's clock.
    """

    table: Table
    row: Row
    since_s: int
    part_ms: int

    @property
    def is_there(self) -> bool:
        """Whether it has not gone."""
        numbers = self.table.rows.get((self.row.source, self.row.offset))
        return numbers is not None and numbers[self.row.number] > 0


class ClaimRules:
    """Of one world."""

    def __init__(
        self,
        world: World,
        kept: Kept | None,
        events: Events | None,
        inserters: Inserters,
        registry: Registry,
    ) -> None:
        self._world = world
        self._kept = kept
        self._events = events
        self._inserters = inserters
        self._registry = registry
        self._plan = world.plan.claims
        rules = self._plan.rules if self._plan is not None else {}
        self.space_of = {
            entry: key_space(_scoped(world, entry, rule), COLUMNS) for entry, rule in rules.items()
        }
        if kept is not None and self._plan is not None and not self._plan.is_empty:
            for entry, space in self.space_of.items():
                text = Space(kept.run, world.now).written()
                target = f"d.{world.plan.entries[entry]}"
                part = PartOfClaims(space, target, rules[entry].window_seconds)
                kept.write(_SPACE + part.name, text)
        self._stored: dict[bytes, list[Stored]] = {}
        #: Under which run a task has claimed.
        self._claimed: dict[frozenset[Any], str] = {}
        notes = kept.notes if kept is not None else {}
        self._opened = {name: Space.read(text).run for name, text in notes.items()}
        #: Of which partitions the messages were that claimed a key, and others beside them.
        self._claimed_in: dict[bytes, set[TopicPartition]] = {}
        #: What a place was told of its key in a run, for a range that was intended then.
        self._told: dict[tuple[str, bytes, int], bool] = {}
        #: And under which run a block was sent first.
        self._inserted: dict[Any, str] = {}
        #: When the range was intended that claimed a key first, and when it was planned anew last.
        self._first_s: dict[bytes, int] = {}
        self._last_s: dict[bytes, int] = {}

    # Keys

    def key(self, entry: str, number: int) -> bytes | None:
        """The key of a row; None: the entry does not deduplicate, or it has none.

        :param number: what the row says.
        """
        space = self.space_of.get(entry)
        if space is None or self._events is None:
            return None
        number -= AGAIN_NUMBERS if entry == AGAIN else 0
        if not self._is_many(entry):
            return self._events.key(space, number, 0)
        return self._events.key(space, number // ROW_NUMBERS, number % ROW_NUMBERS)

    def _is_many(self, entry: str) -> bool:
        table = self._world.plan.entries[entry]
        return self._world.clickhouse.of_name(table)[0].shape.is_many

    # What is claimed, and when a store is opened

    def claimed(self, asked: Sequence[tuple[bytes, bytes]], found: list[bytes], run: str) -> None:
        """The running process was told who has these keys."""
        world, worker = self._world, self._world.process
        if not isinstance(worker, WorkerProcess):
            return
        if run not in self._opened.values():
            world.violate(f"{in_words(worker.records)} claims in {run}, not open (I11)")
        self._claimed[_named(worker.records)] = run
        assert self._plan is not None
        since_s, rules = worker.since_ms // 1000, self._plan.rules.values()
        window = max(rule.window_seconds for rule in rules)
        for (key, owner), has in zip(asked, found, strict=True):
            told = self._told.setdefault((run, owner, since_s), has == owner)
            if told != (has == owner):
                world.violate(
                    f"{in_words(worker.records)} is told another thing of a key than before (R8)"
                )
            if has != owner:
                world.faults.note("duplicate event")
                apart = since_s - self._last_s[key]
                if apart > window:
                    world.violate(
                        f"{in_words(worker.records)} has an event {apart} s after the first one, "
                        f"and makes no row of it, beyond {window} s (R20)"
                    )

    def owned(self, key: bytes, *, is_new: bool) -> None:
        """A key has got another owner, or the same one for longer."""
        worker = self._world.process
        if isinstance(worker, WorkerProcess):
            self._claimed_in.setdefault(key, set()).update(worker.records)
        since_ms = worker.since_ms if isinstance(worker, WorkerProcess) else 1000 * _UNKNOWN
        self._last_s[key] = since_ms // 1000
        if is_new:
            self._first_s[key] = since_ms // 1000

    def noted(self, name: str, text: str) -> None:
        """A note is about to be written. Where it opens a store, nobody inserts any more under
        claims of another run."""
        if not name.startswith(_SPACE):
            return
        run = Space.read(text).run
        assert self._kept is not None
        if run != self._kept.run:
            self._world.violate(f"{run} is opened in {self._kept.run} (R20)")
        before, self._opened[name] = self._opened.get(name), run
        if before == run:
            return
        self._world.faults.note("store of claims opened")
        for each in self._inserters.all_of():
            under = self._claimed.get(_named(each.records), run)
            if under != run and not each.records.keys() & self._world.excused.keys():
                self._world.violate(
                    f"{run} is opened while {in_words(each.records)} may be inserted under {under}"
                )

    # What is inserted, and stored

    def inserts(self, records: Records, entry: str) -> None:
        """A block is sent. Under one token no row is left out for what another run said."""
        if entry not in self.space_of:
            return
        run = self._claimed.get(_named(records), "")
        before = self._inserted.setdefault(key_of(records, entry), run)
        if before != run and not records.keys() & self._world.excused.keys():
            self._world.violate(
                f"{in_words(records)} claimed in {run or 'none'}, and is inserted under a token "
                f"that was sent under {before or 'none'} (R20)"
            )

    def stored(
        self, parts: Iterable[Part], table: Table, entry: str, since_ms: int, at: Host
    ) -> None:
        """Parts are stored. Within the window of a row there is none of its key."""
        world = self._world
        if self._plan is None or entry not in self.space_of:
            return
        window = self._plan.rules[entry].window_seconds
        for row in (row for part in parts for row in part.rows):
            key = self.key(entry, row.number)
            if key is None:
                continue
            rows = self._stored[key] = [s for s in self._stored.get(key, ()) if s.is_there]
            # A claim keeps its end, however late its row comes.
            since_s = min(since_ms // 1000, self._first_s.get(key, _UNKNOWN))
            now = Stored(table, row, since_s, world.now + at.skew_ms)
            for other in rows:
                is_other = (other.row.source, other.row.offset) != (row.source, row.offset)
                is_other = is_other or other.row.number != row.number
                is_excused = {other.row.source, row.source} & world.excused.keys()
                apart = abs(other.since_s - now.since_s)
                if is_other and not is_excused and apart <= window:
                    world.violate(
                        f"{row.source} {row.offset} and {other.row.source} {other.row.offset} in "
                        f"{entry} are of one event, {apart} s apart, within {window} s (R20)"
                    )
            rows.append(now)

    def rows_since(self, table: Table, space: str, since_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Key and owner of each row that came since then, the oldest first."""
        found = []
        for key, rows in self._stored.items():
            for each in rows:
                entry = _entry_of(each)
                if (
                    each.table is table
                    and each.is_there
                    and self.space_of.get(entry) == space
                    and each.part_ms // 1000 * 1000 >= since_ms
                ):
                    found.append((each.part_ms, key, self._owner(each, entry)))
        yield from ((key, owner) for _, key, owner in sorted(found))

    def _owner(self, each: Stored, entry: str) -> bytes:
        row = each.row
        source = each.table.loaders[row.source, row.offset, row.number]
        pipeline, connector, topic_id, *_ = source.split("/")
        number = row.number - (AGAIN_NUMBERS if entry == AGAIN else 0)
        return bytes(
            owners_of(
                [topic_id],
                [row.source.partition],
                0,
                loader_number(pipeline, connector, entry),
                np.array([row.offset], np.uint64),
                np.array([number % ROW_NUMBERS if self._is_many(entry) else 0], np.uint32),
            )[0]
        )

    # Messages without rows

    def may_lack(
        self, entry: str, numbers: Collection[int], found: Collection[int], dead: int, waits: int
    ) -> bool:
        """Whether a message may have made no more than these rows.

        :param numbers: that it makes by itself.
        """
        lacking = [number for number in numbers if number not in found]
        if not lacking or self._plan is None or entry not in self.space_of or waits:
            return False
        is_copied = self._plan.rules[entry].duplicates != "drop" and not found
        return dead == int(is_copied) and all(
            self.key(entry, number) is not None for number in lacking
        )

    def check_copies(self, transaction: Transaction) -> None:
        """Copies of duplicates are where their entry wants them."""
        plan, rules = self._world.plan, self._plan.rules if self._plan is not None else {}
        topics = {"topic": plan.duplicates, "dead-letter": plan.dead_letters}
        for topic, stored in transaction.messages:
            headers = dict(stored.headers)
            if headers.get("sluice.reason") != DUPLICATE.encode():
                if topic == plan.duplicates:
                    self._world.violate(f"{headers} is no duplicate, and in their topic")
                continue
            self._world.faults.note("duplicate copied")
            entry = (headers["sluice.table"] or b"").decode()
            if topics.get(rules[entry].duplicates) != topic:
                self._world.violate(f"a copy of a duplicate of {entry} is in {topic}")

    def check_lost(self, parked: Collection[tuple[TopicPartition, int, str]]) -> None:
        """In the end: each key that a message could have made a row of has one.

        :param parked: messages that wait.
        """
        world, excused = self._world, set[bytes]()
        wanted: dict[bytes, str] = {}
        for source, offset, value in committed(world):
            for entry in self.space_of:
                if source.topic not in world.plan.topics_of(entry):
                    continue
                wants, numbers = self._registry.outcomes(entry, value)
                keys = {key for number in numbers if (key := self.key(entry, number))}
                is_gone = source in world.excused or source in world.cut_logs
                is_waiting = (source, offset, entry) in parked
                # Made a row by one engine, and claimed; none by the next one.
                is_doubtful = (0, 1, 0) in wants
                if is_gone or is_waiting or is_doubtful:
                    excused |= keys
                else:
                    wanted |= dict.fromkeys(keys, f"{source} {offset} in {entry}")
        # Those that nobody has any more, or that a person has to decide about.
        gone = world.excused.keys() | world.cut_logs
        excused |= {key for key, sources in self._claimed_in.items() if sources & gone}
        for key, place in wanted.items():
            if key not in excused and not any(each.is_there for each in self._stored.get(key, ())):
                world.violate(f"{place} has no row, nor has any message of its event (R20)")


def _scoped(world: World, entry: str, rule: Deduplicate) -> Deduplicate:
    return replace(rule, scope=f"p/d.{world.plan.entries[entry]}")


def _entry_of(each: Stored) -> str:
    return each.table.loaders[each.row.source, each.row.offset, each.row.number].split("/")[3]


def _named(records: Records) -> frozenset[Any]:
    return frozenset(records.items())


def committed(world: World) -> Iterator[tuple[TopicPartition, int, bytes]]:
    """Every message that has a value and is committed."""
    for source in world.sources():
        log = world.broker.log(source)
        for offset, (message, transaction) in enumerate(log.places[: log.stable_end]):
            gone = transaction is not None and transaction.state == "aborted"
            if message is not None and message.value is not None and not gone:
                yield source, offset, message.value
