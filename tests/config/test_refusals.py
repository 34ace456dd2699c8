"""Every refusal: the key it names, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import load
from sluice.config.properties import REFUSED_KAFKA_PROPERTIES
from sluice.core.errors import ConfigurationError
from tests.config.support import MINIMAL, changed, findings_of

_PIPELINE = '[pipeline]\nname = "orders"\n'
_CONNECTOR = MINIMAL[MINIMAL.index("[[connector]]") : MINIMAL.index("[batch]")]
_TABLE = MINIMAL[MINIMAL.index("[[table]]") :]
_REPLICA = '"http://localhost:8123"'

#: (place to change, replacement, key in the message, words in the message)
CASES = [
    # sections
    (_PIPELINE, "", "pipeline", "the section [pipeline] is missing"),
    (_CONNECTOR, "", "connector", "the section [[connector]] is missing"),
    (_TABLE, "", "table", "the section [[table]] is missing"),
    ("[[table]]", "[table]", "table", "double brackets"),
    ("[batch]", "batch = 3", "connector[dc1].batch", "unknown key"),
    ("[batch]", "[ledgr]", "ledgr", 'did you mean "ledger"?'),
    ("[batch]", "[ops]", "ops", "known here: audit, batch"),
    # [registry]
    ("[batch]", '[registry]\nurl = "registry:8081"\n[batch]', "registry.url", "is not an HTTP URL"),
    ("[batch]", "[registry]\nurl = []\n[batch]", "registry.url", "must not be empty"),
    ("[batch]", '[registry]\nurl = "http://a:1,http://b:1"\n[batch]', "registry.url", "several as"),
    (
        "[batch]",
        '[registry]\nurl = "http://a@b:1"\n[batch]',
        "registry.url",
        "password in [registry]",
    ),
    ("[batch]", '[registry]\nurl = "http://a:1/x?y"\n[batch]', "registry.url", "after its path"),
    (
        "[batch]",
        '[registry]\nurl = "http://a:1"\nuser = "u"\ntoken = "t"\n[batch]',
        "registry.token",
        "keep one way",
    ),
    (
        "[batch]",
        '[registry]\nurl = "http://a:1"\npassword = "p"\n[batch]',
        "registry.password",
        "of no use without user",
    ),
    (
        "[batch]",
        '[registry]\nurl = "http://a:1"\ntls = { ca = "x" }\n[batch]',
        "registry.tls",
        "begins with https",
    ),
    # unknown keys
    ("[batch]", "[batch]\nmax_byte = 1", "batch.max_byte", 'did you mean "max_bytes"?'),
    ("[batch]", "[spark]\nmastr = 1", "spark.mastr", 'did you mean "master"?'),
    ("[batch]", 'broker = "x"\n[batch]', "connector[dc1].broker", 'did you mean "brokers"?'),
    ("[clickhouse]", "[clickhouse]\nusr = 1", "clickhouse.usr", 'did you mean "user"?'),
    ("[[table]]", '[[table]]\nonnull = ""', "table[orders].onnull", 'did you mean "on_null"?'),
    (_PIPELINE, f"{_PIPELINE}x.y = 1\n", "pipeline.x", "known here: name"),
    (
        "[batch]",
        "[dead_letters]\nretention = 1",
        "dead_letters.retention",
        "known here: mask, max_r",
    ),
    (
        "[batch]",
        "[dead_letters]\nmax_ratio = 1.5",
        "dead_letters.max_ratio",
        "1.5 is out of range; use 1.0 or less",
    ),
    ("[batch]", "[dead_letters]\nmax_ratio = 0", "dead_letters.max_ratio", "use more than 0"),
    ("[batch]", "[dead_letters]\nmax_ratio = true", "dead_letters.max_ratio", "number, not true"),
    (
        "[batch]",
        "[dead_letters]\nmin_dead_letters = 0",
        "dead_letters.min_dead_letters",
        "out of range",
    ),
    (
        "[batch]",
        '[http]\nlisten = "a:1"\nport = 1',
        "http.port",
        "known here: hosts, listen, partition_metrics",
    ),
    ("[batch]", "[batch]\n[verify]", "verify.every", "is missing"),
    ("[batch]", '[batch]\n[verify]\nevery = "9ms"', "verify.every", "use 1s to 7d"),
    ("[batch]", '[batch]\n[audit]\nevery = "1m"\nshare = 1.5', "audit.share", "1.0 or less"),
    # missing keys
    (_PIPELINE, "[pipeline]\n", "pipeline.name", "is missing"),
    ('brokers = "localhost:9092"\n', "", "connector[dc1].brokers", "is missing"),
    ('[[table]]\nname = "orders"', "[[table]]", "table[1].name", "is missing"),
    ('topics = ["orders"]\n[batch]', "[batch]", "connector[dc1].topics", "is missing"),
    (f"shards = {{ s1 = [{_REPLICA}] }}", "", "clickhouse.shards", "is missing"),
    # names
    (_PIPELINE, '[pipeline]\nname = "or ders"\n', "pipeline.name", '"or ders" is not a name'),
    (_PIPELINE, f'[pipeline]\nname = "{"n" * 49}"\n', "pipeline.name", "1 to 48 characters"),
    (_PIPELINE, '[pipeline]\nname = ""\n', "pipeline.name", "must not be empty"),
    (_PIPELINE, "[pipeline]\nname = 7\n", "pipeline.name", "must be a string, not 7"),
    (_PIPELINE, "[pipeline]\nname = { a = 1 }\n", "pipeline.name", "must be a string, not a table"),
    ('"dc1"', '"dc/1"', "connector[1].name", "is not a name"),
    ("s1 =", '"s 1" =', 'clickhouse.shards."s 1"', "is not a name"),
    (_CONNECTOR, _CONNECTOR * 2, "connector[dc1].name", "name of an earlier entry"),
    (_TABLE, _TABLE * 2, "table[orders].name", "name of an earlier entry"),
    # topics
    ('["orders"]\n[batch]', '["or ders"]\n[batch]', "connector[dc1].topics[1]", "not a topic name"),
    ('["orders"]\n[batch]', '[".."]\n[batch]', "connector[dc1].topics[1]", "not a topic name"),
    ('["orders"]\n[batch]', "[]\n[batch]", "connector[dc1].topics", "must not be empty"),
    ('["orders"]\n[batch]', '"orders"\n[batch]', "connector[dc1].topics", "must be a list"),
    ('["orders"]\n[batch]', '["orders", 3]\n[batch]', "connector[dc1].topics[2]", "not 3"),
    (
        '["orders"]\n[batch]',
        '["orders", "orders"]\n[batch]',
        "connector[dc1].topics[2]",
        '"orders" is named twice',
    ),
    (
        '["orders"]\n[batch]',
        '["orders", "bids"]\n[batch]',
        "connector[dc1].topics",
        'no [[table]] takes the topic "bids"',
    ),
    (
        _TABLE,
        _TABLE.replace('["orders"]', '["orders", "bids"]'),
        "table[orders].topics",
        'no [[connector]] has the topic "bids"',
    ),
    ("[batch]", '[ledger]\ntopic = "orders"', "connector[dc1].topics", "this pipeline itself"),
    (
        "[batch]",
        '[ledger]\ntopic = "sluice.orders.dead-letters"',
        "ledger.topic",
        "is also dead_letters.topic",
    ),
    ("[batch]", '[ledger]\ntopic = "a/b"', "ledger.topic", "not a topic name"),
    ("[batch]", f'[dead_letters]\ntopic = "{"t" * 250}"', "dead_letters.topic", "1 to 249"),
    # brokers and start
    ('"localhost:9092"', '"localhost:0"', "connector[dc1].brokers", "not a list of brokers"),
    ('"localhost:9092"', '"a:9092,,b:9092"', "connector[dc1].brokers", "not a list of brokers"),
    ('"localhost:9092"', '["a:9092"]', "connector[dc1].brokers", "must be a string, not a list"),
    ("[batch]", 'start = "tomorrow"\n[batch]', "connector[dc1].start", "is not a start"),
    ("[batch]", 'start = "timestamp:2026-01-31"\n[batch]', "connector[dc1].start", "no time zone"),
    ("[batch]", 'start = "group:"\n[batch]', "connector[dc1].start", "names no consumer group"),
    ("[batch]", 'start = "group:,earliest"\n[batch]', "connector[dc1].start", "names no consumer"),
    ("[batch]", "start = 5\n[batch]", "connector[dc1].start", "5 is not a start"),
    ("[batch]", 'start = "2026-01-31"\n[batch]', "connector[dc1].start", "has no time zone"),
    ("[batch]", "start = 2026-01-31T00:00:00\n[batch]", "connector[dc1].start", "no time zone"),
    # batch
    (
        "[batch]",
        "[batch]\nmax_messages = 0",
        "batch.max_messages",
        "0 is out of range; use 1 or more",
    ),
    ("[batch]", "[batch]\nmax_messages = 1_000_001", "batch.max_messages", "1,000,000 or less"),
    ("[batch]", "[batch]\nmax_messages = 1.5", "batch.max_messages", "whole number, not 1.5"),
    ("[batch]", "[batch]\nmax_messages = true", "batch.max_messages", "whole number, not true"),
    ("[batch]", '[batch]\nmax_bytes = "64QB"', "batch.max_bytes", '"64QB" is not a size'),
    ("[batch]", "[batch]\nmax_bytes = 12", "batch.max_bytes", "use 1KiB to 256MiB"),
    ("[batch]", '[batch]\nmax_bytes = "1GiB"', "batch.max_bytes", '"1GiB" is out of range'),
    ("[batch]", "[batch]\nmax_bytes = 1.5", "batch.max_bytes", "1.5 is not a size"),
    ("[batch]", "[batch]\nmax_delay = 3", "batch.max_delay", "3 is not a duration; write its"),
    ("[batch]", '[batch]\nmax_delay = "3"', "batch.max_delay", '"3" is not a duration'),
    ("[batch]", '[batch]\nmax_delay = "2h"', "batch.max_delay", "use 1ms to 1h"),
    ("[batch]", '[batch]\nlease = "0s"', "batch.lease", "use 1s to 1d"),
    # clickhouse
    ("[clickhouse]", '[clickhouse]\ndatabase = "a.b"', "clickhouse.database", "not a database"),
    ("[clickhouse]", '[clickhouse]\nuser = ""', "clickhouse.user", "must not be empty"),
    ("[clickhouse]", "[clickhouse]\npassword = 7", "clickhouse.password", "must be a string"),
    (
        "[clickhouse]",
        '[clickhouse]\npassword = { file = "a", command = ["b"] }',
        "clickhouse.password",
        'must be { file = "NAME" } or { command = ["PROGRAM", "ARGUMENT"] }',
    ),
    (
        "[clickhouse]",
        "[clickhouse]\npassword = { command = [] }",
        "clickhouse.password",
        "must be { file",
    ),
    (
        "[clickhouse]",
        '[clickhouse]\npassword = { command = ["a", 1] }',
        "clickhouse.password",
        "must have strings only in its command",
    ),
    (
        "[batch]",
        'kafka = { "sasl.password" = { command = "pass show kafka" } }\n[batch]',
        'connector[dc1].kafka."sasl.password"',
        "must be { file",
    ),
    (
        "[batch]",
        'kafka = { "group.id" = { command = ["pass"] } }\n[batch]',
        'connector[dc1].kafka."group.id"',
        "is not yours to set",
    ),
    ("[clickhouse]", '[clickhouse]\ntoken = ""', "clickhouse.token", "must not be empty"),
    (
        "[clickhouse]",
        '[clickhouse]\ntoken = "a"\nuser = "b"',
        "clickhouse.token",
        "stands beside user or password",
    ),
    ("[clickhouse]", '[clickhouse]\ntls = { ca = "a" }', "clickhouse.tls", "begins with https"),
    (
        "[clickhouse]",
        '[clickhouse]\ntls = { key = "a" }',
        "clickhouse.tls.key",
        "without a certificate",
    ),
    ("[clickhouse]", '[clickhouse]\ntls = { cert = "a" }', "clickhouse.tls.cert", "unknown key"),
    ('"single"', '"none"', "clickhouse.durability", 'use "quorum" or "single"'),
    ('"single"', '"quorum"', "clickhouse.durability", "the shard s1 has one"),
    ('"single"', '"single"\nquorum = 2', "clickhouse.quorum", "no meaning with durability"),
    ('"single"', '"single"\nzookeeper = "a:1"', "clickhouse.zookeeper", "no meaning with"),
    (f"[{_REPLICA}]", "[]", "clickhouse.shards.s1", "must not be empty"),
    (f"[{_REPLICA}]", _REPLICA, "clickhouse.shards.s1", "must be a list"),
    (f"{{ s1 = [{_REPLICA}] }}", "{}", "clickhouse.shards", "must not be empty"),
    (_REPLICA, '"localhost:8123"', "clickhouse.shards.s1[1]", "is not an HTTP URL"),
    (_REPLICA, '"http://localhost"', "clickhouse.shards.s1[1]", "like http://host:8123"),
    (_REPLICA, '"https://localhost"', "clickhouse.shards.s1[1]", "like https://host:8443"),
    (_REPLICA, '"http://localhost:x"', "clickhouse.shards.s1[1]", "is not a URL"),
    (_REPLICA, '"http://h:1/?a=1"', "clickhouse.shards.s1[1]", "must end after the port"),
    (_REPLICA, '"http://u:p@h:1"', "clickhouse.shards.s1[1]", '"***@h:1" carries credentials'),
    (_REPLICA, f"{_REPLICA}, {_REPLICA}", "clickhouse.shards.s1[2]", "is named twice"),
    # table
    (_TABLE, f'{_TABLE}target = "a.b.c"\n', "table[orders].target", "is not a table"),
    (_TABLE, f'{_TABLE}target = "a`b"\n', "table[orders].target", "is not a table"),
    (_TABLE, f'{_TABLE}format = "XML"\n', "table[orders].format", '"XML" is not a format'),
    (_TABLE, f"{_TABLE}lineage = 1\n", "table[orders].lineage", 'use true, false or "auto"'),
    (_TABLE, f'{_TABLE}lineage = "yes"\n', "table[orders].lineage", '"yes" is not possible'),
    (_TABLE, f'{_TABLE}unknown_fields = ""\n', "table[orders].unknown_fields", '"refuse"'),
    (_TABLE, f'{_TABLE}on_null = "skip"\n', "table[orders].on_null", '"dead-letter" or "default"'),
    (_TABLE, f'{_TABLE}on_error = "go"\n', "table[orders].on_error", '"stop-partition"'),
    # metrics
    ("[batch]", '[http]\nlisten = "9464"', "http.listen", "is not an address"),
    ("[batch]", '[http]\nlisten = "a:99999"', "http.listen", "is not an address"),
    # properties
    ("[batch]", "kafka = 3\n[batch]", "connector[dc1].kafka", "must be a table, not 3"),
    (
        "[batch]",
        'kafka = { "debug" = ["a"] }\n[batch]',
        "connector[dc1].kafka.debug",
        "not a list",
    ),
    (
        "[batch]",
        'kafka = { "a.b" = 1, a = { b = 2 } }\n[batch]',
        'connector[dc1].kafka."a.b"',
        "is named twice",
    ),
    (
        "[batch]",
        '[spark]\nconf = { "spark.speculation" = "TRUE" }',
        'spark.conf."spark.speculation"',
        "must stay off",
    ),
    (
        "[batch]",
        "[spark]\nconf = { spark.speculation = true }",
        'spark.conf."spark.speculation"',
        "must stay off",
    ),
    (
        "[batch]",
        '[spark]\nconf = { "spark.master" = "local" }',
        'spark.conf."spark.master"',
        'use the key "master"',
    ),
    ("[batch]", '[spark]\nconf = { "memory" = "4g" }', "spark.conf.memory", "begin with"),
    # variables
    ('"localhost:9092"', '"${NOPE}:1"', "connector[dc1].brokers", "variable NOPE is not set"),
    ('"localhost:9092"', '"${a b}:1"', "connector[dc1].brokers", "begins a variable"),
    ('"localhost:9092"', '"${open"', "connector[dc1].brokers", "begins a variable"),
    (
        '["orders"]\n[batch]',
        '["orders", "${NOPE}"]\n[batch]',
        "connector[dc1].topics[2]",
        "variable NOPE is not set",
    ),
]


@pytest.mark.parametrize(("old", "new", "key", "words"), CASES)
def test_refusal(tmp_path: Path, old: str, new: str, key: str, words: str) -> None:
    findings = findings_of(tmp_path, changed(old, new))
    matching = [line for line in findings if line.startswith(f"sluice.toml: {key}: ")]
    assert any(words in line for line in matching), findings


def test_a_refused_value_is_one_finding(tmp_path: Path) -> None:
    """A finding drags no others behind it."""
    findings = findings_of(tmp_path, changed('"localhost:9092"', '"${NOPE}"'))
    assert findings == [
        "sluice.toml: connector[dc1].brokers: the environment variable NOPE is not set"
    ]


@pytest.mark.parametrize("name", sorted(REFUSED_KAFKA_PROPERTIES))
def test_properties_that_break_the_protocol(tmp_path: Path, name: str) -> None:
    text = changed("[batch]", f'kafka = {{ "{name}" = "x" }}\n[batch]')
    (finding,) = findings_of(tmp_path, text)
    assert "connector[dc1].kafka." in finding
    assert name in finding
    assert "is not yours to set" in finding


def test_the_contract_names_these_properties() -> None:
    assert {
        "group.id",
        "transactional.id",
        "isolation.level",
        "auto.offset.reset",
        "enable.auto.commit",
    } <= set(REFUSED_KAFKA_PROPERTIES)


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    text = changed("[batch]", '[batch]\nmax_bytes = "x"\nlease = 1\nmax_mesages = 1')
    text = changed('"dc1"', '"d c"', text) + 'format = "XML"\n'
    keys = [line.split(": ")[1] for line in findings_of(tmp_path, text)]
    assert keys == [
        "connector[1].name",
        "batch.max_bytes",
        "batch.lease",
        "batch.max_mesages",
        "table[orders].format",
    ]


def test_what_does_not_go_together_comes_with_other_findings(tmp_path: Path) -> None:
    """Of its own section, whose key is unknown, and of others."""
    text = changed('durability = "single"', 'durability = "single"\nquorum = 2\nusr = "x"')
    text = changed("[batch]", "[batch]\nlease = 1", text)
    keys = [line.split(": ")[1] for line in findings_of(tmp_path, text)]
    assert keys == ["batch.lease", "clickhouse.quorum", "clickhouse.usr"]


def test_a_syntax_error_names_line_and_column(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, "[pipeline]\nname = orders\n")
    assert finding.startswith("sluice.toml: is not TOML: ")
    assert "line 2, column 8" in finding


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file") as caught:
        load(tmp_path / "nowhere.toml", {})
    assert "sluice init" in caught.value.hint


def test_a_binary_file(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"name = \xff")
    with pytest.raises(ConfigurationError, match="is not UTF-8 at byte 7"):
        load(tmp_path / "binary.toml", {})


@pytest.mark.parametrize(
    ("written", "key", "what"),
    [
        ("quorum = 3", "quorum", "waits for 3 replicas, and the shard s1 names 2"),
        ("quorum = 1", "quorum", '1 is no quorum; write durability = "single"'),
        ("quorum = true", "quorum", "must be a whole number, not true"),
        ('quorum = "all"', "quorum", '"all" is not possible; use a number of replicas, or "auto"'),
        ('quorum_timeout = "26s"', "quorum_timeout", "is out of range; use 1s to 25s"),
        ('insert_timeout = "29s"', "insert_timeout", "must be 30 s at least, 5 s more than"),
        ('zookeeper = "a"', "zookeeper", '"a" is no ZooKeeper; write host:port'),
        ('zookeeper = "a:1/b,c:1"', "zookeeper", "is no ZooKeeper"),
    ],
)
def test_quorums_that_cannot_be(tmp_path: Path, written: str, key: str, what: str) -> None:
    text = changed('["http://localhost:8123"]', '["http://a:8123", "http://b:8123"]')
    (finding,) = findings_of(tmp_path, changed('durability = "single"', written, text))
    assert f"clickhouse.{key}: " in finding and what in finding


def test_a_quorum_of_unusable_replicas_is_not_a_lone_replica(tmp_path: Path) -> None:
    text = changed('["http://localhost:8123"]', '["http://a:8123", "nonsense"]')
    text = changed('durability = "single"\n', "", text)
    (finding,) = findings_of(tmp_path, text)
    assert "shards.s1[2]" in finding
