"""The benchmark: a warm pipeline, rounds of events that appear all at once.

1. Start a broker, and the server or the given one's table; start `sluice run`.
2. Warm up with a smaller round.
3. Rounds: produce in a transaction, which the pipeline cannot see; its commit starts the
   clock, and the last settle in the ledger stops it. Producing is outside of what is measured.
4. Events at a steady rate, for the latency; then nothing, for the cost of being ready.

Everything is seen from outside: /proc, and the ledger. The pipeline is what users run.
"""

from __future__ import annotations

import json
import math
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from sluice.config import load
from sluice.core.errors import TerminalError
from sluice.kafka.clients import KafkaAccess, make_admin
from sluice.kafka.topics import ensure_own_topic
from sluice.local.bench_report import UNSAFE_LINES, Outcome
from sluice.local.bench_rounds import Bench
from sluice.local.bench_target import DATABASE, TABLE, Target, prepared_target
from sluice.local.console import Console
from sluice.local.driver import running_driver
from sluice.local.orders import Orders
from sluice.local.producing import PARTITIONS, create_topic
from sluice.local.running import Broker, running_broker
from sluice.local.scope import interruptible, working_folder
from sluice.local.settings import PipelineSettings
from sluice.local.tail import LedgerTail

TOPIC = "orders"
MAX_DELAY = "500ms"
RANGE_MESSAGES = 250_000
LATENCY_ROWS_PER_SECOND = 1_000
LATENCY_SECONDS = 20
#: Long enough for two of the jobs that keep idle workers warm.
IDLE_SECONDS = 40

_WARM_UP_ROWS_MAX = 3_000_000
_SAMPLE_EVENTS = 10_000


def run_bench(
    rows: int = 3_000_000,
    server: str = "embedded",
    rounds: int = 3,
    unsafe_no_dedup: bool = False,
    as_json: bool = False,
    *,
    latency_seconds: int = LATENCY_SECONDS,
    idle_seconds: int = IDLE_SECONDS,
) -> int:
    """Measure, and print what was measured.

    :param rows: events of each round.
    :param server: "embedded", or the URL of a server; the database `sluice_bench` is made there
        and dropped at the end.
    :param rounds: medians are over these.
    :param unsafe_no_dedup: into a table that cannot deduplicate, for comparison only.
    :returns: 0; 1 if the table does not hold what was produced.
    :raises ConfigurationError: the server needs --unsafe-no-dedup.
    """
    console = Console(sys.stderr if as_json else None)
    if unsafe_no_dedup:
        for line in UNSAFE_LINES:
            console.line(line)
    with (
        interruptible(),
        working_folder("sluice-bench-", keep=False) as folder,
        ExitStack() as stack,
    ):
        with console.phase("a Kafka broker and the target table are ready"):
            target = stack.enter_context(prepared_target(server, folder, unsafe_no_dedup))
            broker = stack.enter_context(running_broker(folder / "kafka"))
        bench = _start(stack, folder, broker, target, rows, unsafe_no_dedup)
        with console.phase("the pipeline started and warmed up"):
            bench.round(min(rows, _WARM_UP_ROWS_MAX))
        measured = []
        for number in range(1, rounds + 1):
            with console.phase(f"round {number} of {rounds}") as phase:
                one = bench.round(rows)
                measured.append(one)
                phase.text += f": {rows:,} rows in {one.seconds:.2f} s"
        with console.phase(f"{LATENCY_ROWS_PER_SECOND:,} rows/s for {latency_seconds} s"):
            latencies = bench.latencies_ms(LATENCY_ROWS_PER_SECOND, latency_seconds)
        with console.phase(f"idle for {idle_seconds} s"):
            idle_shares = bench.idle_shares(idle_seconds)
        bench.driver.stop()
        stored = target.rows()
        outcome = Outcome(
            server=server if server == "embedded" else target.url,
            version=target.version,
            unsafe_no_dedup=unsafe_no_dedup,
            event_bytes=_event_bytes(),
            rounds=measured,
            latencies_ms=latencies,
            latency_rows_per_second=LATENCY_ROWS_PER_SECOND,
            max_delay=MAX_DELAY,
            idle_seconds=idle_seconds,
            idle_shares=idle_shares,
        )
    _report(outcome, bench.produced, stored, console, as_json)
    if stored != bench.produced:
        raise TerminalError(
            f"the table held {stored:,} rows, {bench.produced:,} were produced",
            "Run it again with a table that deduplicates.",
        )
    return 0


def _report(outcome: Outcome, produced: int, stored: int, console: Console, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**outcome.as_json(), "produced": produced, "stored": stored}))
        return
    console.line()
    for line in outcome.lines():
        console.line(line)


def _start(
    stack: ExitStack,
    folder: Path,
    broker: Broker,
    target: Target,
    rows: int,
    unsafe_no_dedup: bool,
) -> Bench:
    """Topic, configuration, and the running driver."""
    access = KafkaAccess("local", broker.brokers)
    create_topic(access, TOPIC)
    path = folder / "sluice.toml"
    PipelineSettings(
        pipeline="bench",
        brokers=broker.brokers,
        topic=TOPIC,
        url=target.url,
        database=DATABASE,
        table=TABLE,
        user=target.user,
        password_variable=target.password_variable,
        max_messages=_even_range(rows),
        max_delay=MAX_DELAY,
    ).write(path)
    configuration = load(path, os.environ)
    admin = make_admin(access)
    ensure_own_topic(admin, configuration.ledger_topic)
    tail = LedgerTail(access, configuration.ledger_topic)
    stack.callback(tail.close)
    arguments = ["-m", "sluice", "run", str(path), "--log-format", "json"]
    if unsafe_no_dedup:
        arguments = ["-m", "sluice.local.unsafe", str(path)]
    driver = stack.enter_context(running_driver(arguments, folder / "driver.log"))
    fixed = {"broker": [broker.jvm_pid]}
    if target.pid is not None:
        fixed["server"] = [target.pid]
    return Bench(access, TOPIC, driver, tail, fixed)


def _even_range(rows: int) -> int:
    """Messages of a range, so that a round has full ranges only: the last one would wait."""
    of_partition = math.ceil(rows / PARTITIONS)
    return math.ceil(of_partition / math.ceil(of_partition / RANGE_MESSAGES))


def _event_bytes() -> int:
    """Bytes of an average event."""
    events = next(iter(Orders(seed=1).take(_SAMPLE_EVENTS)))
    return round(sum(map(len, events)) / len(events))
