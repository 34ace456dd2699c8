"""What a connector's loop sees of the world, all by ports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.flights import INFLIGHT_INSERTS_MAX
from sluice.driver.effects import Wanted
from sluice.driver.parking import Parking
from sluice.driver.ports import (
    Clock,
    FindCuts,
    IntentLog,
    Jobs,
    Prober,
    Replicas,
    SourceOffsets,
    Topics,
    Windows,
    no_cuts,
)
from sluice.driver.unknown_schemas import PATIENCE_MS
from sluice.spark.jobs import Inbox


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a loop sees of the world.

    :param read_schema: asks for a `SchemaRead`, which comes by the inbox; readings come by
        themselves, too. None where nobody reads.
    :param topics: finds topics that an expression takes; None where all have names.
    :param replicas: how they are doing, for metrics; None where nobody looks.
    :param want_columns: asks for columns of new fields; a `SchemaRead` tells of them.
    :param inflight_inserts_max: ranges in flight for each replica of a table.
    :param find_cuts: looks after logs whose leader has changed.
    :param schema_patience_ms: see `unknown_schemas`.
    """

    log: IntentLog
    offsets: SourceOffsets
    windows: Windows
    jobs: Jobs
    prober: Prober
    now_ms: Clock
    inbox: Inbox
    read_schema: Callable[[], None] | None = None
    dead_letter_limit: DeadLetterLimit | None = None
    parking: Parking = field(default_factory=Parking)
    topics: Topics | None = None
    want_columns: Callable[[Wanted], None] | None = None
    inflight_inserts_max: int = INFLIGHT_INSERTS_MAX
    replicas: Replicas | None = None
    find_cuts: FindCuts = no_cuts
    schema_patience_ms: int = PATIENCE_MS
