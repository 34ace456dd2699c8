"""What a driver does with a partition when it takes it over: one exhaustive table.

Every combination of facts meets exactly one rule; a test walks all of them. A fact that a
rule leaves out does not matter to it.
"""

from __future__ import annotations

from collections.abc import Set
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


Fact = Committed | Ledger | Topic | Log | Memory | Executable | Probe


@dataclass(frozen=True, slots=True)
class Rule:
    """A decision, and the values of the facts under which it is taken.

    :param when: several values of one fact: any of them; a fact without one does not matter.
    """

    decision: Decision
    when: Set[Fact]

    def matches(self, facts: Facts) -> bool:
        """Whether this rule speaks about these facts."""
        matter = {type(value) for value in self.when}
        given: list[Fact] = [getattr(facts, field.name) for field in fields(facts)]
        return all(value in self.when for value in given if type(value) in matter)


_NEVER_RECORDED: frozenset[Fact] = frozenset({Committed.ABSENT, Ledger.ABSENT})
_VALID: frozenset[Fact] = frozenset({Committed.SETTLED, Committed.IN_DOUBT})
_AGREE: frozenset[Fact] = frozenset({Ledger.AGREES, Topic.NEW, Topic.KNOWN})
_IN_DOUBT: frozenset[Fact] = frozenset({Committed.IN_DOUBT, *_AGREE, Log.COVERS})
_REMEMBERED: frozenset[Fact] = frozenset({*_IN_DOUBT, Memory.HOLDS})
_OVERRUN: frozenset[Fact] = frozenset({*_IN_DOUBT, Memory.OVERRUN})

REPLAY_RULES: tuple[Rule, ...] = (
    # Never recorded: "never existed" is judged by ledger and group together.
    Rule(Decision.START, {*_NEVER_RECORDED, Topic.NEW}),
    Rule(Decision.START_AT_ZERO, {*_NEVER_RECORDED, Topic.KNOWN, Log.COVERS, Log.END_LOST}),
    Rule(Decision.STOP_LOG_BEGIN, {*_NEVER_RECORDED, Topic.KNOWN, Log.BEGIN_LOST}),
    Rule(Decision.STOP_RECREATED, {*_NEVER_RECORDED, Topic.RECREATED}),
    # Recorded once, and the group's copy is gone: expired, reset or deleted (H3).
    Rule(Decision.STOP_OFFSETS_LOST, {Committed.ABSENT, Ledger.AGREES, Ledger.DIFFERS}),
    Rule(Decision.STOP_FOREIGN, {Committed.INVALID}),
    Rule(Decision.STOP_LEDGER, {*_VALID, Ledger.ABSENT, Ledger.DIFFERS}),
    Rule(Decision.STOP_RECREATED, {*_VALID, Ledger.AGREES, Topic.RECREATED}),
    Rule(Decision.STOP_LOG_BEGIN, {*_VALID, *_AGREE, Log.BEGIN_LOST}),
    Rule(Decision.STOP_LOG_END, {*_VALID, *_AGREE, Log.END_LOST}),
    Rule(Decision.CONSUME, {Committed.SETTLED, *_AGREE, Log.COVERS}),
    Rule(Decision.REPLAY, {*_REMEMBERED, Executable.YES}),
    Rule(Decision.PROBE, {*_OVERRUN, Probe.POSSIBLE}),
    Rule(Decision.PROBE, {*_REMEMBERED, Executable.NO, Probe.POSSIBLE}),
    Rule(Decision.STOP_RESOLVE, {*_OVERRUN, Probe.IMPOSSIBLE}),
    Rule(Decision.STOP_RESOLVE, {*_REMEMBERED, Executable.NO, Probe.IMPOSSIBLE}),
)


def decide(facts: Facts) -> Decision:
    """The one rule that speaks about these facts.

    :raises LookupError: the table has a hole or an overlap; a bug, held by a test.
    """
    matching = [rule for rule in REPLAY_RULES if rule.matches(facts)]
    if len(matching) != 1:
        raise LookupError(f"{len(matching)} rules match {facts}")
    return matching[0].decision
