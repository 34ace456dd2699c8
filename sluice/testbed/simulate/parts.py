"""What a world has beside its facts: who breaks it, and who watches over its rules."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.testbed.simulate.adversary import Adversary
from sluice.testbed.simulate.claim_rules import ClaimRules
from sluice.testbed.simulate.claims import Events, Kept
from sluice.testbed.simulate.fleet import Reports
from sluice.testbed.simulate.freezes import Person
from sluice.testbed.simulate.inserters import Inserters
from sluice.testbed.simulate.invariants import Invariants
from sluice.testbed.simulate.producers import Producers
from sluice.testbed.simulate.quorums import Quorums, SimulatedLocks
from sluice.testbed.simulate.registry import Registry
from sluice.testbed.simulate.staging import Staging
from sluice.testbed.simulate.world import World


@dataclass(frozen=True, slots=True)
class Parts:
    """Of one world.

    :param kept: the store of claims; None where nobody deduplicates.
    :param staging: None where no table's blocks are staged.
    """

    world: World
    registry: Registry
    locks: SimulatedLocks
    quorums: Quorums
    producers: Producers
    adversary: Adversary
    kept: Kept | None
    staging: Staging | None
    inserters: Inserters
    invariants: Invariants
    claim_rules: ClaimRules
    person: Person
    reports: Reports


def make_parts(world: World) -> Parts:
    """All parts of a world; those that it has to call stand in its hooks."""
    claims, chance = world.plan.claims, world.claims_rng
    registry, inserters = Registry(world), Inserters(world)
    kept = None if claims is None else Kept(world, claims, chance)
    events = None if claims is None else Events(chance, claims)
    adversary = Adversary(world, registry)
    for table in world.clickhouse.with_views():
        table.forgotten = adversary.forgotten
    invariants = Invariants(world, inserters)
    world.broker.decided = invariants.decided
    producers = Producers(world, registry, events)
    reports = Reports(world, world.fleet_rng)
    if world.plan.members:
        reports.produce = producers.add
        world.before_fencing, world.before_commit = reports.before_fencing, reports.before_commit
    return Parts(
        world=world,
        registry=registry,
        locks=SimulatedLocks(world),
        quorums=Quorums(world),
        producers=producers,
        adversary=adversary,
        kept=kept,
        staging=Staging(world) if world.plan.staged else None,
        inserters=inserters,
        invariants=invariants,
        claim_rules=ClaimRules(world, kept, events, inserters, registry),
        person=Person(world),
        reports=reports,
    )
