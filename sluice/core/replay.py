"""What a driver does with a partition when it takes it over: one exhaustive table.

Every combination of facts meets exactly one rule; a test walks all of them. A field that a
rule leaves out does not matter to it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum


class Committed(Enum):
    """What the consumer group holds for the partition."""

    ABSENT = "absent"
    INVALID = "invalid"  # an offset without a valid record of ours (H2)
    SETTLED = "settled"
    IN_DOUBT = "in doubt"


class Ledger(Enum):
    """What the ledger's last record of the partition says (H3)."""

    ABSENT = "absent"  # no record of this partition, ever
    AGREES = "agrees"
    DIFFERS = "differs"


class Topic(Enum):
    """What is known of the topic."""

    NEW = "new"  # no partition of it has a record
    KNOWN = "known"
    RECREATED = "re-created"  # its id is not the recorded one (H12)


class Log(Enum):
    """Whether the offsets that matter are still there."""

    COVERS = "covers"
    BEGIN_LOST = "begin lost"  # the log begins after the settled position
    END_LOST = "end lost"  # the last stable offset is before the recorded end


class Memory(Enum):
    """Whether ClickHouse surely still remembers the blocks of the range (R9, R10)."""

    HOLDS = "holds"
    OVERRUN = "overrun"


class Executable(Enum):
    """Whether the recorded load spec can be executed today (R8)."""

    YES = "yes"
    NO = "no"


class Probe(Enum):
    """Whether a probe could tell what is missing (R11)."""

    POSSIBLE = "possible"
    IMPOSSIBLE = "impossible"  # views, no lineage columns, or rows that may go by themselves


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the decision looks at."""

    committed: Committed
    ledger: Ledger
    topic: Topic
    log: Log
    memory: Memory
    executable: Executable
    probe: Probe


class Decision(Enum):
    """What follows. STOP_* stop this partition only."""

    START = "start"  # a topic that never existed here: at the configured start
    START_AT_ZERO = "start at zero"  # a new partition of a known topic
    CONSUME = "consume"
    REPLAY = "replay"
    PROBE = "probe"
    STOP_FOREIGN = "stop: foreign commit"
    STOP_OFFSETS_LOST = "stop: committed offset vanished"
    STOP_LEDGER = "stop: group and ledger disagree"
    STOP_RECREATED = "stop: topic was re-created"
    STOP_LOG_BEGIN = "stop: log begins after the position"
    STOP_LOG_END = "stop: log ends before the recorded end"
    STOP_RESOLVE = "stop: only a person can resolve the range in doubt"

    @property
    def stops(self) -> bool:
        """Whether the partition stops."""
        return self.name.startswith("STOP")


_VALID = frozenset({Committed.SETTLED, Committed.IN_DOUBT})


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision and, for each fact, the values under which it is taken; empty means any."""

    decision: Decision
    committed: frozenset[Committed] = frozenset()
    ledger: frozenset[Ledger] = frozenset()
    topic: frozenset[Topic] = frozenset()
    log: frozenset[Log] = frozenset()
    memory: frozenset[Memory] = frozenset()
    executable: frozenset[Executable] = frozenset()
    probe: frozenset[Probe] = frozenset()

    def matches(self, facts: Facts) -> bool:
        """Whether this rule speaks about these facts."""
        for fact in fields(Facts):
            allowed = getattr(self, fact.name)
            if allowed and getattr(facts, fact.name) not in allowed:
                return False
        return True


_SAME_TOPIC = frozenset({Topic.NEW, Topic.KNOWN})
_GROUP_AND_LEDGER_AGREE = {
    "ledger": frozenset({Ledger.AGREES}),
    "topic": _SAME_TOPIC,
}

REPLAY_RULES: tuple[Rule, ...] = (
    # Never recorded: "never existed" is judged by ledger and group together.
    Rule(
        Decision.START,
        committed=frozenset({Committed.ABSENT}),
        ledger=frozenset({Ledger.ABSENT}),
        topic=frozenset({Topic.NEW}),
    ),
    Rule(
        Decision.START_AT_ZERO,
        committed=frozenset({Committed.ABSENT}),
        ledger=frozenset({Ledger.ABSENT}),
        topic=frozenset({Topic.KNOWN}),
        log=frozenset({Log.COVERS, Log.END_LOST}),
    ),
    Rule(
        Decision.STOP_LOG_BEGIN,
        committed=frozenset({Committed.ABSENT}),
        ledger=frozenset({Ledger.ABSENT}),
        topic=frozenset({Topic.KNOWN}),
        log=frozenset({Log.BEGIN_LOST}),
    ),
    Rule(
        Decision.STOP_RECREATED,
        committed=frozenset({Committed.ABSENT}),
        ledger=frozenset({Ledger.ABSENT}),
        topic=frozenset({Topic.RECREATED}),
    ),
    # Recorded once, and the group's copy is gone: expired, reset or deleted (H3).
    Rule(
        Decision.STOP_OFFSETS_LOST,
        committed=frozenset({Committed.ABSENT}),
        ledger=frozenset({Ledger.AGREES, Ledger.DIFFERS}),
    ),
    Rule(Decision.STOP_FOREIGN, committed=frozenset({Committed.INVALID})),
    Rule(
        Decision.STOP_LEDGER,
        committed=_VALID,
        ledger=frozenset({Ledger.ABSENT, Ledger.DIFFERS}),
    ),
    Rule(
        Decision.STOP_RECREATED,
        committed=_VALID,
        ledger=frozenset({Ledger.AGREES}),
        topic=frozenset({Topic.RECREATED}),
    ),
    Rule(
        Decision.STOP_LOG_BEGIN,
        committed=_VALID,
        log=frozenset({Log.BEGIN_LOST}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.STOP_LOG_END,
        committed=_VALID,
        log=frozenset({Log.END_LOST}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.CONSUME,
        committed=frozenset({Committed.SETTLED}),
        log=frozenset({Log.COVERS}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.REPLAY,
        committed=frozenset({Committed.IN_DOUBT}),
        log=frozenset({Log.COVERS}),
        memory=frozenset({Memory.HOLDS}),
        executable=frozenset({Executable.YES}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.PROBE,
        committed=frozenset({Committed.IN_DOUBT}),
        log=frozenset({Log.COVERS}),
        memory=frozenset({Memory.OVERRUN}),
        probe=frozenset({Probe.POSSIBLE}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.PROBE,
        committed=frozenset({Committed.IN_DOUBT}),
        log=frozenset({Log.COVERS}),
        memory=frozenset({Memory.HOLDS}),
        executable=frozenset({Executable.NO}),
        probe=frozenset({Probe.POSSIBLE}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.STOP_RESOLVE,
        committed=frozenset({Committed.IN_DOUBT}),
        log=frozenset({Log.COVERS}),
        memory=frozenset({Memory.OVERRUN}),
        probe=frozenset({Probe.IMPOSSIBLE}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
    Rule(
        Decision.STOP_RESOLVE,
        committed=frozenset({Committed.IN_DOUBT}),
        log=frozenset({Log.COVERS}),
        memory=frozenset({Memory.HOLDS}),
        executable=frozenset({Executable.NO}),
        probe=frozenset({Probe.IMPOSSIBLE}),
        **_GROUP_AND_LEDGER_AGREE,  # type: ignore[arg-type]
    ),
)


def decide(facts: Facts) -> Decision:
    """The one rule that speaks about these facts.

    :raises LookupError: the table has a hole or an overlap; a bug, held by a test.
    """
    matching = [rule for rule in REPLAY_RULES if rule.matches(facts)]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} rules match {facts}")
    return matching[0].decision
