"""The demonstration: a million orders, the driver killed twice, every row audited.

1. Start a broker and an embedded ClickHouse in a temporary folder.
2. Produce, some events broken on purpose, and one in twenty a second time.
3. Run the pipeline, and kill the driver (SIGKILL) when a third and when two thirds are settled.
4. Run it to the end.
5. Audit by (topic, partition, offset, row), count rows and orders, and compare with what was
   produced.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

from sluice.clickhouse.http import Server
from sluice.clickhouse.sql import OF_RANGE, range_parameters
from sluice.config import Configuration, load
from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.topics import ensure_own_topic
from sluice.machine.clock import now_ms
from sluice.ops.status import read_status
from sluice.testbed.local.console import Console, aligned, unexpected
from sluice.testbed.local.driver import Driver, running_driver
from sluice.testbed.local.lifetime import interruptible, working_folder
from sluice.testbed.local.orders import TableKind
from sluice.testbed.local.producing import PARTITIONS, Produced, create_topic, produce_with_defects
from sluice.testbed.local.running import running_broker, running_clickhouse
from sluice.testbed.local.settings import DEDUPLICATE, pipeline_text
from sluice.testbed.local.tail import LedgerTail
from sluice.verify.audit import AuditReport, audit

TOPIC = TABLE = "orders"
#: Of all events, settled, when the driver is killed.
KILLS = (1 / 3, 2 / 3)

_SEED = 20260301
_BROKEN_MAX = 400
_BROKEN_EVERY_MIN = 50
#: One of so many events is an order that was sent before.
_REPEATED_EVERY = 20
_RANGE_MAX = 25_000
_RANGES_MIN = 40
_STALL_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class DoubtfulRange:
    """A range that a killed driver had intended and not settled.

    :param stored: rows of it that the table held when nothing of the driver was left.
    """

    partition: int
    begin: int
    end: int
    stored: int


@dataclass(slots=True)
class _Stage:
    """Where the demonstration plays."""

    console: Console
    folder: Path
    access: KafkaAccess
    url: str
    configuration: Configuration
    rows: int
    partitions: int
    tail: LedgerTail


def run_demo(rows: int = 1_000_000, partitions: int = PARTITIONS, keep: bool = False) -> int:
    """Show the whole path on this machine, with its real parts.

    :param rows: events to produce.
    :param partitions: of the topic.
    :param keep: leave folder and data behind; nothing is left running in any case.
    :returns: 0 if no row is lost, doubled or foreign, each order is one row however often it was
        sent, and every broken event is exactly one dead letter; else 1.
    """
    console = Console()
    began = time.monotonic()
    with interruptible(), working_folder("sluice-demo-", keep) as folder, ExitStack() as stack:
        stage = _start(console, stack, folder, rows, partitions)
        produced = _produce(stage)
        lives_seconds: list[float] = []
        doubtful: list[DoubtfulRange] = []
        for share in KILLS:
            seconds, ranges = _run_and_kill(stage, share, doubtful)
            lives_seconds.append(seconds)
            doubtful = ranges
        lives_seconds.append(_run_to_the_end(stage, doubtful))
        findings = _audit(stage, produced, sum(lives_seconds))
        return report(
            console, findings, stage.configuration, keep, seconds=time.monotonic() - began
        )


def _start(console: Console, stack: ExitStack, folder: Path, rows: int, partitions: int) -> _Stage:
    """Step 1."""
    with console.phase("a Kafka broker and an embedded ClickHouse started"):
        broker = stack.enter_context(running_broker(folder / "kafka"))
        server = stack.enter_context(running_clickhouse(folder / "clickhouse"))
        access = KafkaAccess("local", broker.brokers)
        create_topic(access, TOPIC, partitions)
        with Server(server.url) as client:
            # Claims that are lost are made again from what a row says of its message.
            client.execute(TableKind(source="String").statement(TABLE))
        text = pipeline_text(
            "demo",
            [{"name": "local", "brokers": broker.brokers, "topics": [TOPIC]}],
            [{"name": TABLE, "topics": [TOPIC], "deduplicate": DEDUPLICATE}],
            batch={
                "max_messages": min(_RANGE_MAX, max(1, rows // _RANGES_MIN)),
                "max_delay": "1s",
                "lease": "1m",
            },
            clickhouse={"shards": {"s1": [server.url]}},
            deduplication={"store": "local"},
        )
        path = folder / "sluice.toml"
        path.write_text(text)
        configuration = load(path, os.environ)
        admin = make_admin(access)
        ensure_own_topic(admin, configuration.ledger_topic)
        tail = LedgerTail(access, configuration.ledger_topic)
        stack.callback(tail.close)
    return _Stage(console, folder, access, server.url, configuration, rows, partitions, tail)


def _produce(stage: _Stage) -> Produced:
    """Step 2."""
    rows = stage.rows
    text = f"{rows:,} orders produced into {stage.partitions} partitions"
    with stage.console.phase(text) as phase:
        produced = produce_with_defects(
            stage.access,
            TOPIC,
            stage.partitions,
            rows,
            min(_BROKEN_MAX, rows // _BROKEN_EVERY_MIN),
            _SEED,
            lambda done: phase.progress(done, rows),
            rows // _REPEATED_EVERY,
        )
        phase.text = (
            f"{text}: {produced.repeated:,} sent twice, {len(produced.broken)} broken, "
            f"{produced.tombstones} empty"
        )
    return produced


def _run_and_kill(
    stage: _Stage, share: float, before: list[DoubtfulRange]
) -> tuple[float, list[DoubtfulRange]]:
    """Step 3, once: run until `share` is settled, kill, and look at what was left behind.

    :param before: what the driver before this one left behind.
    :returns: seconds from its first task to the kill; ranges in doubt.
    """
    target = int(stage.rows * share)
    with stage.console.phase("the pipeline runs") as phase, _driver(stage) as driver:
        first_settled = len(stage.tail.settled)
        stage.tail.wait(
            lambda: sum(stage.tail.positions.values()) >= target,
            driver.check,
            _STALL_SECONDS_MAX,
            lambda settled: phase.progress(settled, stage.rows),
        )
        end_seconds = driver.kill()
        killed_ms = now_ms() - int(end_seconds * 1000)
        stage.tail.poll()
        seconds = _seconds_since_first_task(stage, first_settled, killed_ms)
        settled = sum(stage.tail.positions.values())
        ranges = _doubtful(stage)
        stored = sum(found.stored > 0 for found in ranges)
        phase.text = "\n".join(
            [
                *_replayed(stage, before),
                f"driver killed (SIGKILL) with {settled / stage.rows:.0%} settled; "
                f"its JVM and workers were gone {end_seconds:.1f} s later",
                f"{len(ranges)} ranges were in doubt, {stored} of them stored already",
            ]
        )
    return seconds, ranges


def _run_to_the_end(stage: _Stage, before: list[DoubtfulRange]) -> float:
    """Step 4; gives the seconds from its first task to the last settle."""
    with (
        stage.console.phase("the pipeline drains") as phase,
        _driver(stage, "--until-caught-up") as driver,
    ):
        first_settled = len(stage.tail.settled)
        stage.tail.wait(
            lambda: driver.process.poll() is not None,
            lambda: None,
            _STALL_SECONDS_MAX,
            lambda settled: phase.progress(settled, stage.rows),
        )
        status = driver.wait(_STALL_SECONDS_MAX)
        if status != 0:
            raise driver.failure(f"ended with status {status}")
        stage.tail.wait(
            lambda: sum(stage.tail.positions.values()) >= stage.rows, lambda: None, 10.0
        )
        last_ms = max(entry["at_ms"] for entry in stage.tail.settled)
        phase.text = "\n".join(
            [*_replayed(stage, before), "the rest drained (`sluice run --until-caught-up`)"]
        )
        return _seconds_since_first_task(stage, first_settled, last_ms)


def _seconds_since_first_task(stage: _Stage, first_settled: int, end_ms: int) -> float:
    """How long a driver loaded: from its first task's begin."""
    settled = stage.tail.settled[first_settled:]
    if not settled:
        return 0.0
    first = settled[0]
    return float(end_ms - first["at_ms"]) / 1000 + float(first["seconds"]["total"])


def _driver(stage: _Stage, *more: str) -> AbstractContextManager[Driver]:
    arguments = ["-m", "sluice", "run", str(stage.folder / "sluice.toml"), *more]
    return running_driver([*arguments, "--log-format", "json"], stage.folder / "driver.log")


def _doubtful(stage: _Stage) -> list[DoubtfulRange]:
    """What is in doubt now, and what of it ClickHouse has stored."""
    found = []
    with Server(stage.url) as client:
        for status in read_status(stage.configuration):
            intent = status.intent
            if intent is None or intent.begin is None or intent.begin == intent.end:
                continue
            assert intent.end is not None
            source = TopicPartition(TOPIC, status.partition)
            where = range_parameters("default", TABLE, Range(source, intent.begin, intent.end))
            rows = client.query(f"SELECT count() AS stored {OF_RANGE}", where)
            stored = int(rows[0]["stored"])
            found.append(DoubtfulRange(status.partition, intent.begin, intent.end, stored))
    return found


def _replayed(stage: _Stage, before: list[DoubtfulRange]) -> list[str]:
    """What became of the ranges that the driver before left in doubt."""
    if not before:
        return []
    kinds = {
        (entry["partition"], entry["begin"], entry["end"], entry["kind"])
        for entry in stage.tail.records
    }
    replayed = sum((r.partition, r.begin, r.end, "renew") in kinds for r in before)
    return [f"the new driver replayed {replayed} of the {len(before)} ranges in doubt, identically"]


def _audit(stage: _Stage, produced: Produced, loading_seconds: float) -> Findings:
    """Step 5."""
    text = "every row audited by topic, partition, offset and row"
    with stage.console.phase(text):
        topic = stage.configuration.dead_letters_topic
        dead_letters = read_dead_letters(stage.access, topic, to_log_end=True)
        with Server(stage.url) as client:
            (counted,) = client.query(
                f"SELECT count() AS rows, uniqExact(order_id) AS orders FROM {TABLE}"
            )
        return Findings(
            produced=produced,
            audited=audit(stage.configuration),
            dead_letters=tuple((letter.partition, letter.offset) for letter in dead_letters),
            loading_seconds=loading_seconds,
            rows=int(counted["rows"]),
            orders=int(counted["orders"]),
        )


@dataclass(frozen=True, slots=True)
class Findings:
    """What was produced, and what became of it.

    :param dead_letters: (partition, offset) of every dead letter there is.
    :param loading_seconds: from each driver's first task to its end.
    :param rows: of the table.
    :param orders: different ones among them.
    """

    produced: Produced
    audited: AuditReport
    dead_letters: tuple[tuple[int, int], ...]
    loading_seconds: float
    rows: int
    orders: int

    @property
    def doubled(self) -> int:
        """Rows beyond the first of an order, whether of one message or of two."""
        return self.rows - self.orders

    @property
    def duplicates(self) -> int:
        """Good messages that made no row, since their order had one."""
        return (
            self.produced.good + self.produced.repeated - self.audited.loaded - self.audited.missing
        )

    def problems(self) -> list[str]:
        """Everything that is not as promised; empty if all is well."""
        produced, audited = self.produced, self.audited
        compared = [
            ("lost", audited.missing, 0),
            ("doubled", audited.doubled, 0),
            ("rows of an order that has one", self.doubled, 0),
            ("orders in the table", self.orders, produced.good),
            ("foreign", audited.foreign, 0),
            ("loaded", audited.loaded, produced.good),
            ("skipped", audited.skipped, produced.tombstones),
        ]
        found = unexpected(compared)
        found += [f"{entry}: could not be audited" for entry in audited.unaudited]
        counts = Counter(self.dead_letters)
        for text, number in (
            ("broken events without a dead letter", len(produced.broken - counts.keys())),
            ("dead letters of good events", len(counts.keys() - produced.broken)),
            ("dead letters more than once", sum(count > 1 for count in counts.values())),
        ):
            if number:
                found.append(f"{text}: {number:,}")
        return found


def report(
    console: Console, findings: Findings, configuration: Configuration, keep: bool, seconds: float
) -> int:
    """Print the verdict; gives the exit status."""
    produced, audited = findings.produced, findings.audited
    kinds = sum(name != "tombstone" for name in produced.kinds)
    rate = round(audited.loaded / max(0.001, findings.loading_seconds))
    dead_letters = len(findings.dead_letters)
    console.line()
    console.line(
        aligned(
            [
                ("produced", produced.events, ""),
                ("unique", produced.unique, ""),
                ("duplicates", findings.duplicates, "orders that had a row"),
                ("loaded", audited.loaded, ""),
                ("dead-lettered", dead_letters, f"broken in {kinds} ways"),
                ("skipped", audited.skipped, "messages without a value"),
                ("lost", audited.missing, ""),
                ("doubled", findings.doubled, ""),
                (
                    "rows/s",
                    rate,
                    f"over {findings.loading_seconds:.1f} s of loading, kills and replays "
                    "included, starts of Spark not",
                ),
            ]
        )
    )
    console.line()
    problems = findings.problems()
    for problem in problems:
        console.line(f"  BROKEN: {problem}")
    if not problems:
        console.line(f"Every order exactly once. All of it took {seconds:.0f} s.")
    console.line()
    for text in _further(configuration, keep):
        console.line(text)
    return 1 if problems else 0


def _further(configuration: Configuration, keep: bool) -> list[str]:
    """Commands to look further; the servers have to be started again for them."""
    folder = configuration.path.parent
    if not keep:
        return [
            "Nothing was left behind. `sluice demo --keep` keeps the data to look further,",
            "with status, audit, dead-letters and SELECT.",
        ]
    broker_port = configuration.connectors[0].brokers.rpartition(":")[2]
    url = configuration.clickhouse.shards[0].replicas[0]
    table = configuration.tables[0].target
    return [
        "Nothing is left running; the data was kept. To look further, start the servers again:",
        f"  sluice local kafka --data {folder}/kafka --port {broker_port} &",
        f"  sluice local clickhouse --data {folder}/clickhouse --port {url.rpartition(':')[2]} &",
        "and then:",
        f"  sluice status {configuration.path}",
        f"  sluice audit {configuration.path}",
        f"  sluice dead-letters list {configuration.path}",
        f"  curl {url} --data-binary "
        f"'SELECT country, count(), sum(amount) FROM {table} GROUP BY country FORMAT Pretty'",
    ]
