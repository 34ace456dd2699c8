"""The benchmark: a warm pipeline, rounds of events that appear all at once.

1. Start a broker, and the server or the given one's tables; put one message into a topic.
2. Start `sluice run`, cold; the clock stops when the row is seen in its table.
3. Warm up with a smaller round.
4. Rounds: produce in a transaction, which the pipeline cannot see; its commit starts the
   clock, and the last settle in the ledger stops it. Producing is outside of what is measured.
5. Events at a steady rate, for the latency, once for each rate; then nothing, for the cost of
   being ready.
6. On request: one more round under a profiler, a backlog that is there before the start, and the
   broker while events come and nobody reads them.

Everything is seen from outside: /proc, and the ledger. The pipeline is what users run.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sluice.clickhouse.capabilities import read_capabilities
from sluice.clickhouse.http import Server
from sluice.config import Configuration, load
from sluice.core.errors import ConfigurationError, SluiceError, TerminalError, TransientError
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.dead_letters import read_dead_letters
from sluice.kafka.log import SourceLog
from sluice.kafka.topics import ensure_own_topic
from sluice.testbed.local.bench_flame import Flame, find_py_spy, recorded
from sluice.testbed.local.bench_report import Comparison, Drained, Outcome, compared, read_stored
from sluice.testbed.local.bench_rounds import Bench, ProducerAlone, measure_producer_alone
from sluice.testbed.local.bench_settings import TOPIC, TOPIC_PATTERN, BenchSettings
from sluice.testbed.local.console import Console
from sluice.testbed.local.driver import Driver, running_driver
from sluice.testbed.local.lifetime import interruptible, working_folder
from sluice.testbed.local.orders import (
    EncodedOrders,
    Orders,
    TableKind,
    order_format,
)
from sluice.testbed.local.processes import listener
from sluice.testbed.local.producing import create_topics, held_back
from sluice.testbed.local.running import Broker, running_broker, running_clickhouse
from sluice.testbed.local.settings import DEDUPLICATE, pipeline_text
from sluice.testbed.local.tail import LedgerTail

DATABASE = "sluice_bench"
TABLE = "orders"
PASSWORD_VARIABLE = "SLUICE_BENCH_PASSWORD"

_KEEPER_PATH = "/clickhouse/tables/sluice_bench"
_HERE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Target:
    """Fresh, empty tables `sluice_bench.orders`, `orders_2` and so on.

    :param pid: the server's process, None if it is not on this machine.
    :param version: e.g. "26.9.1".
    """

    url: str
    user: str
    password_variable: str
    version: str
    pid: int | None
    tables: tuple[str, ...] = (TABLE,)

    def rows(self) -> int:
        """Rows in all tables together."""
        with self.client() as client:
            counts = [
                client.query(f"SELECT count() AS n FROM {DATABASE}.{table}")[0]["n"]
                for table in self.tables
            ]
        return sum(map(int, counts))

    def client(self) -> Server:
        """A connection of its own."""
        return Server(self.url, self.user, os.environ.get(self.password_variable, ""))


def table_names(count: int) -> tuple[str, ...]:
    """The benchmark's tables."""
    return (TABLE, *(f"{TABLE}_{number}" for number in range(2, count + 1)))


@contextmanager
def prepared_target(
    server: str, folder: Path, kind: TableKind, tables: int = 1, replicated: bool = False
) -> Iterator[Target]:
    """The database `sluice_bench` with empty tables, dropped at the end.

    :param server: "embedded" or a URL, which may carry user and password.
    :param tables: how many tables of this kind.
    :param replicated: they are ReplicatedMergeTree.
    :raises ConfigurationError: the database exists, or the server needs a decision.
    """
    names = table_names(tables)
    with ExitStack() as stack:
        if server == "embedded":
            embedded = stack.enter_context(running_clickhouse(folder / "clickhouse"))
            bare = Target(embedded.url, "default", "", "", embedded.pid, names)
        else:
            bare = _given_target(server, names)
        yield stack.enter_context(_with_tables(bare, kind, replicated))


def _given_target(server: str, names: tuple[str, ...]) -> Target:
    parts = urlsplit(server)
    variable = ""
    if parts.password:
        variable = PASSWORD_VARIABLE
        os.environ[variable] = unquote(parts.password)
    user = unquote(parts.username or "default")
    pid = listener(parts.port or 8123) if parts.hostname in _HERE else None
    return Target(Server(server).url, user, variable, "", pid, names)


@contextmanager
def _with_tables(target: Target, kind: TableKind, replicated: bool) -> Iterator[Target]:
    """The target with its version and its tables."""
    run = uuid.uuid4().hex  # newer servers forget a dropped table's path minutes later
    with target.client() as client:
        capabilities = read_capabilities(client)
        if kind.delivery == "block" and not (capabilities.tokens or replicated):
            raise ConfigurationError(
                f"ClickHouse {capabilities.version_text} at {target.url} cannot deduplicate "
                "inserts into a plain MergeTree table, only into a Replicated one, which needs "
                "ZooKeeper",
                "Add --replicated if it has ZooKeeper, or --delivery replacing.",
            )
        if client.query(f"SELECT name FROM system.databases WHERE name = '{DATABASE}'"):
            raise ConfigurationError(
                f"the database {DATABASE} at {target.url} exists already",
                f"DROP DATABASE {DATABASE}, if an earlier benchmark left it behind.",
            )
        client.execute(f"CREATE DATABASE {DATABASE}")
    try:
        with target.client() as client:
            for table in target.tables:
                replica = f"{_KEEPER_PATH}/{run}/{table}" if replicated else ""
                client.execute(kind.statement(f"{DATABASE}.{table}", replica))
        yield replace(target, version=capabilities.version_text)
    finally:
        with suppress(SluiceError), target.client() as client:
            client.execute(f"DROP DATABASE {DATABASE}")


_WARM_UP_ROWS_MAX = 3_000_000
_LOOK_SECONDS = 0.02
_START_SECONDS_MAX = 180.0
_TOPIC_SECONDS_MAX = 300.0
_ALONE_SECONDS_MAX = 20.0
_SEED = 193


def run_bench(settings: BenchSettings) -> int:
    """Measure, and print what was measured.

    :returns: 0.
    :raises ConfigurationError: the settings, or the server cannot deduplicate.
    :raises TerminalError: the tables do not hold what was produced.
    """
    settings.check()
    stored = None if settings.compare is None else read_stored(settings.compare)
    py_spy = "" if settings.flame is None else find_py_spy()
    console = Console(sys.stderr if settings.as_json else None)
    with (
        interruptible(),
        working_folder("sluice-bench-", keep=False) as folder,
        ExitStack() as stack,
    ):
        with console.phase("a Kafka broker and the target table are ready"):
            source = "LowCardinality(String)" if settings.deduplicate else "UInt64"
            kind = TableKind(settings.delivery, settings.shape, source)
            target = stack.enter_context(
                prepared_target(settings.server, folder, kind, settings.tables, settings.replicated)
            )
            broker = stack.enter_context(running_broker(folder / "kafka"))
            stage = _prepared(stack, folder, broker, target, settings, console)
        outcome, flame, counts = _measured(stage, py_spy)
    comparison = None
    if settings.compare is not None and stored is not None:
        comparison = compared(settings.compare, stored, outcome.as_json())
    _report(outcome, counts, flame, comparison, console)
    _expect(counts, settings.tables)
    return 0


@dataclass(slots=True)
class _Stage:
    """Where the benchmark plays."""

    settings: BenchSettings
    console: Console
    folder: Path
    target: Target
    path: Path
    configuration: Configuration
    access: KafkaAccess
    tail: LedgerTail
    fixed: dict[str, list[int]]
    orders: Orders

    @contextmanager
    def driver(self) -> Iterator[Driver]:
        """A driver on the configuration."""
        arguments = ["-m", "sluice", "run", str(self.path), "--log-format", "json"]
        with running_driver(arguments, self.folder / "driver.log") as driver:
            yield driver


def _prepared(
    stack: ExitStack,
    folder: Path,
    broker: Broker,
    target: Target,
    settings: BenchSettings,
    console: Console,
) -> _Stage:
    """Topics and configuration; no driver yet."""
    access = KafkaAccess("local", broker.brokers)
    create_topics(access, settings.topic_names, settings.partitions)
    _wait_for_leaders(access, settings)
    path = folder / "sluice.toml"
    form = order_format(settings.format, settings.shape)
    path.write_text(pipeline_of(settings, target, broker.brokers))
    configuration = load(path, os.environ)
    ensure_own_topic(make_admin(access), configuration.ledger_topic)
    tail = LedgerTail(access, configuration.ledger_topic)
    stack.callback(tail.close)
    fixed = {"broker": [broker.serving_pid]}
    if target.pid is not None:
        fixed["server"] = [target.pid]
    orders = (
        Orders(_SEED, settings.shape)
        if form.encode is None
        else EncodedOrders(_SEED, settings.shape, form.encode)
    )
    return _Stage(
        settings, console, folder, target, path, configuration, access, tail, fixed, orders
    )


def pipeline_of(settings: BenchSettings, target: Target, brokers: str) -> str:
    """The configuration of what is measured."""
    is_one = settings.topics == 1
    topics = {"topics": [TOPIC]} if is_one else {"topic_pattern": TOPIC_PATTERN}
    store, variable = settings.deduplicate, target.password_variable
    entry = {
        **topics,
        "format": settings.format,
        "sort": settings.sort,
        "rows": "many" if settings.format == "SQLBatchRequest" else "one",
        "options": dict(order_format(settings.format, settings.shape).options),
        "delivery": settings.delivery,
        "deduplicate": DEDUPLICATE if store else None,
    }
    return pipeline_text(
        "bench",
        [{"name": "local", "brokers": brokers, **topics, "reader": settings.reader}],
        [{"name": table, **entry} for table in target.tables],
        batch={
            "max_messages": settings.even_range(),
            "max_delay": settings.max_delay,
            "lease": "1m",
        },
        clickhouse={
            "database": DATABASE,
            "shards": {"s1": [target.url]},
            "user": target.user,
            "password": f"${{{variable}}}" if variable else None,
        },
        deduplication={"store": store} if store else None,
    )


def _wait_for_leaders(access: KafkaAccess, settings: BenchSettings) -> None:
    """A broker makes many partitions in its own time, which is not the pipeline's."""
    log = SourceLog(make_admin(access))
    deadline = time.monotonic() + _TOPIC_SECONDS_MAX
    while True:
        try:
            log.stable_ends(settings.sources)
            return
        except TransientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_SECONDS)


def _measured(stage: _Stage, py_spy: str) -> tuple[Outcome, Flame | None, _Counts]:
    """The steps behind the preparation, in their order."""
    settings, console = stage.settings, stage.console
    flame = None
    with ExitStack() as running:
        with console.phase("the pipeline started, cold, and the first row is there") as phase:
            bench, start_seconds = _started(stage, running)
            phase.text += f": {start_seconds:.1f} s"
        with console.phase("warmed up"):
            bench.round(min(settings.rows, _WARM_UP_ROWS_MAX))
        measured = []
        for number in range(1, settings.rounds + 1):
            with console.phase(f"round {number} of {settings.rounds}") as phase:
                one = bench.round(settings.rows)
                measured.append(one)
                phase.text += f": {one.rows:,} rows in {one.seconds:.2f} s"
        latencies = []
        for rate in settings.rates:
            with console.phase(f"{rate:,} rows/s for {settings.latency_seconds:g} s"):
                latencies.append(bench.latency(rate, settings.latency_seconds))
        with console.phase(f"idle for {settings.idle_seconds:g} s"):
            idle_shares = bench.idle_shares(settings.idle_seconds)
        if settings.flame is not None:
            with console.phase("one more round, with a profiler on a worker"):
                flame = Flame(settings.flame)
                bench.round(settings.rows, recorded(py_spy, bench.busiest_worker(), flame))
        bench.driver.stop()
    drained = _drained(stage, bench) if settings.drain else None
    counts = _counted(stage, bench)
    alone = _producer_alone(stage) if settings.producer_alone else None
    outcome = Outcome(
        settings=settings,
        server=settings.server if settings.server == "embedded" else stage.target.url,
        version=stage.target.version,
        rounds=measured,
        start_seconds=start_seconds,
        latencies=latencies,
        idle_shares=idle_shares,
        drained=drained,
        producer_alone=alone,
    )
    return outcome, flame, counts


def _producer_alone(stage: _Stage) -> ProducerAlone:
    """The broker at the first rate, with the driver gone: as warm as it was with one."""
    settings = stage.settings
    rate, seconds = settings.rates[0], min(settings.latency_seconds, _ALONE_SECONDS_MAX)
    with stage.console.phase(f"the producer alone, {rate:,} rows/s for {seconds:g} s"):
        return measure_producer_alone(
            stage.access, settings.sources, stage.orders, stage.fixed["broker"][0], rate, seconds
        )


def _started(stage: _Stage, running: ExitStack) -> tuple[Bench, float]:
    """The running driver, and the seconds from its start until the first row was seen."""
    _put(stage, 1)
    with stage.target.client() as client:
        count = f"SELECT count() AS n FROM {DATABASE}.{TABLE}"
        client.query(count)  # the connection is not the pipeline's time
        began = time.monotonic()
        driver = running.enter_context(stage.driver())
        while int(client.query(count)[0]["n"]) == 0:
            driver.check()
            if time.monotonic() - began > _START_SECONDS_MAX:
                raise driver.failure(f"loaded no row within {_START_SECONDS_MAX:.0f} s")
            time.sleep(_LOOK_SECONDS)
        seconds = time.monotonic() - began
    bench = Bench(
        stage.access,
        stage.settings.sources,
        driver,
        stage.tail,
        stage.fixed,
        stage.orders,
        stage.settings.bad_share,
        produced=1,
    )
    bench.wait_for(0, bench.produced)
    return bench, seconds


def _drained(stage: _Stage, bench: Bench) -> Drained:
    """A backlog that is there before the driver starts, from its start to the last settle."""
    settings = stage.settings
    messages = max(1, round(settings.rates[0] * settings.backlog_seconds))
    with stage.console.phase(f"a backlog of {messages:,} messages drained, cold") as phase:
        bench.catch_up()
        settled = len(bench.tail.settled)
        _put(stage, messages)
        began = time.monotonic()
        with stage.driver() as driver:
            bench.driver = driver
            bench.wait_for(settled, messages)
            seconds = time.monotonic() - began
            driver.stop()
        bench.produced += messages
        phase.text += f": {seconds:.1f} s"
    return Drained(messages, seconds)


def _put(stage: _Stage, messages: int) -> None:
    """Good messages into the topics, all at once."""
    with held_back(stage.access, stage.settings.sources, stage.orders, messages):
        pass


@dataclass(frozen=True, slots=True)
class _Counts:
    """What went in and what came out.

    :param produced: messages, broken ones among them.
    :param stored: rows of all tables.
    :param dead_letters: messages in the dead-letter topic.
    """

    produced: int
    broken: int
    stored: int
    dead_letters: int


def _counted(stage: _Stage, bench: Bench) -> _Counts:
    with stage.console.phase("everything counted"):
        topic = stage.configuration.dead_letters_topic
        dead_letters = sum(1 for _ in read_dead_letters(stage.access, topic, to_log_end=True))
        return _Counts(bench.produced, bench.broken, stage.target.rows(), dead_letters)


def _report(
    outcome: Outcome,
    counts: _Counts,
    flame: Flame | None,
    comparison: Comparison | None,
    console: Console,
) -> None:
    if outcome.settings.as_json:
        document: dict[str, Any] = {**outcome.as_json(), **asdict(counts)}
        if comparison is not None:
            document["compared"] = comparison.as_json()
        print(json.dumps(document))
    else:
        console.line()
        for line in [*outcome.lines(), *([] if comparison is None else ["", *comparison.lines()])]:
            console.line(line)
    if flame is not None:
        console.line(flame.line)


def _expect(counts: _Counts, tables: int) -> None:
    """:raises TerminalError: something is lost, doubled, or neither row nor dead letter."""
    rows, dead_letters = (counts.produced - counts.broken) * tables, counts.broken * tables
    if counts.stored != rows:
        raise TerminalError(
            f"{tables} tables held {counts.stored:,} rows, {rows:,} were due",
            "Run it again with tables that deduplicate.",
        )
    if counts.dead_letters != dead_letters:
        raise TerminalError(
            f"there are {counts.dead_letters:,} dead letters, {dead_letters:,} were due",
            "This is a bug: report it with the command.",
        )
