"""What the driver sends to a worker: a range to load, and how to reach the world."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.claims.stores import StoreAccess
from sluice.clickhouse.access import ClickHouseAccess
from sluice.core.ledger import Background
from sluice.core.ranges import Range
from sluice.core.records import Record
from sluice.core.values import pickled_by_fields, value
from sluice.kafka.clients import KafkaAccess
from sluice.kafka.registry import RegistryAccess

#: Ranges of a job that its description names.
_SHOWN_MAX = 4


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """What all tasks of one job share.

    :param specs: canonical load specs by digest, those that its ranges name.
    :param registry: of schemas; None: no format needs one.
    :param insert_timeout_seconds: what a block may take; never longer than its lease.
    :param claims: where claims are kept; None: nobody deduplicates.
    :param dead_letter_bytes_max: payload bytes that one task may send to the driver; what
        is beyond becomes a pointer to the original message.
    :param masked: columns and fields of which no reason shows a value.
    :param is_traced: tasks say what they did when.
    """

    pipeline: str
    kafka: KafkaAccess
    clickhouse: ClickHouseAccess
    specs: Mapping[str, str]
    insert_timeout_seconds: float = 30.0
    registry: RegistryAccess | None = None
    dead_letter_bytes_max: int = 8 * 1024 * 1024
    claims: StoreAccess | None = None
    masked: frozenset[str] = frozenset()
    is_traced: bool = False


@pickled_by_fields
@value
class Assignment:
    """One range for one task.

    :param record: the committed record that allows it.
    :param background: of that record; one object for all of a new bundle.
    :param sent_at_ms: the driver's wall time when it was sent.
    :param is_first: no other task was ever sent this range, so what this one refuses, nobody
        inserted.
    :param insert_seconds: what a block may take where `insert_timeout_seconds` was too short; 0:
        it was not.
    :param looks_for_fields: a field that no column has is such a refusal: the driver looks
        whether there is a column by now.
    """

    block_range: Range
    record: Record
    background: Background
    sent_at_ms: int
    is_first: bool = False
    looks_for_fields: bool = False
    insert_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Job:
    """Ranges that run as one Spark job, and come back together.

    :param tasks: the ranges of each task, which loads one after the other.
    """

    connector: str
    batch: int
    tasks: tuple[tuple[Assignment, ...], ...]

    @property
    def assignments(self) -> tuple[Assignment, ...]:
        """The ranges of all tasks."""
        return tuple(assignment for task in self.tasks for assignment in task)

    @property
    def description(self) -> str:
        """What Spark's UI shows."""
        assignments = self.assignments
        shown = ", ".join(str(assignment.block_range) for assignment in assignments[:_SHOWN_MAX])
        more = len(assignments) - _SHOWN_MAX
        rest = f" and {more} more ranges" if more > 0 else ""
        return f"{self.connector} batch {self.batch}: {shown}{rest}"
