"""What must hold of bundles at every moment (R19), seen by somebody who knows everything."""

from __future__ import annotations

from collections.abc import Callable

from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record
from sluice.testbed.simulate.inserters import Inserters
from sluice.testbed.simulate.kafka import Transaction, record_of
from sluice.testbed.simulate.processes import in_words
from sluice.testbed.simulate.world import World
from sluice.worker.assignment import Job
from sluice.worker.tasks import bundles_of


class BundleRules:
    """Of one world.

    :param violate: told what rule is broken, and where.
    """

    def __init__(
        self,
        world: World,
        inserters: Inserters,
        violate: Callable[[TopicPartition, str], None],
    ) -> None:
        self._world = world
        self._inserters = inserters
        self._violate = violate
        self._members: dict[str, set[TopicPartition]] = {}
        #: What a task refused as too heavy: nobody ever inserts it, whoever it was sent to.
        self._too_heavy: set[tuple[TopicPartition, int, int, str, str]] = set()

    def recorded(self, source: TopicPartition, record: Record) -> None:
        """A record is decided."""
        if record.bundle:
            self._members.setdefault(record.bundle, set()).add(source)

    def sent(self, job: Job) -> None:
        """A bundle is sent whole, its members one after the other in the order of its rows and
        under one lease, or not at all."""
        for task in job.tasks:
            for members in bundles_of(task):
                records = {each.block_range.source: each.record for each in members}
                first, name = members[0].block_range.source, members[0].record.bundle
                if name:
                    self._world.faults.note("bundle of several ranges")
                    if members[0].record.rest:
                        self._world.faults.note("bundle of ranges that a probe did not find")
                if name and list(records) != sorted(self._members[name]):
                    bundle = ", ".join(map(str, sorted(self._members[name])))
                    self._violate(first, f"{in_words(records)} is sent, but {name} is {bundle}")
                leases = {
                    (r.attempt, r.deadline_ms, r.spec, r.reservation) for r in records.values()
                }
                if len(leases) > 1:
                    self._violate(first, f"{in_words(records)} is sent under several leases")

    def too_heavy(self, source: TopicPartition, record: Record) -> None:
        """A task refused a range, or its bundle, as too heavy (R12)."""
        self._too_heavy.add((source, record.begin, record.end, record.bundle, record.spec))

    def is_too_heavy(self, source: TopicPartition, record: Record) -> bool:
        """Whether a task has refused it as too heavy."""
        of_record = (source, record.begin, record.end, record.bundle, record.spec)
        return of_record in self._too_heavy

    def settled(self, source: TopicPartition, before: Record, transaction: Transaction) -> None:
        """All members of a bundle are settled by one transaction, but for those that stopped."""
        stopped = {
            stopped
            for driver in self._world.drivers
            if driver.connector_run.loop is not None
            for stopped, state in driver.connector_run.loop.states.items()
            if state.stopped is not None
        }
        for other, offset in self._world.broker.group.items():
            member = record_of(offset)
            if other in stopped or other in transaction.offsets or member is None:
                continue
            if before.bundle and member.in_doubt and member.bundle == before.bundle:
                self._violate(source, f"{before} is settled, and {other} {member} is not")

    def check_given_back(self, source: TopicPartition, before: Record, record: Record) -> None:
        """What ends elsewhere than the range before it, and does not shorten it, gives the range
        back into the backlog. That may be when nobody inserted it, nor will."""
        if before.rest or record.kind is not Kind.SETTLE or record.end != record.begin:
            self._violate(source, f"{record} is another cut than {before} (R2)")
        if before.bundle:
            self._world.faults.note("range of a bundle given back")
        if not self.is_too_heavy(source, before) and before.begin < before.end:
            for each in self._inserters.all_of(source):
                if each.records[source].begin == before.begin:
                    self._violate(source, f"{before} is given back, and may be inserted")
