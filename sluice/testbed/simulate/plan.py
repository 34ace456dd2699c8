"""What one seed's world is like: sizes, time limits, what the server can do."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

from sluice.core.claims import Deduplicate, WhatOfDuplicates
from sluice.core.dynamic import DynamicColumns
from sluice.core.flights import INFLIGHT_INSERTS_MAX
from sluice.core.load_spec import Commit, Route
from sluice.core.ranges import TopicPartition
from sluice.testbed.simulate.clickhouse import TableShape
from sluice.testbed.simulate.messages import AGAIN, ROUTED, RULES

#: The two tables: one takes every topic, the other one topic and has ClickHouse partitions.
TABLES = ("plain", "parted")
#: What each table entry takes. In some worlds one more loads a topic into the first table again.
TOPICS = {"plain": ("a", "b"), "parted": ("a",), AGAIN: ("a",)}
#: The table that may be parked: it shares its topic.
PARKABLE = "parted"
#: Seeds whose worlds deduplicate, by their last digit; the others are what they always were.
_LAST_DIGITS = (0, 9)
#: Of these, seeds in whose worlds most events come again when the window of the first one ends, by
#: their last two digits.
_AT_THE_END = 99
#: Seeds whose worlds stage blocks, by their last digit, and the table that they do so of at least.
_LAST_DIGIT_OF_STAGED, _STAGED = 8, "plain"
#: Seeds in whose worlds entries have routes, by their last digit.
_LAST_DIGIT_OF_ROUTED = 4
_WAYS = (
    Route("header", "", ROUTED),
    Route("key-prefix", "", ROUTED[:3]),
    Route("envelope", "", ROUTED),
)


@dataclass(frozen=True, slots=True)
class ClaimsPlan:
    """What a world that deduplicates is like.

    :param rules: of each table entry that deduplicates.
    :param share: of the messages, how many are of an event that was there before.
    :param near: of those, how many are of one of the last events; of the others half are of events
        whose window is about to end.
    :param has_rows_alike: all rows of a message have one key.
    :param poll_seconds: how often a driver looks at the store.
    :param unrest: how often the store breaks.
    :param is_empty: nobody has used it before.
    :param at_the_end: what comes again is of events whose window is about to end, if there are any.
    """

    rules: dict[str, Deduplicate]
    share: float
    near: float
    has_rows_alike: bool
    poll_seconds: float
    unrest: float
    is_empty: bool
    at_the_end: bool


@dataclass(slots=True)
class Plan:
    """Drawn from the seed; the world changes a few of them while it runs.

    :param tokens: the server knows insert_deduplication_token; else it hashes.
    :param keep_alive_ms: how long the server keeps an idle connection.
    :param late_ms_max: how long after its lease an insert that the server already has may
        be executed.
    :param decoder: version of the engine that a new driver brings.
    :param loop_pauses_ms: how long a driver's loop may look away between two rounds.
    :param produce_every_ms: at most so long between two batches of messages.
    :param is_calm: the world strikes rarely by itself, so that windows fill within a lease.
    :param windows_every_seconds: how often a driver reads the windows.
    :param has_lineage: rows say where they are from, so a probe can tell what is missing.
    :param refuses: a table refuses its blocks from the beginning, and for long.
    :param shares_tasks: all ranges of a job are in one task.
    :param dynamic: which new fields get columns; None: there are none.
    :param inflight_inserts_max: ranges that may be in flight at a replica of a table.
    :param shards: the names of the shards; rows go to them by their offsets.
    :param is_quorum: blocks wait for two replicas.
    :param lag_ms: how long a replica may be behind the others.
    :param in_transactions: producers write in transactions.
    :param has_epochs: brokers tell leader epochs.
    :param malice: how often others use up what they may, when it does most harm.
    :param unrest: how often the world strikes by itself.
    :param unrest_of_jobs: how often a job is struck.
    :param insert_seconds: the time-out of an insert.
    :param inserts_take_ms: what each insert takes at least; more than its time-out in some worlds.
    :param rows_max: of a block, where messages have several.
    :param registered: the tables whose messages name schemas of a registry.
    :param patience_seconds: how long a schema is waited for that the registry does not know.
    :param entries: the table of each table entry.
    :param has_locks: loaders queue for a table whose server takes one quorum insert at a time.
    :param max_partitions: ranges of so many partitions are loaded as one block at most.
    :param stops: how many faults may be drawn after which a partition has to stop.
    :param claims: None where nobody deduplicates.
    :param staged: the tables whose blocks are staged (R21).
    :param commit: of the load spec; "bundle" where all tables are staged.
    :param routes: of table entries that take some messages of their topic only.
    :param members: of a fleet that shares the partitions; 0: whoever starts has all of them.
    :param wrong: how often what members know of each other is late, lost or wrong.
    """

    tokens: bool
    tables: tuple[TableShape, ...]
    partitions: dict[str, int]
    lease_seconds: float
    slots: int
    stops: int
    refuses: bool
    entries: dict[str, str]
    loop_pauses_ms: tuple[int, ...]
    produce_every_ms: int
    is_calm: bool
    windows_every_seconds: float
    has_lineage: bool
    shares_tasks: bool = False
    dynamic: DynamicColumns | None = None
    inflight_inserts_max: int = INFLIGHT_INSERTS_MAX
    shards: tuple[str, ...] = ("s1",)
    is_quorum: bool = False
    lag_ms: int = 200
    in_transactions: bool = False
    has_epochs: bool = False
    malice: float = 0.0
    unrest: float = 1.0
    unrest_of_jobs: float = 1.0
    insert_seconds: float = 30.0
    inserts_take_ms: int = 0
    rows_max: int = 1_000
    registered: tuple[str, ...] = ()
    patience_seconds: float = 60.0
    has_locks: bool = False
    max_partitions: int = 1
    messages_max: int = 0
    bytes_max: int = 0
    keep_alive_ms: int = 3_000
    late_ms_max: int = 0
    decoder: int = 0
    claims: ClaimsPlan | None = None
    staged: tuple[str, ...] = ()
    commit: Commit = "table"
    routes: dict[str, Route] = field(default_factory=dict)
    members: int = 0
    wrong: float = 0.0
    letter_bytes_max: int = 6_000
    ledger: str = "sluice.ledger"
    dead_letters: str = "sluice.letters"
    parking: str = "sluice.parking"
    duplicates: str = "sluice.duplicates"
    decisions: str = "sluice.decisions"

    def topics_of(self, entry: str) -> tuple[str, ...]:
        """The topics that a table entry takes."""
        return TOPICS[entry]

    def replicas(self, shard: str) -> tuple[str, ...]:
        """URLs of a shard's servers: two where every table is Replicated."""
        first = (f"http://{shard}a:8123",)
        shapes = [each for t in self.tables for each in (t, t.view) if each is not None]
        every = all(shape.is_replicated for shape in shapes)
        return (*first, f"http://{shard}b:8123") if every else first

    def draw_limits(self, rng: random.Random) -> None:
        """How large ranges are. One that is large by itself is loaded alone."""
        is_bundled = self.max_partitions > 1
        sizes = (2, 3) if self.is_calm else (2, 4, 10, 10)
        self.messages_max = rng.choice((30, 100) if is_bundled else sizes)
        self.bytes_max = rng.choice((5_000, 30_000, 200_000) if is_bundled else (5_000, 8_000))

    @property
    def lag_max(self) -> int:
        """Producers wait while so many offsets are not settled: the drain would only take
        longer."""
        return 50 if self.max_partitions == 1 else 120

    def draw_sources(
        self, rng: random.Random, sources: list[TopicPartition]
    ) -> list[TopicPartition]:
        """Where messages come at once; where bundles are, to several partitions."""
        together = min(len(sources), self.max_partitions)
        return rng.sample(sources, rng.randrange(together) + 1)

    @property
    def quiet_ms(self) -> int:
        """After so long without an active driver nobody may insert any more."""
        return int(self.lease_seconds * 1000) + 60_000


#: Tiny on purpose. One block of the partitioned table takes up to six entries, and what it is
#: reserved must fit into the other table too.
_WINDOWS = {"plain": (12, 12, 14, 24, 60), "parted": (12, 12, 16, 24, 60)}

#: Where the world is calm, a window passes several times within a lease, if the budget lets it.
_CALM_WINDOWS = (6, 8)

#: Busy worlds push blocks out of the window fast; idle ones let leases and offsets grow old.
_PACES: tuple[dict[str, Any], ...] = (
    {"loop_pauses_ms": (20, 50, 200), "produce_every_ms": 100, "windows_every_seconds": 1.0},
    {
        "loop_pauses_ms": (50, 200, 1_000, 3_000),
        "produce_every_ms": 1_000,
        "windows_every_seconds": 3.0,
    },
)


def draw_replacing(plan: Plan, rng: random.Random) -> None:
    """In some worlds, tables keep one of equal rows.

    :param rng: of its own: worlds without them are the same as ever.
    """
    if rng.random() < 0.75:
        return
    chosen = rng.choice((("plain",), ("parted",), TABLES))
    plan.tables = tuple(
        replace(shape, replaces=True, merges=False, view=None) if shape.name in chosen else shape
        for shape in plan.tables
    )
    plan.has_lineage = True


def draw_plan(rng: random.Random, replacing_rng: random.Random) -> Plan:
    """The plan of a seed: sizes and limits, and which of the features it has, some of them by an
    rng of their own."""
    is_calm = rng.random() < 0.35
    lease_seconds = rng.choice((30.0, 90.0)) if is_calm else rng.choice((8.0, 15.0, 30.0, 90.0))
    tokens = rng.random() < 0.75
    is_cluster = rng.random() < 0.3
    tables = []
    entries = {name: name for name in TABLES}
    if rng.random() < 0.2:
        entries[AGAIN] = "plain"
    for name in TABLES:
        # Each range takes entries for each table entry.
        share = list(entries.values()).count(name)
        is_replicated = is_cluster or rng.random() < 0.3
        windows = _CALM_WINDOWS if is_calm else _WINDOWS[name]
        seconds = int(lease_seconds * rng.choice((6, 6, 10, 60))) if is_replicated else None
        divisor = 0 if name == "plain" else 3 if is_calm else rng.choice((1, 2))
        view = None
        if rng.random() < 0.06:
            target = f"{name}_target"
            view = TableShape(target, share * windows[0], seconds, rng.choice((0, divisor)))
        shape = TableShape(
            name=name,
            window_blocks=share * rng.choice(windows if view is None else windows[-1:]),
            seconds=seconds,
            partition_divisor=divisor,
            view=view,
            merges=rng.random() < 0.03,
            is_many=rng.random() < (0.6 if divisor else 0.2),
        )
        tables.append(shape)
    insert_seconds = rng.choice((4.0, 30.0))
    is_slow = insert_seconds < lease_seconds / 4 and rng.random() < 0.2
    max_partitions = rng.choice((1, 2, 10))
    counts = (1, 2) if max_partitions == 1 else (2, 3, 5)
    plan = Plan(
        tokens=tokens,
        tables=tuple(tables),
        partitions={"a": rng.choice(counts), "b": rng.choice(counts)},
        lease_seconds=lease_seconds,
        slots=3 if is_calm else rng.choice((1, 2, 3)),
        stops=rng.choice((0, 0, 0, 0, 1, 2)),
        refuses=rng.random() < 0.4,
        entries=entries,
        is_calm=is_calm,
        has_lineage=not tokens or rng.random() < 0.85,
        dynamic=RULES if rng.random() < 0.4 else None,
        inflight_inserts_max=rng.choice((1, 2, INFLIGHT_INSERTS_MAX)),
        shards=("s1", "s2") if rng.random() < 0.3 else ("s1",),
        is_quorum=is_cluster and rng.random() < 0.5,
        lag_ms=rng.choice((200, 5_000, 60_000, 150_000)),
        in_transactions=rng.random() < 0.25,
        has_epochs=rng.random() < 0.7,
        malice=rng.choice((0.0, 0.3, 0.9)),
        unrest=rng.choice((0.05, 0.15, 0.15, 0.4)),
        unrest_of_jobs=rng.choice((0.2, 0.6, 1.5)),
        insert_seconds=insert_seconds,
        inserts_take_ms=rng.randrange(4_500, 7_000) if is_slow else 0,
        rows_max=rng.choice((6, 12, 1_000)),
        registered=rng.choice(((), (), (), ("plain",), ("parted",), TABLES)),
        patience_seconds=rng.choice((3.0, 20.0, 60.0)),
        has_locks=rng.random() < 0.7,
        max_partitions=max_partitions,
        **(_PACES[0] if is_calm else rng.choice(_PACES)),
    )
    plan.draw_limits(rng)
    draw_replacing(plan, replacing_rng)
    return replace(plan, slots=1, shares_tasks=True) if rng.random() < 0.4 else plan


def draw_claims(seed: int, rng: random.Random, plan: Plan) -> ClaimsPlan | None:
    """What is deduplicated in a world with this plan, which it may change; None: nothing is.

    :param rng: of these things alone, so that other worlds are what they are without them.
    """
    if seed % 10 not in _LAST_DIGITS:
        return None
    if rng.random() < 0.7 and not plan.inserts_take_ms:
        # So that windows end while it runs.
        plan.lease_seconds = min(plan.lease_seconds, rng.choice((8.0, 8.0, 15.0)))
        plan.produce_every_ms = rng.choice((plan.produce_every_ms, 3_000, 8_000))
    names = rng.choice((TABLES, TABLES, TABLES[:1], (PARKABLE,)))
    entries = [entry for entry, table in plan.entries.items() if table in names]
    many = {shape.name for shape in plan.tables if shape.is_many}
    window_seconds = int(plan.lease_seconds * rng.choice((12, 12, 12, 20)))
    copies: WhatOfDuplicates = "drop"
    if rng.random() < 0.5:
        copies = "dead-letter" if seed % 20 < 10 else "topic"
    at_the_end = seed % 100 == _AT_THE_END
    if at_the_end:
        plan.lease_seconds, plan.produce_every_ms = min(plan.lease_seconds, 8.0), 2_000
        window_seconds = int(12 * plan.lease_seconds)
    return ClaimsPlan(
        rules={
            entry: Deduplicate(
                ("number",),
                window_seconds,
                "",
                "drop" if plan.entries[entry] in many else copies,
            )
            for entry in entries
        },
        share=0.8 if at_the_end else rng.choice((0.1, 0.3, 0.6)),
        near=rng.choice((0.3, 0.7, 0.95)),
        at_the_end=at_the_end,
        has_rows_alike=rng.random() < 0.3,
        poll_seconds=rng.choice((1.0, 2.0)),
        unrest=0.0 if at_the_end else rng.choice((0.3, 1.0, 1.0, 3.0)),
        is_empty=rng.random() < 0.2,
    )


def draw_staged(seed: int, rng: random.Random, plan: Plan) -> None:
    """Which tables' blocks are staged in a world with this plan, which it changes.

    :param rng: of these things alone, so that other worlds are what they are without them.
    """
    if seed % 10 != _LAST_DIGIT_OF_STAGED:
        return
    # Without tokens a server copies, and only rows tell what it has copied.
    plan.tokens = plan.tokens and rng.random() < 0.6
    plan.staged = rng.choice(((_STAGED,), TABLES))
    if plan.staged == TABLES:
        plan.commit = rng.choice(("table", "bundle", "bundle"))
    plan.tables = tuple(
        _staged(rng, plan, each) if each.name in plan.staged else each for each in plan.tables
    )
    plan.is_quorum = False
    plan.has_lineage = plan.has_lineage or not plan.tokens
    plan.registered = tuple(name for name in plan.registered if name not in plan.staged)


def draw_routes(seed: int, rng: random.Random, plan: Plan) -> None:
    """Which entries have a route in a world with this plan, which it changes. The first table takes
    all messages, so that each of them is taken by an entry.

    :param rng: of these things alone, so that other worlds are what they are without them.
    """
    if seed % 10 == _LAST_DIGIT_OF_ROUTED:
        plan.routes = {entry: rng.choice(_WAYS) for entry in plan.entries if entry != "plain"}


def _staged(rng: random.Random, plan: Plan, shape: TableShape) -> TableShape:
    """A table as it has to be: what cannot be staged is refused."""
    view = None
    if plan.tokens and rng.random() < 0.4:
        view = TableShape(f"{shape.name}_target", 10, None, rng.choice((0, 2)))
    return replace(
        shape,
        seconds=None,
        view=view,
        replaces=False,
        partition_divisor=rng.choice((0, 2, 3)),
        merges=plan.tokens and rng.random() < 0.3,
    )
