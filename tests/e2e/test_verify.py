"""The verifier and the ledger on real histories: silent over a pipeline that was killed, loud
over a second loader that does everything wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import confluent_kafka as ck
import pytest

from sluice.core.ledger import Background, encode_entry, record_entry
from sluice.core.ranges import TopicPartition
from sluice.core.records import Kind, Record, decode, encode
from sluice.testbed.local.children import free_ports
from tests.support.world import Truth, World, assert_exact, wait_for

#: For what a service takes some seconds for, beside other tests.
SECONDS = 120.0


class WrongLoader:
    """Commits in the pipeline's group with its codec, and keeps none of its rules."""

    def __init__(self, world: World, topic: str) -> None:
        self._topic = topic
        self._world = world
        where = {"bootstrap.servers": world.broker.brokers, "log_level": 0}
        self._producer = ck.Producer({**where, "transactional.id": f"wrong-{world.name}"})
        self._producer.init_transactions(30)
        self._group = ck.Consumer({**where, "group.id": f"sluice.{world.name}.dc1"})

    def record(self, partition: int) -> Record:
        """What stands in the group now."""
        where = ck.TopicPartition(self._topic, partition)
        (found,) = self._group.committed([where], timeout=15)
        return decode(found.offset, found.metadata)

    def commit(self, partition: int, record: Record) -> None:
        """A record in the group and in the ledger, in one transaction."""
        source = TopicPartition(self._topic, partition)
        now_ms = int(time.time() * 1000)
        key, value = encode_entry("dc1", now_ms, record_entry(source, record, Background()))
        self._producer.begin_transaction()
        self._producer.produce(f"sluice.{self._world.name}.ledger", key=key, value=value)
        offset = ck.TopicPartition(self._topic, partition, record.begin, metadata=encode(record))
        self._producer.send_offsets_to_transaction([offset], self._group.consumer_group_metadata())
        self._producer.commit_transaction(30)

    def close(self) -> None:
        self._group.close()


def verify(world: World, configuration: object, source: str) -> tuple[int, dict[str, Any]]:
    answer = world.sluice("verify", str(configuration), "--source", source, "--json")
    assert answer.returncode in (0, 1), answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def kinds(anomalies: Iterable[dict[str, Any]]) -> set[tuple[int, str]]:
    return {(anomaly["partition"], anomaly["kind"]) for anomaly in anomalies}


@pytest.mark.long
def test_the_verifier_over_a_killed_pipeline_and_a_wrong_loader(world: World) -> None:
    topic = "orders-verify"
    world.create_topic(topic)
    world.create_table("verified")
    truth = Truth()
    world.produce(topic, 40_000, truth, bad_every=2_000)
    configuration = world.configure({"verified": [topic]}, max_messages=2_000)
    driver = world.run(configuration)
    world.wait_for_rows("verified", 10_000, driver)
    driver.kill()
    world.drain(configuration)
    assert_exact(world, "verified", truth)
    for source in ("offsets", "ledger"):
        status, report = verify(world, configuration, source)
        assert (status, report["anomalies"], report["unjudged"]) == (0, [], []), report[
            "anomalies"
        ][:3]
        assert len(report["partitions"]) == 4
        assert all(partition["steps"]["take-over"] >= 1 for partition in report["partitions"])
        settled = {p["partition"]: p["last"]["offset"] for p in report["partitions"]}
        assert settled == dict.fromkeys(range(4), 10_000)
        if source == "ledger":
            assert sum(p["messages"] for p in report["partitions"]) == 40_000
            rows = sum(p["rows"]["verified"] for p in report["partitions"])
            assert rows == truth.rows == 40_000 - truth.bad_count
    _every_block_is_in_the_ledger_once(world, configuration, truth)

    service = _Service(world, str(configuration))
    try:
        service.wait_until_caught_up()
        _do_everything_wrong(world, topic)
        for source in ("ledger", "offsets"):
            status, report = verify(world, configuration, source)
            assert status == 1
            found = kinds(report["anomalies"])
            expected = {(0, "backward"), (1, "overlap"), (2, "gap"), (3, "foreign")}
            assert expected <= found, report["anomalies"]
            (gap,) = (a for a in report["anomalies"] if a["kind"] == "gap")
            assert gap["tables"] == ["verified"]
            assert (gap["before"]["end"], gap["after"]["begin"]) == (10_000, 10_100)
        wait_for(lambda: kinds(service.anomalies()) == found, SECONDS, "anomalies as they come")
        gaps = 'sluice_verify_anomalies_total{kind="gap"} 1.0'
        wait_for(lambda: gaps in service.metrics(), SECONDS, gaps)
    finally:
        status = service.stop()
    assert status == 1
    shown = world.sluice("verify", str(configuration))
    assert shown.returncode == 1
    assert "gap: dc1 orders-verify[2], tables verified: offsets [10000, 10100)" in shown.stdout


def _do_everything_wrong(world: World, topic: str) -> None:
    loader = WrongLoader(world, topic)
    last = [loader.record(partition) for partition in range(4)]
    assert {(record.kind, record.begin) for record in last} == {(Kind.SETTLE, 10_000)}
    intend = {"kind": Kind.INTEND, "attempt": 1, "reservation": 1, "deadline_ms": 1}
    ranges = [(5_000, 6_000), (9_900, 11_000), (10_100, 11_000), (10_000, 11_000)]
    for partition, (begin, end) in enumerate(ranges):
        record = last[partition]
        wrong = replace(record, batch=record.batch + 1, begin=begin, end=end, **intend)
        if partition == 3:  # nothing is wrong with this range, but nobody let it in
            wrong = replace(wrong, owner="run-stranger")
        loader.commit(partition, wrong)
    loader.close()


def _every_block_is_in_the_ledger_once(world: World, configuration: object, truth: Truth) -> None:
    answer = world.sluice("ledger", str(configuration), "--table", "verified", "--json")
    assert answer.returncode == 0, answer.stderr
    entries = [json.loads(line) for line in answer.stdout.splitlines()]
    receipts = [entry for entry in entries if entry["type"] == "receipt"]
    blocks = {(entry["partition"], entry["begin"], entry["end"]) for entry in receipts}
    assert len(blocks) == len(receipts)
    assert sum(entry["rows"] for entry in receipts) == truth.rows
    wanted = {"entry", "target", "shard", "rows", "bytes", "checksum", "replica", "at_ms"}
    assert wanted | {"batch", "attempt", "acknowledged_at_ms"} <= receipts[0].keys()
    settled = [entry for entry in entries if entry["type"] == "settled"]
    assert sum(entry["dead_letters"] for entry in settled) == truth.bad_count
    assert sum(entry["messages"] for entry in settled) == 40_000
    records = [entry for entry in entries if entry["type"] == "record"]
    assert len({(e["partition"], e["batch"]) for e in records}) == len(records)
    assert {e["digest"] for e in entries if e["type"] == "load_spec"} == {
        e["metadata"].split("|")[9] for e in records
    }
    one = world.sluice("ledger", str(configuration), "--partition", "1", "--since", "1h")
    lines = one.stdout.splitlines()
    assert len(lines) == 1 + sum(entry.get("partition") == 1 for entry in entries)
    assert all(f"{'orders-verify'}[1]" in line for line in lines[1:])
    late = world.sluice("ledger", str(configuration), "--since", "1ms", "--json")
    assert (late.returncode, late.stdout) == (0, "")


class _Service:
    """`sluice verify --follow` with its metrics."""

    def __init__(self, world: World, configuration: str) -> None:
        self._port = free_ports(1)[0]
        self._out = world.folder / "verify.out"
        self._log = world.folder / "verify.log"
        command = [sys.executable, "-m", "sluice", "verify", configuration, "--follow", "--json"]
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, "--metrics-port", str(self._port)],
                stdout=out,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )

    def wait_until_caught_up(self) -> None:
        wait_for(lambda: "caught up" in self._log.read_text(), SECONDS, "catching up")
        assert self.anomalies() == []

    def anomalies(self) -> list[dict[str, Any]]:
        whole, _, _ = self._out.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()]

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=60) as reply:
            return str(reply.read().decode())

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
