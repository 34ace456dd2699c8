"""A whole world for end-to-end tests: real broker, embedded ClickHouse, `sluice run`.

Checks compare content, row by row, with what was produced; they do not use Sluice's own
audit, which is tested against the same truth.
"""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import confluent_kafka as ck
import numpy as np
from confluent_kafka.admin import AdminClient, NewTopic

from sluice.cli.main import main
from sluice.clickhouse.http import Server
from sluice.core.errors import SluiceError, TransientError
from sluice.testbed.local.running import Broker, ClickHouse
from tests.support.clickhouse_server import ClickHouseServer
from tests.support.driver import Driver
from tests.support.kafka import delete_topic, make_topic

COLUMNS = (
    "id UInt64, user_id UInt32, ts DateTime, amount Float64, country LowCardinality(String), "
    "status String, sku String, quantity UInt16, note String"
)
LINEAGE = (
    "_topic LowCardinality(String), _partition UInt32, _offset UInt64, _row UInt32, "
    "_source LowCardinality(String)"
)

#: Messages that can never become a row, one of each kind.
BROKEN = (
    b'{"id":1,"user_id":2',
    b"not json at all",
    b'{"id":"x","quantity":1}',
    b'{"id":1,"quantity":70000}',
    b'{"id":null}',
    b'{"id":1}{"id":2}',
    b"[1,2,3]",
    b'{"id":1,"ts":"2206-01-01 00:00:00"}',
)


def order(number: int, note: str = "n") -> bytes:
    """A good message; `id` tells it from every other."""
    return (
        b'{"id":%d,"user_id":%d,"ts":"2026-01-02 03:04:05","amount":%d.5,"country":"DE",'
        b'"status":"paid","sku":"SKU-%06d","quantity":%d,"note":"%s"}'
    ) % (number, number % 99991, number % 1000, number % 9973, number % 60000, note.encode())


@dataclass
class Truth:
    """What was produced: the value of each offset, and whether it must become a row."""

    good: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    bad: dict[int, list[int]] = field(default_factory=dict)
    tombstones: int = 0

    @property
    def rows(self) -> int:
        return sum(map(len, self.good.values()))

    @property
    def bad_count(self) -> int:
        return sum(map(len, self.bad.values()))


@dataclass
class World:
    """Broker, ClickHouse and a folder; every test uses names of its own."""

    folder: Path
    broker: Broker
    clickhouse: ClickHouse | ClickHouseServer
    name: str
    drivers: list[Driver] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)

    # Kafka

    def create_topic(self, topic: str, partitions: int = 4, **settings: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.broker.brokers})
        new = NewTopic(
            topic, partitions, 1, config={k.replace("_", "."): v for k, v in settings.items()}
        )
        make_topic(admin, new)
        self.topics.append(topic)

    def delete_topic(self, topic: str) -> None:
        delete_topic(AdminClient({"bootstrap.servers": self.broker.brokers}), topic)

    def producer(self, **more: object) -> ck.Producer:
        return ck.Producer(
            {
                "bootstrap.servers": self.broker.brokers,
                "enable.idempotence": True,
                "linger.ms": 20,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 1_000_000,
                **more,
            }
        )

    def produce(
        self,
        topic: str,
        count: int,
        truth: Truth,
        partitions: int = 4,
        bad_every: int = 0,
        make: Callable[[int], bytes] = order,
        first: int = 0,
        seed: int = 7,
        timestamp_ms: int = 0,
    ) -> None:
        """Produce messages round robin; the broker's offsets are what `truth` records.

        :param timestamp_ms: of all of them; 0: now.
        """
        producer, dice = self.producer(), random.Random(seed)

        def delivered(number: int | None) -> Callable[[object, ck.Message], None]:
            def record(error: object, message: ck.Message) -> None:
                assert error is None, error
                partition, offset = message.partition(), message.offset()
                if number is None:
                    truth.bad.setdefault(partition, []).append(offset)
                else:
                    truth.good.setdefault(partition, []).append((offset, number))

            return record

        for number in range(first, first + count):
            broken = bad_every and dice.randrange(bad_every) == 0
            value = dice.choice(BROKEN) if broken else make(number)
            while True:
                try:
                    producer.produce(
                        topic,
                        value,
                        partition=number % partitions,
                        timestamp=timestamp_ms,
                        on_delivery=delivered(None if broken else number),
                    )
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 1000 == 0:
                producer.poll(0)
        producer.flush()

    @contextmanager
    def messages_coming(self, topic: str, truth: Truth) -> Iterator[None]:
        """A hundred messages, again and again, and the last ones when it is over: however much a
        driver has loaded by then, there is something to load."""
        ended = threading.Event()

        def produce() -> None:
            is_over = False
            while not is_over:
                is_over = ended.wait(0.1)
                self.produce(topic, 100, truth, first=truth.rows + truth.bad_count)

        producing = threading.Thread(target=produce)
        producing.start()
        try:
            yield
        finally:
            ended.set()
            producing.join()

    def dead_letters(self) -> list[tuple[int, int]]:
        """(partition, offset) of every committed dead letter, as they stand."""
        consumer = ck.Consumer(
            {
                "bootstrap.servers": self.broker.brokers,
                "group.id": "test-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        topic = f"sluice.{self.name}.dead-letters"
        where = ck.TopicPartition(topic, 0)
        low, high = consumer.get_watermark_offsets(where, timeout=15, cached=False)
        consumer.assign([ck.TopicPartition(topic, 0, low)])
        found: list[tuple[int, int]] = []
        position = low
        while position < high:
            for message in consumer.consume(500, 0.0) or consumer.consume(1, 0.2):
                headers = dict(message.headers())
                found.append((int(headers["sluice.partition"]), int(headers["sluice.offset"])))
            position = max(position, consumer.position([where])[0].offset)
        consumer.close()
        return found

    def ledger(self) -> list[dict[str, object]]:
        """Every committed ledger entry."""
        from sluice.kafka.clients import KafkaAccess
        from sluice.kafka.ledger import entries

        access = KafkaAccess("dc1", self.broker.brokers)
        return [entry for _, entry in entries(access, f"sluice.{self.name}.ledger")]

    # ClickHouse

    def query(self, sql: str) -> list[dict[str, object]]:
        with Server(self.clickhouse.url) as server:
            return server.query(sql, timeout_seconds=120)

    def execute(self, sql: str) -> None:
        with Server(self.clickhouse.url) as server:
            server.execute(sql, timeout_seconds=120)

    def create_table(self, table: str, window: int = 10_000, more: str = "") -> None:
        self.execute(
            f"CREATE TABLE {table} ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree "
            f"{more} ORDER BY (user_id, ts) SETTINGS non_replicated_deduplication_window = {window}"
        )

    def rows(self, table: str, url: str = "") -> dict[int, list[tuple[int, int]]]:
        """(offset, id) of every row by partition, sorted, doubled rows twice."""
        import urllib.request

        keys = "_partition, _offset, id"
        sql = f"SELECT {keys} FROM {table} ORDER BY {keys} FORMAT RowBinary"
        url = url or self.clickhouse.url
        with urllib.request.urlopen(url, data=sql.encode(), timeout=120) as reply:
            raw = reply.read()
        kind = np.dtype([("partition", "<u4"), ("offset", "<u8"), ("id", "<u8")])
        table_rows = np.frombuffer(raw, kind)
        return {
            int(p): [
                (int(o), int(i)) for _, o, i in table_rows[table_rows["partition"] == p].tolist()
            ]
            for p in np.unique(table_rows["partition"])
        }

    def count(self, table: str) -> int:
        return int(str(self.query(f"SELECT count() AS n FROM {table}")[0]["n"]))

    def wait_for_rows(self, table: str, rows: int, driver: Driver, seconds: float = 240) -> None:
        """Until the table holds so many rows; the driver must live meanwhile."""

        def has_rows() -> bool:
            assert driver.process.poll() is None, driver.text()[-4000:]
            return self.count(table) >= rows

        try:
            wait_for(has_rows, seconds, f"{rows} rows of {table}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{driver.text()[-4000:]}") from None

    def load_for(self, seconds: float, table: str, rows: int) -> None:
        """Let a driver load for so long, or until the table has so many rows."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.count(table) < rows:
            time.sleep(0.02)

    def _records(self) -> list[dict[str, object]]:
        try:
            return [entry for entry in self.ledger() if entry["type"] == "record"]
        except SluiceError:
            return []

    # Sluice

    def configure(self, tables: dict[str, list[str]], **batch: object) -> Path:
        """Write the configuration: table -> topics; batch settings as TOML literals.

        `shards` is TOML; the default is one, this world's server. `settings_of` holds TOML lines
        of single tables, `table_settings` of all others.

        :returns: its path.
        """
        topics = sorted({topic for names in tables.values() for topic in names})
        settings: dict[str, object] = {
            "max_messages": 20_000,
            "max_delay": '"200ms"',
            "lease": '"1m"',
            **batch,
        }
        connector = settings.pop("connector", "")
        url = settings.pop("url", self.clickhouse.url)
        shards = settings.pop("shards", f'{{ s1 = ["{url}"] }}')
        table_settings = settings.pop("table_settings", "")
        settings_of = cast(dict[str, str], settings.pop("settings_of", {}))
        clickhouse = settings.pop("clickhouse", "")
        lines = [
            f'[pipeline]\nname = "{self.name}"',
            '[spark]\nmaster = "local[2]"\nconf = { "spark.ui.enabled" = "false" }',
            f'[[connector]]\nname = "dc1"\nbrokers = "{self.broker.brokers}"\n'
            f"topics = {json.dumps(topics)}\n{connector}",
            "[batch]\n" + "\n".join(f"{key} = {value}" for key, value in settings.items()),
            f'[clickhouse]\ndatabase = "default"\nshards = {shards}\n'
            f'durability = "single"\n{clickhouse}',
        ]
        for table, names in tables.items():
            more = settings_of.get(table, table_settings)
            if "format = " not in str(more):
                more = f'format = "JSONEachRow"\n{more}'
            lines.append(f'[[table]]\nname = "{table}"\ntopics = {json.dumps(names)}\n{more}')
        path = self.folder / f"{self.name}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def run(
        self, configuration: Path, *more: str, program: Sequence[str] = ("-m", "sluice")
    ) -> Driver:
        """Start a driver.

        :param program: of Python, that takes the words of the command.
        """
        log = self.folder / f"{self.name}.{len(self.drivers)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *program, "run", str(configuration), *more],
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )
        driver = Driver(process, log)
        self.drivers.append(driver)
        return driver

    def drain(self, configuration: Path, timeout_seconds: float = 180.0) -> Driver:
        """Run until caught up; the driver must end with status 0."""
        driver = self.run(configuration, "--until-caught-up")
        status = driver.wait(timeout_seconds)
        assert status == 0, f"status {status}\n{driver.text()[-6000:]}"
        return driver

    def sluice(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run any other command, in this process."""
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
            status = main(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    def close(self) -> None:
        """End what still runs."""
        for driver in self.drivers:
            if driver.process.poll() is None:
                driver.process.send_signal(signal.SIGCONT)
                driver.kill()

    def clean(self) -> None:
        """Leave nothing in a shared broker and server that another test's names may meet."""
        for row in self.query("SELECT name FROM system.tables WHERE database = 'default'"):
            self.execute(f"DROP TABLE IF EXISTS `{row['name']}` SYNC")
        admin = AdminClient({"bootstrap.servers": self.broker.brokers})
        there = admin.list_topics(timeout=30).topics
        # A test may create one topic twice; the broker refuses a request that names one twice.
        if gone := sorted(set(self.topics) & set(there)):
            for deleted in admin.delete_topics(gone, operation_timeout=30).values():
                try:
                    deleted.result(30)
                except ck.KafkaException as error:
                    # One that the test has just deleted may still have been listed.
                    if error.args[0].code() != ck.KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise


def use_cluster(configuration: Path, master: str, settings: Mapping[str, str]) -> None:
    """Write another master of Spark into a configuration of a world, and Spark's properties."""
    conf = ", ".join(f'"{name}" = "{value}"' for name, value in settings.items())
    text = configuration.read_text().replace('master = "local[2]"', f'master = "{master}"')
    text = text.replace('conf = { "spark.ui.enabled" = "false" }', f"conf = {{ {conf} }}")
    configuration.write_text(text)


def assert_exact(world: World, table: str, truth: Truth) -> None:
    """Every good message is one row with its own content, nothing else is there."""
    found = world.rows(table)
    for partition, expected in truth.good.items():
        assert found.get(partition, []) == sorted(expected), _difference(
            partition, found.get(partition, []), sorted(expected)
        )
    assert set(found) <= set(truth.good)


def _difference(
    partition: int, found: list[tuple[int, int]], expected: list[tuple[int, int]]
) -> str:
    missing = sorted(set(expected) - set(found))
    foreign = sorted(set(found) - set(expected))
    return (
        f"partition {partition}: {len(found)} rows, {len(expected)} expected; missing "
        f"{missing[:5]}, foreign {foreign[:5]}, doubled {len(found) - len(set(found))}"
    )


def assert_dead_letters(world: World, truth: Truth) -> None:
    """Every broken message is a dead letter exactly once."""
    expected = sorted((p, offset) for p, offsets in truth.bad.items() for offset in offsets)
    assert sorted(world.dead_letters()) == expected


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until the condition holds. What a server that is away or busy answers is no verdict: it
    is asked again, and told if the condition never holds."""
    until, refused = time.monotonic() + seconds, ""
    while True:
        try:
            if condition():
                return
            refused = ""
        except TransientError as error:
            refused = f"; the last look: {error}"
        assert time.monotonic() < until, f"{what} did not happen within {seconds} s{refused}"
        time.sleep(0.1)
