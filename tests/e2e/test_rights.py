"""With exactly the rights that `sluice doctor --grants` prints all works, and without any one of
them `sluice doctor` names it: a real broker with an authorizer, and the engine with roles.

The engine gives every user what is in `system`, so rights on its tables are not taken away here.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import ssl
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from urllib.request import urlopen

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from sluice.cli.main import main
from sluice.clickhouse.http import Server
from sluice.config import Configuration, load
from sluice.driver.specs import access_of, kafka_access
from sluice.kafka.clients import KafkaAccess, make_producer
from sluice.kafka.errors import KafkaDeniedError
from sluice.kafka.tail import Tail
from sluice.kafka.topics import ensure_own_topics
from sluice.kafka.transactions import initialise
from sluice.ops import doctor_clickhouse
from sluice.ops.doctor_clickhouse import look_at_replica
from sluice.ops.doctor_findings import Finding
from sluice.ops.doctor_front import FrontLook
from sluice.ops.doctor_kafka import look_at_kafka
from sluice.ops.doctor_rights import known_tables
from sluice.ops.grants import clickhouse_rights, script
from sluice.testbed.local.children import free_ports
from sluice.testbed.local.processes import command_of, descendants
from sluice.testbed.local.running import running_program
from tests.support.certificates import Authority
from tests.support.driver import Driver
from tests.support.guarded import (
    PASSWORD,
    USER,
    GuardedBroker,
    GuardedClickHouse,
    bindings,
    give_only,
)
from tests.support.kafka import make_topic
from tests.support.otlp import Receiver
from tests.support.world import COLUMNS, LINEAGE, order, wait_for

NAME = f"r{uuid.uuid4().hex[:8]}"
TOPIC = f"orders-{NAME}"
ROWS = 500
#: Planted where secrets stand.
SECRETS = {
    "kafka": PASSWORD,
    "clickhouse": "planted-clickhouse-password",
    "token": "planted-token-of-alice",
    "key_password": "planted-password-of-a-key",
    "spark": "planted-property-of-spark",
}
PASSWORD_FILE = 'password = { file = "password" }\n'
WINDOW = "SETTINGS non_replicated_deduplication_window = 1000"


def configuration_text(broker: GuardedBroker, url: str, user: str) -> str:
    return f"""
[pipeline]
name = "{NAME}"
[spark]
master = "local[2]"
[[connector]]
name = "dc1"
brokers = "{broker.logins}"
topics = ["{TOPIC}"]
{broker.properties}
[batch]
max_delay = "200ms"
lease = "1m"
[clickhouse]
database = "shop"
shards = {{ s1 = ["{url}"] }}
user = "{user}"
durability = "single"
[deduplication]
path = "claims"
[[table]]
name = "orders"
topics = ["{TOPIC}"]
on_error = "park"
unknown_fields = "refuse"
dynamic_columns = {{ allow = ["new.*"] }}
deduplicate = {{ key = ["id"], window = "1h", duplicates = "topic" }}
[[table]]
name = "stored"
topics = ["{TOPIC}"]
delivery = "staged"
"""


@dataclass
class Guarded:
    """A pipeline whose user has the rights that are printed for it.

    :param folder: of the configuration.
    :param printed: what `--grants` prints.
    :param without: by a user of ClickHouse, the statement that he lacks.
    """

    folder: Path
    broker: GuardedBroker
    server: GuardedClickHouse
    printed: list[str]
    without: dict[str, str]

    def file(self, user: str = "all_of_it") -> Path:
        path = self.folder / "sluice.toml"
        path.write_text(configuration_text(self.broker, self.server.url, user))
        return path

    def configuration(self, user: str = "all_of_it") -> Configuration:
        return load(self.file(user), {})

    @property
    def commands(self) -> list[str]:
        """Those for Kafka that loading needs."""
        return needed(self.printed, "kafka-acls.sh")


def needed(printed: list[str], word: str) -> list[str]:
    """The lines that begin so, but those that the line before says are for one command only."""
    return [
        line
        for before, line in pairwise(printed)
        if line.startswith(word) and "only for" not in before
    ]


def create_tables(url: str) -> None:
    with Server(url) as server:
        server.execute("CREATE DATABASE shop")
        for name in ("orders", "stored"):
            create = (
                f"CREATE TABLE shop.{name} ({COLUMNS}, {LINEAGE}) ENGINE = MergeTree ORDER BY id"
            )
            server.execute(f"{create} {WINDOW}")
            server.execute(
                f"CREATE TABLE shop.{name}_sums (country String, n UInt64) "
                f"ENGINE = SummingMergeTree ORDER BY country {WINDOW}"
            )
            server.execute(
                f"CREATE MATERIALIZED VIEW shop.{name}_view TO shop.{name}_sums AS "
                f"SELECT country, count() AS n FROM shop.{name} GROUP BY country"
            )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    with (
        running_program(GuardedBroker(folder / "kafka")) as broker,
        running_program(GuardedClickHouse(folder / "clickhouse" / "data")) as server,
    ):
        admin = AdminClient({"bootstrap.servers": broker.brokers})
        make_topic(admin, NewTopic(TOPIC, 2, 1))
        create_tables(server.url)
        made = Guarded(folder, broker, server, [], {})
        configuration = made.configuration("default")
        ensure_own_topics(admin, configuration.own_topics)
        # With the first transaction Kafka makes a topic of its own.
        access = KafkaAccess("dc1", broker.brokers)
        assert initialise(make_producer(access, "somebody", 10_000, TOPIC)) is None
        tables, failures = known_tables(configuration)
        assert not failures
        made.printed = list(script(configuration, tables))
        granted = needed(made.printed, "GRANT")
        statements = [
            right.statement("", [privilege]).partition(" TO ")[0]
            for right in clickhouse_rights(configuration, tables)
            if not right.command
            for privilege in right.privileges
        ]
        made.without = {
            f"without_{number}": statement
            for number, statement in enumerate(statements)
            if " ON system." not in statement
        }
        server.roles = {
            "all_of_it": [line.partition(" TO ")[0] for line in granted],
            **{
                user: [other for other in statements if other != statement]
                for user, statement in made.without.items()
            },
        }
        server.restart()
        give_only(broker, bindings(made.commands))
        yield made


def rights(findings: list[Finding]) -> list[Finding]:
    return [each for each in findings if each.check == "rights" and each.level != "ok"]


@pytest.mark.slow
def test_without_any_right_on_kafka_the_doctor_names_it(guarded: Guarded) -> None:
    configuration = guarded.configuration()
    look = partial(look_at_kafka, configuration, configuration.connector("dc1"))
    every = bindings(guarded.commands)
    assert len(every) > 20
    try:
        for missing in sorted(every, key=str):
            give_only(guarded.broker, every - {missing})
            found = rights(look().findings)
            if missing.operation == AclOperation.CREATE:
                assert found == [], "the topic is there"
                continue
            assert len(found) == 1, (missing, found)
            assert bindings([found[0].fix]) == {missing}
            assert missing.name in found[0].what or missing.name == "kafka-cluster"
    finally:
        give_only(guarded.broker, every)
    assert [each for each in look().findings if each.level == "error"] == []


def test_a_topic_that_is_still_to_be_made(guarded: Guarded) -> None:
    configuration = replace(guarded.configuration(), ledger_topic=f"sluice.{NAME}.later")
    connector = configuration.connector("dc1")
    found = rights(look_at_kafka(configuration, connector).findings)
    levels = [(each.what.partition(" on topic ")[0], each.level) for each in found]
    assert levels == [
        ("its user lacks Read and Write", "error"),
        ("its user lacks Create", "error"),
        ("its user lacks DescribeConfigs", "warning"),
    ]
    every = bindings(guarded.commands)
    give_only(guarded.broker, every | bindings(each.fix for each in found))
    try:
        assert rights(look_at_kafka(configuration, connector).findings) == []
    finally:
        give_only(guarded.broker, every)


def test_who_may_not_record_ends_with_words(guarded: Guarded) -> None:
    """librdkafka calls it fatal, as it calls a successor."""
    access = kafka_access(guarded.configuration(), "dc1")
    failure = initialise(make_producer(access, "somebody-else", 10_000, TOPIC))
    assert isinstance(failure, KafkaDeniedError) and "--grants" in failure.hint


@pytest.mark.slow
def test_without_any_right_on_clickhouse_the_doctor_names_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What stands before a server is nothing of rights, and takes seconds.
    monkeypatch.setattr(doctor_clickhouse, "look_at_front", lambda *_: FrontLook())

    def look(user: str) -> list[Finding]:
        configuration = guarded.configuration(user)
        access = access_of(configuration)
        names = [("shop", "orders"), ("shop", "stored")]
        of = partial(clickhouse_rights, configuration)
        return look_at_replica(access, "s1", guarded.server.url, names, (), of).findings

    assert [each for each in look("all_of_it") if each.level == "error"] == []
    for user, statement in guarded.without.items():
        found = [each.fix for each in look(user) if each.level == "error"]
        # Of a table behind a view of which nothing is seen, the columns are asked for first.
        named = (statement, f"GRANT SHOW COLUMNS ON {statement.partition(' ON ')[2]}")
        assert any(each in fix for fix in found for each in named), (statement, found)


@dataclass
class Driven:
    """A driver that has loaded and ended, and everything that it has shown to anybody.

    :param shown: texts by where they stood.
    """

    status: int
    shown: dict[str, str]


@pytest.fixture(scope="module")
def driven(guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driven]:
    """Loads, is asked for all that it answers, decides what can be decided, and is drained."""
    folder = tmp_path_factory.mktemp("driven")
    authority = Authority(folder / "certificates")
    certificate, key = authority.sign("driver", SECRETS["key_password"])
    (guarded.folder / "password").write_text(SECRETS["clickhouse"])
    (guarded.folder / "tokens").write_text(f"alice {SECRETS['token']}\nbob {'b' * 30}\n")
    port, page = free_ports(2)
    configuration = guarded.file()
    conf = f'conf = {{ "spark.planted" = "${{PLANTED}}", "spark.ui.port" = "{page}" }}\n'
    text = configuration.read_text().replace("[spark]\n", f"[spark]\n{conf}")
    text = text.replace('durability = "single"\n', 'durability = "single"\n' + PASSWORD_FILE)
    configuration.write_text(
        f'{text}[http]\nlisten = "127.0.0.1:{port}"\ntokens_file = "tokens"\ntls = {{ '
        f'certificate = "{certificate}", key = "{key}", key_password = "${{KEY_PASSWORD}}" }}\n'
    )
    receiver = Receiver()
    environment = {
        "PLANTED": SECRETS["spark"],
        "KEY_PASSWORD": SECRETS["key_password"],
        "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.start(),
    }
    produce(guarded.broker)
    log = folder / "driver.log"
    words = [sys.executable, "-m", "sluice", "--debug", "run", str(configuration)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    driver = Driver(process, log)
    try:
        with Server(guarded.server.url) as server:

            def is_loaded() -> bool:
                assert process.poll() is None, driver.text()[-5000:]
                tables = ("orders", "stored")
                return [count(server, table) for table in tables] == [ROWS, ROWS + 1]

            wait_for(is_loaded, 240, "the rows of both tables")
        shown = {f"ps {pid}": command for pid, command in commands_below(process.pid).items()}
        context = ssl.create_default_context(cafile=authority.certificate)
        shown |= sparks_page(f"http://127.0.0.1:{page}")
        shown |= answers(port, context)
        status = driver.wait()
    finally:
        if process.poll() is None:
            driver.kill()
        receiver.stop()
    shown |= {"log": driver.text(), "traces": "\n".join(map(str, receiver.spans))}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        yield Driven(status, shown | commands(configuration) | topics(guarded))


def produce(broker: GuardedBroker) -> None:
    producer = ck.Producer({"bootstrap.servers": broker.brokers})
    for number in range(ROWS):
        value = order(number) if number % 50 else b'{"id":%d,"new_field":7}' % number
        producer.produce(TOPIC, value, partition=number % 2)
    for value in (b"not json", order(1)):  # a dead letter, and a duplicate
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(30) == 0


def count(server: Server, table: str) -> int:
    return int(server.query(f"SELECT count() AS n FROM shop.{table}")[0]["n"])


def commands_below(pid: int) -> dict[int, str]:
    """The command lines of a process and all that descend from it."""
    found = [pid, *(each.pid for each in descendants(pid))]
    return {each: command for each in found if (command := command_of(each))}


def sparks_page(url: str) -> dict[str, str]:
    """Spark's configuration, as its page shows it and as it gets it."""

    def read(path: str) -> str:
        with urlopen(f"{url}{path}", timeout=60) as answer:
            return str(answer.read().decode())

    found = json.loads(read("/api/v1/applications"))[0]["id"]
    environment = read(f"/api/v1/applications/{found}/environment")
    return {"Spark's page": read("/environment/"), "Spark's environment": environment}


def answers(port: int, context: ssl.SSLContext) -> dict[str, str]:
    """All that the HTTP server says, good words and bad; at last it drains the driver."""
    found = {}

    def ask(path: str, said: object = None, token: str = SECRETS["token"], *, by: str = "") -> str:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        method, body = ("GET", None) if said is None else ("POST", json.dumps(said))
        try:
            connection.request(method, path, body, headers if said is not None or by else {})
            answer = connection.getresponse()
            text = answer.read().decode()
            shown = f"{answer.status} {answer.getheaders()} {text}"
        finally:
            connection.close()
        found[f"{path} {said} {by} {'' if token == SECRETS['token'] else 'by nobody'}"] = shown
        return text

    for path in json.loads(ask("/openapi.json"))["paths"]:
        ask(path)
    why = {"why": "to see what is shown"}
    for path, more in (
        ("/freeze", {"table": "orders"}),
        ("/resume", {"table": "orders"}),
        ("/log-level", {"level": "debug"}),
        ("/limits", {"max_inflight_inserts": 7}),
        ("/limits", {"max_inflight_inserts": "none"}),
        ("/freeze", {"table": "nowhere"}),
        ("/dead-letters/replay", {"table": "nowhere"}),
        ("/adopt", {"connector": "dc1", "topic": "x", "partitions": [0], "offset": 1}),
    ):
        ask(path, why | more)
        ask(path, why | more, token=f"{SECRETS['token'][:-1]}x")
    for path in ("/status", "/dead-letters?whole=true", "/history?limit=200"):
        ask(path, by="somebody with a token")
    ask("/drain", why)
    decided = [text[:3] for asked, text in found.items() if "why" in asked]
    taken = [status for status in decided if status != "401"]
    assert taken[:4] == ["200"] * 4 and taken[-1] == "200", found
    assert decided.count("401") == 8 and {*taken[4:6]}.isdisjoint({"200", "500"}), found
    return found


def commands(configuration: Path) -> dict[str, str]:
    """What commands print, and what a refused configuration is told."""
    found = {}
    for words in (
        ["doctor"],
        ["doctor", "--json"],
        ["doctor", "--grants"],
        ["doctor", "--grants", "--json"],
        ["status", "--json"],
        ["ledger", "--json"],
    ):
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            main([words[0], str(configuration), *words[1:]])
        found[" ".join(words)] = said.getvalue()
    return found


def topics(guarded: Guarded) -> dict[str, str]:
    """All that stands in the pipeline's own topics."""
    access = KafkaAccess("dc1", guarded.broker.brokers)
    found = {}
    for name in guarded.configuration("default").own_topics:
        tail = Tail(access, name)
        messages = []
        while not tail.caught_up:
            messages += tail.poll(0.5)
        tail.close()
        found[name] = repr(messages)
    return found


@pytest.mark.slow
def test_a_pipeline_with_exactly_these_rights(guarded: Guarded, driven: Driven) -> None:
    assert driven.status == 0, driven.shown["log"][-5000:]
    with Server(guarded.server.url) as server:
        for table, rows in (("orders", ROWS), ("stored", ROWS + 1)):
            assert count(server, table) == rows
            sums = f"SELECT sum(n) AS n FROM shop.{table}_sums"
            assert server.query(sums) == [{"n": rows}]
        names = "SELECT name FROM system.columns WHERE table = 'orders' AND name = 'new_field'"
        assert len(server.query(names)) == 1
    assert "not json" in driven.shown[f"sluice.{NAME}.dead-letters"]
    assert '"level": "error"' not in driven.shown["log"]


def test_nothing_secret_is_shown_anywhere(driven: Driven) -> None:
    """Planted in the configuration and in its files, and looked for in what anybody can see."""
    assert len([where for where in driven.shown if where.startswith("ps ")]) >= 3
    assert any("SparkSubmit" in text for text in driven.shown.values()), "Java's command line"
    assert "spark.planted" in driven.shown["Spark's environment"]
    empty = [where for where, text in driven.shown.items() if not text]
    assert empty == []
    found = [
        (what, where, text[max(0, text.find(secret) - 200) :][:300])
        for what, secret in SECRETS.items()
        for where, text in driven.shown.items()
        if secret in text
    ]
    assert found == []


def test_what_is_printed(guarded: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(guarded.file("default")), "--grants"]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines() == guarded.printed
    assert f"--allow-principal User:{USER} --operation Read" in printed
