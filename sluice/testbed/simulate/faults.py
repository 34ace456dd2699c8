"""Which faults there are, how often they strike, and how often they did."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate

#: What may strike a process wherever it touches the world.
ANYWHERE = {"process killed": 0.25, "process paused": 0.35, "slow call": 1.0}

#: What may strike one call of a Kafka client.
READ_OFFSETS = {"offset read fails": 1.5, **ANYWHERE}
LIST_OFFSETS = {"watermark read fails": 1.0, "one partition does not answer": 1.0, **ANYWHERE}
LEDGER_ENDS = {"take-over hesitates between group and ledger": 15.0, **LIST_OFFSETS}
FETCH = {"fetch fails": 0.5, "fetch stalls": 0.7, **ANYWHERE}
INITIALISE = {"init fails": 1.5, "init hangs": 0.3, "init is slow": 20.0, **ANYWHERE}
SEND = {
    "send of offsets fails": 1.5,
    "send of offsets: reply lost": 1.5,
    "send of offsets hangs": 0.6,
    **ANYWHERE,
}
COMMIT = {
    "commit: reply lost": 3.0,
    "commit: request lost": 2.0,
    "commit: request late": 1.5,
    "commit: outcome unknown": 3.0,
    "commit hangs": 0.8,
    **ANYWHERE,
}
ABORT = {"abort fails": 15.0, **ANYWHERE}

#: What may strike one request to ClickHouse.
QUERY = {
    "query fails": 1.0,
    "query is refused": 0.3,
    "answer of a query is slow": 1.5,
    "answer of a query is cut off": 0.3,
    **ANYWHERE,
}
REGISTRY = {"registry gives no answer": 3.0, **ANYWHERE}
LOCKS = {"locks are away": 15.0, "lock is lost": 15.0, **ANYWHERE}
PING = {"ping fails": 1.0, **ANYWHERE}
#: What may strike when claims are made; and when somebody looks at their store.
CLAIM = {
    "claims: no answer": 8.0,
    "claims: answer lost": 24.0,
    "claims: half done": 40.0,
    "claims: slow": 8.0,
    "claims: a copy goes on without them": 40.0,
    "claims: paused after the answer": 32.0,
    "claims: paused after the answer, and the store breaks": 48.0,
    **ANYWHERE,
}
LOOK_AT_CLAIMS = {
    "look at claims: no answer": 2.0,
    "look at claims: answer lost": 2.0,
    "look at claims: slow": 2.0,
    **ANYWHERE,
}
BEFORE_POST = {"paused between lease check and insert": 3.0, **ANYWHERE}
INSERT = {
    "insert: acknowledgement lost": 3.0,
    "insert: request lost": 1.5,
    "insert: partial over ClickHouse partitions": 7.0,
    "insert: quorum error after storing": 2.0,
    "insert: quorum error before storing": 1.0,
    "insert: table is read-only": 2.0,
    "insert: too many queries": 2.0,
    "insert: too many parts": 1.5,
    "insert: no room on the disk": 1.5,
    "insert: fails in any way": 2.0,
    "insert: reply of a proxy": 2.0,
    "insert: answer cut off, lands late": 6.0,
    "insert: server dies between token and part": 4.0,
    "insert: slow": 2.5,
    "insert: hangs and lands late": 5.0,
    "insert: hangs and never lands": 2.5,
}

#: What may strike a job or a task of Spark.
JOB = {
    "job lost, its tasks live on": 2.5,
    "job lost, its tasks die": 1.5,
    "job lost, its task sleeps and wakes up": 4.0,
    "job lost, its task wakes late in its lease": 2.0,
    "job lost, its task wakes after a column was added": 8.0,
    "driver killed, its task wakes under another engine": 4.0,
    "driver killed after half an insert": 14.0,
    "task started again while the first one runs": 2.0,
    "task started again after the first one died": 2.0,
    "speculative copy": 2.0,
    "task never comes back": 3.0,
    "task waits for an executor": 2.0,
    "task waits for an executor whose clock is behind": 8.0,
    "Spark is gone": 1.0,
}

#: The same where the world is calm: mostly tasks that come late, while windows fill.
CALM_JOB = {
    **JOB,
    "job lost, its task wakes late in its lease": 30.0,
}

#: What the world does by itself, at any step.
NEMESIS = {
    "driver killed": 6.0,
    "driver killed, its tasks live on": 6.0,
    "driver paused": 4.0,
    "driver paused beyond lease and window": 8.0,
    "duplicate driver": 4.0,
    "two drivers take over at once": 14.0,
    "partition appears under a zombie": 3.0,
    "driver asked to stop": 2.0,
    "configuration changed": 2.0,
    "decoder judges messages differently": 3.0,
    "ClickHouse partition key changes": 1.0,
    "column added to a table": 4.0,
    "worker paused": 4.0,
    "worker clock off": 2.0,
    "ClickHouse outage": 4.0,
    "ClickHouse restart": 2.0,
    "ClickHouse read-only for a while": 2.0,
    "a table refuses its blocks": 8.0,
    "foreign writer fills the window": 14.0,
    "foreign writer floods the window": 4.0,
    "newest foreign parts are dropped": 4.0,
    "registry forgets for a while": 6.0,
    "rows of another pipeline": 6.0,
    "Kafka outage": 3.0,
    "foreign transaction stays open": 10.0,
    "foreign transaction is aborted": 4.0,
    "offsets with holes": 6.0,
    "open transaction of others in the ledger": 6.0,
    "partitions added": 2.5,
    "another leader": 6.0,
    "end of a log lost, and filled again": 6.0,
}

#: The same of the store of claims, in worlds that have one.
STORE = {
    "store of claims away": 8.0,
    "store of claims started again": 8.0,
    "a copy of the store of claims goes on": 10.0,
    "store of claims lost": 5.0,
}

#: Faults after which a partition has to stop; few seeds draw them, and then few times.
STOPPING = {
    "foreign commit": 1.0,
    "offsets expired": 1.0,
    "log truncated": 1.0,
    "log cut below what is recorded, and filled again": 3.0,
    "messages expired": 1.0,
    "topic created again": 1.0,
    "ledger lost": 1.0,
}

#: Drawn by what is produced, not by chance at a call.
CONTENT = (
    "bad message",
    "message bad for one table only",
    "tombstone",
    "bundle of several ranges",
    "bundle of ranges that a probe did not find",
    "bundle refused as too heavy",
    "range of a bundle given back",
    "heavy message",
    "oversize dead letter",
    "message that decoders judge differently",
    "own transaction timed out",
    "lease over before the insert",
    "range refused as too heavy",
    "range refused for its reservation",
    "range given back untried",
    "probe",
    "range that only a person resolves",
    "take-over",
    "two drivers start at once",
    "owner fenced",
    "block deduplicated",
    "block went to another replica",
    "block went to another replica, in doubt at the first",
    "late insert after the lease",
    "part lost before its quorum came",
    "new load spec while the driver runs",
    "load spec refused by its first task",
    "range refused for its new fields",
    "range refused for unknown schemas",
    "schema that comes late to the registry",
    "schema that no registry knows",
    "probe of the rows of messages",
    "an insert lock of a table",
    "an insert lock does not come in time",
    "columns added for new fields",
    "message parked",
    "insert: slower than its time-out",
    "shards left with different columns",
    "stable offset that never moves",
    "window overrun",
)

#: Drawn in worlds that deduplicate only, and their shares from chance of its own.
OF_CLAIMS = tuple(
    kind for table in (CLAIM, LOOK_AT_CLAIMS, STORE) for kind in table if kind not in ANYWHERE
)
#: What such a world makes happen.
CONTENT_OF_CLAIMS = (
    "duplicate event",
    "same event long after it",
    "store of claims opened",
    "claims made again from the tables",
    "duplicate copied",
)

#: What tables that keep one of equal rows make happen.
CONTENT_OF_REPLACING = ("equal row came again",)

#: What may strike a statement about a staged block; drawn in worlds that stage only.
STATEMENT = {
    "statement: answer lost": 14.0,
    "statement: request lost": 4.0,
    "statement: comes late": 14.0,
    "statement: paused before it is sent": 10.0,
    "statement: server dies in a move": 10.0,
    "statement: server is started again after it": 6.0,
    "statement: server loses a stored block": 4.0,
}
#: What such a world makes happen.
CONTENT_OF_STAGED = (
    "staged block moved",
    "staged block behind a view moved",
    "staged block claimed from another attempt",
    "staged block was sealed by another attempt",
    "staging: marker dropped",
    "staging: stored block dropped",
)

#: What servers do that wait for a quorum of a part which another one has.
CONTENT_OF_QUORUMS = ("OK to a repeat whose quorum was given up",)

#: What a person does, in worlds that have one.
CONTENT_OF_FREEZES = ("frozen by a person", "resumed by a person")

_TABLES = (
    *(READ_OFFSETS, LIST_OFFSETS, LEDGER_ENDS, FETCH, INITIALISE, SEND, COMMIT, ABORT, QUERY),
    *(REGISTRY, LOCKS, PING, BEFORE_POST, INSERT, JOB, NEMESIS, STOPPING),
)

_OF_ALL_WORLDS = tuple(dict.fromkeys([kind for table in _TABLES for kind in table] + list(CONTENT)))
#: Everything that a budget of seeds has to draw.
ALL_KINDS = tuple(
    dict.fromkeys(
        [
            *(*_OF_ALL_WORLDS, *OF_CLAIMS, *CONTENT_OF_CLAIMS, *CONTENT_OF_REPLACING),
            *(*STATEMENT, *CONTENT_OF_STAGED, *CONTENT_OF_QUORUMS, *CONTENT_OF_FREEZES),
        ]
    )
)


#: What has to come together by chance; some hundreds of seeds may do without.
RARE = frozenset(
    {
        "shards left with different columns",
        "part lost before its quorum came",
        "OK to a repeat whose quorum was given up",
        "ledger lost",
        # Once in some fifty seeds.
        "an insert lock does not come in time",
        "block went to another replica",
        # Of one seed in ten, whose worlds stage.
        "staged block was sealed by another attempt",
        "statement: request lost",
        "statement: server dies in a move",
        "statement: server loses a stored block",
        # A task claims some dozens of times in a run.
        "claims: slow",
    }
)

#: Of each kind in a seed: two fifths of them never strike, and one in ten strikes all the time.
SWARM = (0.0, 0.0, 0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 4.0, 10.0)


class Faults:
    """Draws faults from one seed.

    :param rate: probability that a fault of weight 1 strikes at a step.
    """

    def __init__(self, rng: random.Random, rate: float) -> None:
        self.rng = rng
        self.rate = rate
        self.is_on = True
        self.counts: Counter[str] = Counter()
        self._drawn: dict[int, tuple[list[str], list[float]]] = {}
        #: By kind, how much more often it strikes than its weight says: a seed in which some things
        #: never happen, and others all the time, reaches what no average one does.
        self._swarm = {kind: rng.choice(SWARM) for kind in _OF_ALL_WORLDS}

    def add(self, rng: random.Random, kinds: Iterable[str]) -> None:
        """These kinds strike in this world, too."""
        self._swarm |= {kind: rng.choice(SWARM) for kind in dict.fromkeys(kinds)}

    def draw(self, table: Mapping[str, float], factor: float = 1.0) -> str | None:
        """One of the table's faults, or mostly None."""
        if not self.is_on:
            return None
        kinds, weights = self._drawn.get(id(table)) or self._prepare(table)
        point = self.rng.random()
        if point >= weights[-1] * self.rate * factor:
            return None
        point /= self.rate * factor
        kind = next(k for k, weight in zip(kinds, weights, strict=True) if point < weight)
        self.counts[kind] += 1
        return kind

    def note(self, kind: str) -> None:
        """Count what the world or the loader made happen."""
        self.counts[kind] += 1

    def _prepare(self, table: Mapping[str, float]) -> tuple[list[str], list[float]]:
        weights = (weight * self._swarm[kind] for kind, weight in table.items())
        prepared = self._drawn[id(table)] = (list(table), list(accumulate(weights)))
        return prepared
