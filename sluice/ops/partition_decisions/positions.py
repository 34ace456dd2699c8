"""Where a partition goes on, by a person's decision.

* adopt: from an offset, after a foreign commit, lost offsets, a truncated log or a re-created
  topic.
* rewind: load again from an offset or a time.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from sluice.config import Configuration
from sluice.core.records import Kind
from sluice.ops.driver_decisions import DecisionRefusedError
from sluice.ops.partition_decisions.situation import (
    NOBODY,
    Decided,
    Decider,
    OnePartition,
    PartitionSelection,
    Plan,
    read_situation,
    shown_record,
)


def plan_adopt(
    configuration: Configuration,
    selection: PartitionSelection,
    *,
    offset: int,
    decider: Decider = NOBODY,
) -> Plan:
    """Go on from an offset, whatever the group holds now.

    :raises DecisionRefusedError: the log does not hold the offset.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    """
    situation = read_situation(configuration, selection, decider)
    decisions: list[Decided] = []
    steps: list[str] = []
    for one in situation.partitions:
        one.require_in_log(offset)
        why = f"adopt --offset {offset}"
        restored = _restored(one, offset, why)
        if restored is not None:
            decisions.append(restored)
            steps.append(
                f"{one.source}: from {one.state} back to the ledger's last record, "
                f"{shown_record(restored.record)}; the next start replays or probes that range, "
                "so that nothing is lost or doubled"
            )
            continue
        decisions.append(one.settled_at(offset, why))
        steps += _going_on(one, offset)
    return situation.planned(decisions, steps, "this is done")


def _restored(one: OnePartition, offset: int, why: str) -> Decided | None:
    """The ledger's record again, if the group lost a range in doubt that begins here."""
    facts, last = one.facts, one.facts.last
    if last is None or not last.in_doubt or facts.agrees or offset != last.begin:
        return None
    if one.is_of_other_topic(last) or last.end > facts.stable_end:
        return None
    if facts.record is not None and facts.record.batch > last.batch:
        return None
    return one.decided(replace(one.taken(last), kind=Kind.RENEW), facts.background, why)


def plan_rewind(
    configuration: Configuration,
    selection: PartitionSelection,
    *,
    to: int | datetime,
    decider: Decider = NOBODY,
) -> Plan:
    """Load again from an offset, or from the first message that is not older than a time.

    :raises DecisionRefusedError: nothing to go back to, or no way to tell where.
    :raises LeaseRunsError: tasks may still insert, and `take_over` is not set.
    """
    situation = read_situation(configuration, selection, decider)
    decisions: list[Decided] = []
    steps: list[str] = []
    for one in situation.partitions:
        offset = _rewound_to(one, to)
        if offset is None:
            steps.append(f"{one.source}: stays as it is, nothing below it is as young as {to}")
            continue
        one.require_in_log(offset)
        shown_to = to if isinstance(to, int) else to.isoformat()
        decisions.append(one.settled_at(offset, f"rewind --to {shown_to}"))
        steps += _going_on(one, offset)
    if not decisions:
        raise DecisionRefusedError(
            f"nothing to rewind: {'; '.join(steps)}", "Give an earlier time, or an offset."
        )
    return situation.planned(decisions, steps, "this is done")


def _rewound_to(one: OnePartition, to: int | datetime) -> int | None:
    """The offset to go back to; None for a time that only younger offsets have."""
    record = one.agreed_record(", so there is nothing to go back from")
    if isinstance(to, datetime):
        log, at_ms = one.situation.reader.log, int(to.timestamp() * 1000)
        at = log.at_time([one.source], at_ms)[one.source]
        return at if 0 <= at < record.begin else None
    if to >= record.begin:
        raise DecisionRefusedError(
            f"{one.source} is {one.state}: offset {to} is not before that",
            "`sluice adopt --offset N` skips forward, `sluice resolve` decides a range in doubt.",
        )
    return to


def _going_on(one: OnePartition, offset: int) -> list[str]:
    """What going on from an offset means, in sentences."""
    source, end, records = one.source, one.recorded_end, one.facts.records
    generation = one.generation_at(offset)
    steps = [
        f"{source}: from {one.state} to settled at {offset}, generation {generation}; "
        f"the next range begins at {offset}"
    ]
    position = max((record.begin for record in records), default=None)
    if any(one.is_of_other_topic(record) for record in records):
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
        steps.append(_loaded_again(one, offset, end))
        steps.append(
            f"{source}: from now on older rows carry the same offsets, so a range that falls out "
            "of the deduplication window cannot be probed; `sluice resolve` must decide it"
        )
    return steps


def _loaded_again(one: OnePartition, offset: int, end: int) -> str:
    source = one.source
    removals = [
        f"ALTER TABLE {table.target} DELETE WHERE _topic = '{source.topic}' "
        f"AND _partition = {source.partition} AND _offset >= {offset}"
        for table in one.situation.configuration.tables_of(source.topic)
        if table.lineage is not False
    ]
    remove = f"; to remove these first: {'; '.join(removals)}" if removals else ""
    return (
        f"{source}: rows of offsets [{offset}, {end}) that are in the tables already are loaded "
        f"again, next to the old ones, under new tokens{remove}. A server older than 22.2 has no "
        "tokens, and drops a block that equals one in its window"
    )
