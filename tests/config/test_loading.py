from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sluice.config import ClickHouseConfiguration, GroupStart, Secret, ShardConfiguration, load
from sluice.config.example import EXAMPLE
from sluice.core.dead_letters import DeadLetterLimit
from sluice.core.errors import ConfigurationError
from sluice.machine.secret_source import SecretSource
from tests.config.support import MINIMAL, changed, load_text


def test_a_registry_may_have_a_path_and_several_urls(tmp_path: Path) -> None:
    for written, expected in (
        ('"http://one:8081/apis/ccompat/v7/"', "http://one:8081/apis/ccompat/v7"),
        ('["https://one", "https://two:8443"]', "https://one,https://two:8443"),
    ):
        registry = f'[registry]\nurl = {written}\ntoken = "t0ken"\n[batch]'
        read = load_text(tmp_path, changed("[batch]", registry)).registry
        assert read is not None and (read.url, read.token.reveal()) == (expected, "t0ken")
        assert "t0ken" not in repr(read)


#: The example of the configuration contract, two replicas for its quorum.
CONTRACT = """\
[pipeline]
name = "orders"
[spark]
master = "local[*]"
conf = { "spark.executor.memory" = "4g" }
[[connector]]
name = "dc1"
brokers = "localhost:9092"
topics = ["orders"]
start = "earliest"
kafka = { "security.protocol" = "PLAINTEXT" }
[batch]
max_messages = 250_000
max_bytes = "64MiB"
max_delay = "1s"
lease = "10m"
[clickhouse]
database = "shop"
shards = { s1 = ["http://localhost:8123", "http://other:8123/"] }
user = "default"
password = "${CLICKHOUSE_PASSWORD}"
durability = "quorum"
[[table]]
name = "orders"
target = "orders"
topics = ["orders"]
format = "JSONEachRow"
lineage = true
unknown_fields = "ignore"
on_null = "dead-letter"
sort = false
on_error = "stop-partition"
[dead_letters]
topic = "sluice.orders.dead-letters"
max_ratio = 0.5
min_dead_letters = 100
mask = ["email"]
[ledger]
topic = "sluice.orders.ledger"
"""


def test_the_contract_loads(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, CONTRACT, {"CLICKHOUSE_PASSWORD": "hunter2"})
    assert configuration.pipeline == "orders"
    assert configuration.masked == ("email",)
    assert configuration.spark.master == "local[*]"
    assert configuration.spark.properties() == {"spark.executor.memory": "4g"}
    (connector,) = configuration.connectors
    assert (connector.name, connector.brokers) == ("dc1", "localhost:9092")
    assert (connector.topics, connector.start) == (("orders",), "earliest")
    assert connector.properties() == {"security.protocol": "PLAINTEXT"}
    assert configuration.batch.max_bytes == 64 * 1024**2
    assert configuration.batch.range_bytes_max == 96 * 1024**2
    assert configuration.clickhouse == ClickHouseConfiguration(
        database="shop",
        shards=(ShardConfiguration("s1", ("http://localhost:8123", "http://other:8123")),),
        user="default",
        password=Secret("hunter2"),
        durability="quorum",
    )
    (table,) = configuration.tables
    assert table.target == "shop.orders"
    assert table.lineage is True


def test_defaults_are_those_of_the_contract(tmp_path: Path) -> None:
    least = load_text(tmp_path, MINIMAL)
    full = load_text(tmp_path, CONTRACT, {"CLICKHOUSE_PASSWORD": ""})
    assert least.batch == full.batch
    assert (least.batch.max_messages, least.batch.max_delay_seconds) == (250_000, 1.0)
    assert least.batch.lease_seconds == 600.0
    assert least.spark.master == full.spark.master
    assert least.connectors[0].start == "earliest"
    assert least.connectors[0].kafka == {}
    assert least.clickhouse.user == "default"
    assert least.clickhouse.password == Secret("")
    assert least.tables[0].target == "default.orders"
    assert least.dead_letters_topic == full.dead_letters_topic == "sluice.orders.dead-letters"
    assert (
        least.dead_letter_limit
        == full.dead_letter_limit
        == DeadLetterLimit(max_ratio=0.5, min_dead_letters=100)
    )
    assert least.ledger_topic == full.ledger_topic == "sluice.orders.ledger"
    assert least.http is None
    for name in ("format", "lineage", "unknown_fields", "on_null", "sort", "on_error"):
        assert getattr(least.tables[0], name) == getattr(full.tables[0], name)


def test_durability_is_quorum_unless_written(tmp_path: Path) -> None:
    text = changed('durability = "single"\n', "")
    text = changed('["http://localhost:8123"]', '["http://a:8123", "http://b:8123"]', text)
    assert load_text(tmp_path, text).clickhouse.durability == "quorum"


@pytest.mark.parametrize(
    ("written", "of_two", "of_four", "seconds"),
    [
        ("", 2, 2, 25.0),
        ("quorum = 2", 2, 2, 25.0),
        ('quorum = "auto"\nquorum_timeout = "1500ms"', 2, 3, 1.5),
    ],
)
def test_how_many_replicas_are_a_quorum(
    tmp_path: Path, written: str, of_two: int, of_four: int, seconds: float
) -> None:
    urls = [f'"http://h{number}:8123"' for number in range(4)]
    shards = f"{{ s1 = [{', '.join(urls[:2])}], s2 = [{', '.join(urls)}] }}"
    text = changed('durability = "single"', f'zookeeper = "a:2181,[::1]:2182/b/c"\n{written}')
    text = changed('{ s1 = ["http://localhost:8123"] }', shards, text)
    clickhouse = load_text(tmp_path, text + 'shards = ["s1"]\n').clickhouse
    assert [clickhouse.quorum_of(shard) for shard in clickhouse.shards] == [of_two, of_four]
    assert clickhouse.quorum_timeout_seconds == seconds
    assert clickhouse.zookeeper == "a:2181,[::1]:2182/b/c"


def test_the_example_loads_without_an_environment(tmp_path: Path) -> None:
    least = load_text(tmp_path, MINIMAL)
    example = load_text(tmp_path, EXAMPLE)
    assert example.batch == least.batch
    assert example.dead_letters_topic == least.dead_letters_topic
    for name in ("format", "lineage", "unknown_fields", "on_null", "sort", "on_error"):
        assert getattr(example.tables[0], name) == getattr(least.tables[0], name)


def test_files_are_named_relative_to_the_configuration(tmp_path: Path) -> None:
    text = changed(
        "[clickhouse]",
        '[clickhouse]\npassword = { file = "secrets/password" }\n'
        'tls = { ca = "/etc/ca.pem", certificate = "client.pem", key_password = "x" }',
    ).replace("http://localhost", "https://localhost")
    clickhouse = load_text(tmp_path, text).clickhouse
    assert clickhouse.password.source == SecretSource(
        "password", file=str(tmp_path / "secrets/password")
    )
    assert clickhouse.tls.ca == "/etc/ca.pem"
    assert clickhouse.tls.certificate == str(tmp_path / "client.pem")
    assert clickhouse.tls.key == ""
    assert clickhouse.tls.key_password.reveal() == "x"
    assert '"x"' not in repr(clickhouse)


def test_the_commented_lines_of_the_example_load_too(tmp_path: Path) -> None:
    text = EXAMPLE.replace("# password =", "password =", 1).replace("# [http]", "[http]")
    text = text.replace("# listen", "listen")
    example = load_text(tmp_path, text, {"CLICKHOUSE_PASSWORD": "x"})
    assert example.clickhouse.password == Secret("x")
    assert example.http is not None
    assert (example.http.host, example.http.port) == ("127.0.0.1", 9464)


def test_names_that_follow_from_the_pipeline(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, MINIMAL)
    assert configuration.group("dc1") == "sluice.orders.dc1"
    longest = "n" * 48
    text = changed('[pipeline]\nname = "orders"', f'[pipeline]\nname = "{longest}"')
    configuration = load_text(tmp_path, text)
    assert len(configuration.dead_letters_topic) <= 249
    assert configuration.ledger_topic == f"sluice.{longest}.ledger"


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ('"latest"', "latest"),
        ('"2026-01-31T01:00:00+01:00"', datetime(2026, 1, 31, tzinfo=UTC)),
        ('"2026-01-31T00:00:00Z"', datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T00:00:00Z", datetime(2026, 1, 31, tzinfo=UTC)),
        ('"timestamp:2026-01-31T00:00:00Z"', datetime(2026, 1, 31, tzinfo=UTC)),
        ('"group:flink-orders"', GroupStart("flink-orders")),
        ('"group:a:b, c"', GroupStart("a:b, c")),
        ('"group:flink-orders,earliest"', GroupStart("flink-orders", earliest=True)),
    ],
)
def test_starts(tmp_path: Path, written: str, start: object) -> None:
    text = changed("[batch]", f"start = {written}\n[batch]")
    assert load_text(tmp_path, text).connectors[0].start == start


def test_a_target_names_its_database(tmp_path: Path) -> None:
    text = MINIMAL + 'target = "shop.orders_local"\n'
    (table,) = load_text(tmp_path, text).tables
    assert (table.database, table.table) == ("shop", "orders_local")


def test_variables_are_replaced_and_escapes_kept(tmp_path: Path) -> None:
    text = changed('"localhost:9092"', '"${HOST}:${PORT}"')
    text += 'target = "${TABLE}"\n'
    text = changed("[clickhouse]", '[clickhouse]\npassword = "$${a}${B}$c"', text)
    environment = {"HOST": "kafka", "PORT": "19092", "TABLE": "t", "B": "${HOST}"}
    configuration = load_text(tmp_path, text, environment)
    assert configuration.connectors[0].brokers == "kafka:19092"
    assert type(configuration.connectors[0].brokers) is str
    assert configuration.tables[0].table == "t"
    assert configuration.clickhouse.password.reveal() == "${a}${HOST}$c"


def test_properties_may_be_dotted_or_quoted_and_become_text(tmp_path: Path) -> None:
    text = changed(
        "[batch]",
        '[connector.kafka]\nsecurity.protocol = "SSL"\n"fetch.wait.max.ms" = 50\n'
        "socket.keepalive.enable = true\n[batch]",
    )
    assert load_text(tmp_path, text).connectors[0].properties() == {
        "security.protocol": "SSL",
        "fetch.wait.max.ms": "50",
        "socket.keepalive.enable": "true",
    }


def test_speculation_may_be_off(tmp_path: Path) -> None:
    text = changed("[batch]", '[spark]\nconf = { "spark.speculation" = false }\n[batch]')
    assert load_text(tmp_path, text).spark.properties() == {"spark.speculation": "false"}


def test_two_data_centers_may_carry_the_same_topic(tmp_path: Path) -> None:
    text = changed(
        "[batch]",
        '[[connector]]\nname = "dc2"\nbrokers = "[::1]:9092, b:9092"\ntopics = ["orders"]\n[batch]',
    )
    configuration = load_text(tmp_path, text)
    assert configuration.connector("dc2").brokers == "[::1]:9092,b:9092"
    assert configuration.tables_of("orders") == configuration.tables
    assert configuration.tables_of("other") == ()
    with pytest.raises(ConfigurationError) as caught:
        configuration.connector("dc3")
    assert "dc1, dc2" in caught.value.hint


def test_a_configuration_survives_pickling(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, CONTRACT, {"CLICKHOUSE_PASSWORD": "hunter2"})
    copy = pickle.loads(pickle.dumps(configuration))
    assert copy == configuration
    assert copy.clickhouse.password.reveal() == "hunter2"


def test_a_byte_order_mark_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "sluice.toml"
    path.write_text(MINIMAL, encoding="utf-8-sig")
    assert load(path, {}).pipeline == "orders"
