"""Decisions over HTTP that are told before they are done: about partitions of this driver, and
about dead letters. The command line plans and carries out by the same functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from sluice.config import Configuration
from sluice.core.errors import TerminalError
from sluice.driver.connector import ConnectorRun
from sluice.machine.clock import now_ms
from sluice.ops import dead_letters_purging as purging
from sluice.ops import dead_letters_replaying as replaying
from sluice.ops.dead_letters import DeadLetterSelection, with_topic
from sluice.ops.driver_decisions import DecisionRefusedError
from sluice.ops.http.bodies import Adopted, Confirmed, Purged, Replayed, Resolved, Rewound
from sluice.ops.partition_decisions.carrying_out import carry_out
from sluice.ops.partition_decisions.positions import plan_adopt, plan_rewind
from sluice.ops.partition_decisions.resolving import plan_resolve
from sluice.ops.partition_decisions.situation import Decider, PartitionSelection, Plan

#: What was told is done within this time, or has to be told again.
CONFIRM_MS_MAX = 600_000
#: Dead letters are looked for this long.
PLAN_SECONDS = 60.0


class NotConfirmedError(TerminalError):
    """What would be done is not what was confirmed."""

    hint = "Nothing was done. Ask again without confirm, and look at what would be done now."


@dataclass(frozen=True, slots=True)
class Planned:
    """What would be done.

    :param basis: what else must not have changed, in words.
    :param carry_out: does it; gives what was done, in words.
    """

    steps: Sequence[str]
    basis: str
    carry_out: Callable[[], Sequence[str]]

    def confirmation(self, about: str, at_ms: int) -> str:
        """What a person shows who has seen it."""
        text = "\n".join([about, str(at_ms), self.basis, *self.steps])
        return f"{at_ms}-{sha256(text.encode()).hexdigest()[:32]}"


def planned_at(confirm: str) -> int:
    """When that was told which is confirmed now; now, if nothing is.

    :raises NotConfirmedError: too long ago, or never.
    """
    at_ms, told = now_ms(), confirm.partition("-")[0]
    if not confirm:
        return at_ms
    if not (told.isascii() and told.isdigit()) or not 0 <= at_ms - int(told[:15]) <= CONFIRM_MS_MAX:
        raise NotConfirmedError("this confirmation is none, or is more than ten minutes old")
    return int(told[:15])


Plans = Callable[[Configuration, Sequence[ConnectorRun], str, Confirmed, int], Planned]


def plan_partitions(
    configuration: Configuration,
    runs: Sequence[ConnectorRun],
    by: str,
    said: Confirmed,
    at_ms: int,
) -> Planned:
    """Of partitions that this driver has: its loop records it between two rounds, so nobody is
    fenced. Nothing may be under way of them (`driver.redirecting`), and no lease may run.

    :raises DecisionRefusedError: this driver has no loop for them.
    """
    assert isinstance(said, Resolved | Adopted | Rewound)
    configuration.connector(said.connector)
    run = next((run for run in runs if run.connector.name == said.connector), None)
    if run is None or not run.owner or run.is_ended:
        raise DecisionRefusedError(
            f"connector {said.connector} has no partitions in this driver",
            "Wait until it has taken them over; or decide by the command line, while no driver "
            "runs.",
        )
    configuration, decider = run.configuration, Decider(by, said.why, run.owner)
    selection = PartitionSelection(said.connector, said.topic, said.partitions)
    match said:
        case Resolved():
            plan = plan_resolve(configuration, selection, outcome=said.outcome, decider=decider)
        case Adopted():
            plan = plan_adopt(configuration, selection, offset=said.offset, decider=decider)
        case Rewound():
            plan = plan_rewind(configuration, selection, to=said.to, decider=decider)
    basis = "\n".join(f"{each.source} {each.found}" for each in plan.decided)
    return Planned(plan.steps, basis, partial(_decide, configuration, run, plan))


def _decide(configuration: Configuration, run: ConnectorRun, plan: Plan) -> list[str]:
    sources = tuple(each.source for each in plan.decided)
    run.decide(sources, partial(carry_out, configuration, plan))
    return [f"{each.source} goes on from {each.record.begin}" for each in plan.decided]


def _selected(said: Replayed | Purged, at_ms: int) -> DeadLetterSelection:
    """Those that were written before it was told; a plan has so much time to find them."""
    before_ms = at_ms if said.before_ms is None else said.before_ms
    chosen = said.model_copy(update={"before_ms": before_ms})
    return chosen.selection(time.monotonic() + PLAN_SECONDS)


def plan_replay(
    configuration: Configuration,
    runs: Sequence[ConnectorRun],
    by: str,
    said: Confirmed,
    at_ms: int,
) -> Planned:
    """Of dead letters that were written before it was told."""
    assert isinstance(said, Replayed)
    configuration = with_topic(configuration, said.of)
    selection = _selected(said, at_ms)
    plan = replaying.plan_replay(configuration, selection, said.limit)
    if not plan.dead_letters:
        raise DecisionRefusedError(
            "no dead letter that waits is meant",
            f"{plan.replayed_before} that are meant were replayed before.",
        )

    def do() -> list[str]:
        done = replaying.replay(configuration, plan, by=by, why=said.why)
        refused = [f"{each.why}. Try: {each.hint}" for each in done.refusals]
        counts = done.replayed, done.replayed_before + plan.replayed_before, done.refused
        return ["{} replayed, {} replayed before, {} refused".format(*counts), *refused]

    return Planned(plan.steps(), str(sorted(plan.counts.items())), do)


def plan_purge(
    configuration: Configuration,
    runs: Sequence[ConnectorRun],
    by: str,
    said: Confirmed,
    at_ms: int,
) -> Planned:
    """Of dead letters that were written before it was told."""
    assert isinstance(said, Purged)
    filters = said.model_dump(exclude={"why", "confirm", "all", "of", "connector"})
    if any(value is not None for value in filters.values()) == said.all:
        raise DecisionRefusedError(
            "purge needs to know what: filters, or all, not both", "Say one of them."
        )
    configuration = with_topic(configuration, said.of)
    selection = _selected(said, at_ms)
    plan = purging.plan_purge(configuration, selection)

    def do() -> list[str]:
        done = purging.purge(configuration, selection, plan, by=by, why=said.why)
        return [f"{done.dead_letters} purged, {plan.kept} kept"]

    return Planned(plan.steps(configuration.dead_letters_topic), "", do)
