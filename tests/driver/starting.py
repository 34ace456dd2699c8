"""A new driver's take-over on a real broker, over windows in memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from sluice.core.ledger import LedgerView
from sluice.core.load_spec import LoadSpec
from sluice.core.planning import Limits
from sluice.core.ranges import TopicPartition
from sluice.driver.beginning import Predecessor
from sluice.driver.load_specs import LoadSpecs
from sluice.driver.record_updates import RecordPlanner
from sluice.driver.start import Started, StartParts, spec_needed, take_over
from sluice.kafka.ledger import read_on, read_view
from sluice.kafka.recorder import Recorder
from tests.driver.loop_world import World, table_spec
from tests.kafka.groups import NOW, Group


def spec_of(*entries: str, topic: str) -> LoadSpec:
    tables = tuple(table_spec(entry, (topic,)) for entry in entries)
    return LoadSpec("p", "dc1", "chdb 1", 1 << 20, tables)


def start_parts(
    group: Group,
    today: LoadSpec,
    *,
    why: str | None,
    no_probe: str | None = None,
    world: World | None = None,
    asked: list[str] | None = None,
    read: list[list[TopicPartition]] | None = None,
) -> StartParts:
    """A new driver's, under today's load spec.

    :param why: the recorded load spec cannot be executed.
    :param no_probe: its tables cannot be probed.
    :param world: whose windows are watched; None: one of the entries a and b.
    :param asked: gets the topic each time that the servers are asked whether they can.
    :param read: gets the partitions each time that the ledger is read for them.
    """

    def why_no_probe(_: LoadSpec, topic: str, is_recorded: bool) -> str | None:
        if asked is not None:
            asked.append(topic)
        return no_probe

    world = world or World(group.sources, spec_of("a", "b", topic=group.topic).tables)

    def read_ledger(
        sources: list[TopicPartition], uncommitted: list[TopicPartition], *, is_stable: bool = False
    ) -> LedgerView:
        if read is not None:
            read.append(sources)
        access = group.kafka.access()
        return read_view(
            *(access, group.ledger, sources, spec_needed, 0, uncommitted), is_stable=is_stable
        )

    return StartParts(
        recorder=group.recorder("new"),
        log=group.kafka.log,
        read_ledger=read_ledger,
        read_stable=partial(read_ledger, is_stable=True),
        read_on=partial(read_on, group.kafka.access(), group.ledger),
        windows=world,
        planner=RecordPlanner(LoadSpecs(today), "new", Limits(10, 1 << 20, 1000), 600.0),
        watch=lambda spec: None,
        why_not_executable=lambda spec, topic: why,
        why_no_probe=why_no_probe,
        start="earliest",
        ask_group=lambda name, sources: Predecessor([], {}),
        now_ms=lambda: NOW,
    )


def start(
    group: Group, today: LoadSpec, *, retiring: bool = False, **more: Any
) -> tuple[Started, Recorder]:
    """A new driver; `more` is of `start_parts`."""
    parts = start_parts(group, today, **more)
    return take_over(parts, list(group.sources), retiring=retiring), parts.recorder
