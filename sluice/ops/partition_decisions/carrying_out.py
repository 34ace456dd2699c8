"""How a plan is carried out: who loads its partitions is fenced, and its records are committed."""

from __future__ import annotations

import logging

from sluice.config import Configuration
from sluice.core.errors import TransientError
from sluice.core.ledger import Commit, CommittedOffset, CommittedOffsets
from sluice.core.ranges import TopicPartition
from sluice.core.records import GENESIS
from sluice.driver.specs import kafka_access
from sluice.kafka.clients import make_admin
from sluice.kafka.offsets import look, owner_in, shown
from sluice.kafka.recorder import Recorder
from sluice.kafka.topics import ensure_own_topic
from sluice.kafka.transactions import RecorderNames
from sluice.machine.clock import now_ms
from sluice.ops.partition_decisions.situation import Plan
from sluice.ops.partitions import OPEN_PATIENCE_SECONDS

_logger = logging.getLogger("sluice.decisions")


class ChangedSinceError(TransientError):
    """What a plan was made upon is not so any more."""

    hint = "Nothing was done. Run the command again: it looks and plans anew."


def apply(configuration: Configuration, plan: Plan) -> None:
    """Carry a plan out from outside of the driver, whose id is fenced; see `carry_out`."""
    names = RecorderNames(
        group=configuration.group(plan.connector),
        ledger_topic=configuration.ledger_topic,
        dead_letter_topic=configuration.dead_letters_topic,
        owner=plan.operator,
    )
    recorder = Recorder(kafka_access(configuration, plan.connector), names, now_ms=now_ms)
    try:
        carry_out(configuration, plan, recorder)
    finally:
        recorder.close()


def carry_out(configuration: Configuration, plan: Plan, recorder: Recorder) -> None:
    """Fence the old owners, look again, commit the records under their ids.

    :param recorder: of the plan's operator. An id that is the recorder's own is not fenced.
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

    taken = recorder.take_over(sorted(decisions), owner_of)
    _refuse_changes(plan, taken.found)
    records = {source: each.record for source, each in decisions.items()}
    entries = tuple(entry for each in plan.decided for entry in each.entries)
    recorder.finish_take_over(taken, Commit(records, entries))
    for each in plan.decided:
        _logger.info("%s is decided: offset %d", each.source, each.record.begin)


def _refuse_changes(plan: Plan, found: CommittedOffsets) -> None:
    changed = [
        f"{each.source} held {shown(each.found)}, and holds {shown(found[each.source])}"
        for each in plan.decided
        if found[each.source] != each.found
    ]
    if changed:
        raise ChangedSinceError(f"changed since the plan was made: {'; '.join(changed)}")
