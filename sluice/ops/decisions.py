"""The decisions that only a person takes. Each plans first; `apply` carries a plan out.

* resolve: what became of a range in doubt, where neither a replay nor a probe can tell.
* adopt: go on from an offset, after a foreign commit, lost offsets, a truncated log or a
  re-created topic.
* rewind: load again from an offset or a time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from sluice.config import Configuration
from sluice.core.errors import TransientError
from sluice.core.ledger import Commit, CommittedOffset
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS, Kind
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.offsets import look, owner_in, shown
from sluice.kafka.recorder import Recorder
from sluice.kafka.topics import ensure_own_topic
from sluice.kafka.transactions import RecorderNames
from sluice.ops.deciding import (
    Decided,
    DecisionRefusedError,
    Plan,
    Situation,
    decided,
    finished_plan,
    generation_at,
    now_ms,
    read_situation,
    recorded_end,
    refuse_outside_log,
    settle,
    shown_record,
    shown_state,
    with_owner,
)
from sluice.ops.partitions import OPEN_PATIENCE_SECONDS, PartitionFacts
from sluice.ops.resolving import plan_resolve

__all__ = ["Plan", "apply", "plan_adopt", "plan_resolve", "plan_rewind"]

_logger = logging.getLogger("sluice.decisions")


class ChangedSinceError(TransientError):
    """What a plan was made upon is not so any more."""

    hint = "Nothing was done. Run the command again: it looks and plans anew."


def plan_adopt(
    configuration: Configuration,
    *,
    connector: str,
    topic: str,
    partitions: Sequence[int],
    take_over: bool,
    offset: int,
) -> Plan:
    """Go on from an offset, whatever the group holds now.

    :raises DecisionRefusedError: the log does not hold the offset.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    """
    situation = read_situation(configuration, connector, topic, partitions, take_over)
    decisions: list[Decided] = []
    steps: list[str] = []
    for facts in situation.partitions:
        refuse_outside_log(facts, offset)
        why = f"adopt --offset {offset}"
        restored = _restored(situation, facts, offset, why)
        if restored is not None:
            decisions.append(restored)
            steps.append(
                f"{facts.source}: from {shown_state(facts)} back to the ledger's last record, "
                f"{shown_record(restored.record)}; the next start replays or probes that range, "
                "so that nothing is lost or doubled"
            )
            continue
        decisions.append(settle(situation, facts, offset, why))
        steps += _going_on(situation, facts, offset)
    return finished_plan(situation, decisions, steps, "this is done")


def _restored(situation: Situation, facts: PartitionFacts, offset: int, why: str) -> Decided | None:
    """The ledger's record again, if the group lost a range in doubt that begins here."""
    last = facts.last
    if last is None or not last.in_doubt or facts.agrees or offset != last.begin:
        return None
    if last.topic_id != facts.topic_id or last.end > facts.stable_end:
        return None
    if facts.record is not None and facts.record.batch > last.batch:
        return None
    record = replace(with_owner(last, situation), kind=Kind.RENEW)
    return decided(situation, facts, record, facts.background, why)


def plan_rewind(
    configuration: Configuration,
    *,
    connector: str,
    topic: str,
    partitions: Sequence[int],
    take_over: bool,
    to: int | datetime,
) -> Plan:
    """Load again from an offset, or from the first message that is not older than a time.

    :raises DecisionRefusedError: nothing to go back to, or no way to tell where.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    """
    situation = read_situation(configuration, connector, topic, partitions, take_over)
    decisions: list[Decided] = []
    steps: list[str] = []
    for facts in situation.partitions:
        offset = _rewound_to(situation, facts, to)
        if offset is None:
            steps.append(f"{facts.source}: stays as it is, nothing below it is as young as {to}")
            continue
        refuse_outside_log(facts, offset)
        shown_to = to if isinstance(to, int) else to.isoformat()
        decisions.append(settle(situation, facts, offset, f"rewind --to {shown_to}"))
        steps += _going_on(situation, facts, offset)
    if not decisions:
        raise DecisionRefusedError(
            f"nothing to rewind: {'; '.join(steps)}", "Give an earlier time, or an offset."
        )
    return finished_plan(situation, decisions, steps, "this is done")


def _rewound_to(situation: Situation, facts: PartitionFacts, to: int | datetime) -> int | None:
    """The offset to go back to; None for a time that only younger offsets have."""
    record = facts.record
    if record is None or not facts.agrees or record.topic_id != facts.topic_id:
        raise DecisionRefusedError(
            f"{facts.source}: the group holds {shown_state(facts)}, which is not the ledger's last "
            "record of this topic, so there is nothing to go back from",
            "`sluice adopt --offset N` goes on from any offset.",
        )
    if isinstance(to, datetime):
        at = situation.reader.log.at_time([facts.source], int(to.timestamp() * 1000))[facts.source]
        return at if 0 <= at < record.begin else None
    if to >= record.begin:
        raise DecisionRefusedError(
            f"{facts.source} is {shown_state(facts)}: offset {to} is not before that",
            "`sluice adopt --offset N` skips forward, `sluice resolve` decides a range in doubt.",
        )
    return to


def _going_on(situation: Situation, facts: PartitionFacts, offset: int) -> list[str]:
    """What going on from an offset means, in sentences."""
    source, end = facts.source, recorded_end(facts)
    generation = generation_at(facts, offset)
    steps = [
        f"{source}: from {shown_state(facts)} to settled at {offset}, generation {generation}; "
        f"the next range begins at {offset}"
    ]
    position = max((record.begin for record in facts.records), default=None)
    same_topic = all(record.topic_id == facts.topic_id for record in facts.records)
    if not same_topic:
        steps.append(
            f"{source}: the topic was created again since the last record; rows of the old one "
            "stay in the tables, with the same offsets"
        )
    elif position is None or end is None:
        steps.append(
            f"{source}: nothing is known of what was loaded before; rows from {offset} on that "
            "are in the tables already are doubled, and what lies before is never loaded"
        )
    elif offset > position:
        steps.append(
            f"{source}: offsets [{position}, {offset}) are skipped; what of them is not in the "
            "tables yet is never loaded, and becomes no dead letter"
        )
    if end is not None and offset < end:
        steps.append(_loaded_again(situation, facts, offset, end))
        steps.append(
            f"{source}: from now on older rows carry the same offsets, so a range that falls out "
            "of the deduplication window cannot be probed; `sluice resolve` must decide it"
        )
    return steps


def _loaded_again(situation: Situation, facts: PartitionFacts, offset: int, end: int) -> str:
    source = facts.source
    removals = [
        f"ALTER TABLE {table.target} DELETE WHERE _topic = '{source.topic}' "
        f"AND _partition = {source.partition} AND _offset >= {offset}"
        for table in situation.configuration.tables_of(source.topic)
        if table.lineage is not False
    ]
    remove = f"; to remove these first: {'; '.join(removals)}" if removals else ""
    return (
        f"{source}: rows of offsets [{offset}, {end}) that are in the tables already are loaded "
        f"again, next to the old ones, under new tokens{remove}. A server older than 22.2 has no "
        "tokens, and drops a block that equals one in its window"
    )


def apply(configuration: Configuration, plan: Plan) -> None:
    """Carry a plan out: fence the old owners, look again, commit the records under their ids.

    :raises ChangedSinceError: the group does not hold any more what the plan was made upon.
    :raises OwnerChangedError: a driver took the partitions over at the same moment.
    """
    access = kafka_access(configuration, plan.connector)
    group = configuration.group(plan.connector)
    decisions = {each.source: each for each in plan.decided}
    # Before anybody is fenced, and again after it.
    _refuse_changes(plan, look(access, group, sorted(decisions), OPEN_PATIENCE_SECONDS).found)
    ensure_own_topic(make_admin(access), configuration.ledger_topic)

    def owner_of(source: TopicPartition, found: CommittedOffset | None) -> str:
        owner = owner_in(found)
        return decisions[source].owner if owner == GENESIS else owner

    names = RecorderNames(
        group=group,
        ledger_topic=configuration.ledger_topic,
        dead_letter_topic=configuration.dead_letters_topic,
        owner=plan.operator,
    )
    recorder = Recorder(access, names, now_ms=now_ms)
    try:
        taken = recorder.take_over(sorted(decisions), owner_of)
        _refuse_changes(plan, taken.found)
        records = {source: each.record for source, each in decisions.items()}
        entries = tuple(entry for each in plan.decided for entry in each.entries)
        recorder.finish_take_over(taken, Commit(records, entries))
    finally:
        recorder.close()
    for each in plan.decided:
        _logger.info("%s is decided: offset %d", each.source, each.record.begin)


def _refuse_changes(plan: Plan, found: dict[TopicPartition, CommittedOffset | None]) -> None:
    changed = [
        f"{each.source} held {shown(each.found)}, and holds {shown(found[each.source])}"
        for each in plan.decided
        if found[each.source] != each.found
    ]
    if changed:
        raise ChangedSinceError(f"changed since the plan was made: {'; '.join(changed)}")
