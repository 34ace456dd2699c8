"""Continuous proof of a driver: what is said of it, and its process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sluice.clickhouse.http import Server
from sluice.driver.children import own_process
from sluice.ops import proof as proof_module
from sluice.ops.metrics import ProofCollector
from sluice.ops.proof import Proof, ProofNow, _begun
from sluice.verify.continuous import Turn
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka, numbered
from tests.support.world import wait_for
from tests.verify.test_audit import Scene

EVERY = '[verify]\nevery = "2s"\n[audit]\nevery = "2s"\nshare = 1.0\n'


@pytest.fixture
def scene(tmp_path: Path, kafka: Kafka, embedded: Server, embedded_url: str) -> Iterator[Scene]:
    for database in fresh_database(embedded_url):
        yield Scene(tmp_path, kafka, embedded, database)


def test_what_is_said_of_its_looks() -> None:
    record = _begun("audit", 60.0, 0)
    assert record.now(1_000).verdict == "starting"
    turn = Turn("audit", 1_000, 2_000, covered=1_200, left_out=7, problems={"missing": 0})
    record.take(turn)
    found = record.now(62_000)
    assert (found.verdict, found.age_seconds) == ("ok", 60.0)
    assert found.reason == "nothing wrong in 1,200 offsets, with no time for 7 more"
    told = replace(turn, left_out=0, uncounted=1_030, unaudited=("clicks", "views"))
    told = replace(told, not_demanded=5_000, unrecorded=3)
    other = _begun("audit", 60.0, 0)
    other.take(told)
    assert other.now(2_000).reason == (
        "nothing wrong in 1,200 offsets; 1,030 messages may lack rows within; 5,000 messages were "
        "settled before a table was loaded with them; 3 messages were judged by the table entries "
        "of now; not compared: clicks, views"
    )
    record.take(Turn("audit", 3_000, 4_000, error="a replica is away"))
    assert record.now(62_000).verdict == "ok"
    found = record.now(183_000)
    assert (found.verdict, found.turns, found.failures) == ("overdue", 1, 1)
    assert found.reason == "has not come to its end for 181 s: a replica is away"
    where = ("doubled: dc1 a[0] offsets [1, 3) in d.t",)
    record.take(replace(turn, problems={"doubled": 2, "missing": 0}, where=where))
    record.take(turn)  # the next look finds nothing, and says nothing of what was found
    found = record.now(3_000)
    assert (found.verdict, found.problems) == ("found", {"missing": 0, "doubled": 2, "foreign": 0})
    assert found.reason == f"2 doubled: {where[0]}; `sluice audit` says more"


@pytest.mark.slow
def test_a_process_proves_on_and_on_beside_a_driver(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds what is wrong, is started again where it ends, and ends with the driver."""
    monkeypatch.setattr(proof_module, "_RESTART_SECONDS", 0.1)
    begins: list[dict[str, Any]] = []

    def command(module: str, path: str, begin: str) -> tuple[list[str], dict[str, str]]:
        begins.append(json.loads(begin))
        return own_process(module, path, begin)

    monkeypatch.setattr(proof_module, "own_process", command)
    scene.create()
    topic = scene.kafka.topic()
    scene.kafka.produce(topic, numbered(30))
    scene.load(topic, range(10))
    scene.settle(topic, 10)
    proof = Proof(scene.configuration(topic, more=EVERY))
    registry = CollectorRegistry()
    registry.register(ProofCollector(proof, scene.name))

    def now(what: str) -> ProofNow:
        return next(each for each in proof.now() if each.what == what)

    def problems(what: str, kind: str) -> float | None:
        labels = {"pipeline": scene.name, "what": what, "kind": kind}
        return registry.get_sample_value("sluice_proof_problems_total", labels)

    try:
        wait_for(lambda: now("audit").turns >= 2, 120, "two looks of the audit")
        assert (now("audit").verdict, now("audit").covered) == ("ok", 10)
        assert problems("audit", "missing") == problems("audit", "doubled") == 0
        scene.load(topic, [*range(10, 20), 15])
        scene.settle(topic, 20, start=10)
        wait_for(lambda: now("audit").verdict == "found", 120, "the doubled row")
        assert problems("audit", "doubled") == 1 and problems("audit", "missing") == 0
        # What was played into the ledger is no record of a driver.
        wait_for(lambda: now("verify").verdict == "found", 120, "the foreign records")
        assert (problems("verify", "foreign") or 0) >= 2
        assert proof.cpu_seconds > 0 and proof.memory_bytes > 1 << 20
        failures, child = now("audit").failures, proof._child
        assert child is not None and child.stdin is not None
        child.stdin.close()  # as when the driver is gone
        wait_for(
            lambda: child.poll() is not None and now("audit").failures > failures,
            *(120, "the end of the process"),
        )
        assert child.returncode == 0
        turns = now("audit").turns  # of this process no more come
        wait_for(lambda: now("audit").turns > turns, 120, "a look of the next process")
        last = proof._child
        assert begins[0]["looks_ms"] == {} and begins[0]["driver_ms"] == begins[1]["driver_ms"]
        assert begins[1]["looks_ms"]["audit"] > begins[1]["driver_ms"]
    finally:
        proof.stop()
    assert last is not None and last is not child and last.poll() is not None
