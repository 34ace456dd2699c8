"""By what events are known again, and where that is kept: what may be written, every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import DeduplicationConfiguration, Secret
from sluice.config.example import EXAMPLE
from sluice.core.claims import Deduplicate
from sluice.machine.secret_source import SecretSource
from tests.config.support import MINIMAL, changed, findings_of, load_text

DEDUPLICATE = 'deduplicate = { key = ["source", "id"], window = "7d" }\n'
KNOWN = MINIMAL + DEDUPLICATE
FAR = changed("[batch]", '[spark]\nmaster = "spark://host:7077"\n[batch]', KNOWN)


def with_section(section: str, text: str = KNOWN) -> str:
    return f"{text}[deduplication]\n{section}\n"


def test_what_is_left_out(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, KNOWN)
    (table,) = configuration.tables
    assert table.deduplicate == Deduplicate(("source", "id"), 7 * 86_400, "")
    assert configuration.scope_of(table) == "orders/default.orders"
    assert configuration.deduplication == DeduplicationConfiguration(
        store="local", path=str(tmp_path / "sluice-claims")
    )


def test_all_that_may_be_said(tmp_path: Path) -> None:
    text = changed(
        'window = "7d"',
        'window = "90m", scope = "billing", duplicates = "dead-letter", on_null = "row"',
        changed("[batch]", '[batch]\nlease = "1m"', KNOWN),
    )
    section = 'store = "rediss://loader@host:6380/2"\npassword = "${P}"\nca_file = "ca.pem"'
    configuration = load_text(tmp_path, with_section(section, text), {"P": "hunter2"})
    (table,) = configuration.tables
    assert table.deduplicate == Deduplicate(("source", "id"), 5400, "billing", "dead-letter", "row")
    assert configuration.scope_of(table) == "billing"
    assert configuration.deduplication == DeduplicationConfiguration(
        "rediss://loader@host:6380/2",
        password=Secret("hunter2"),
        ca_file=str(tmp_path / "ca.pem"),
    )
    assert "hunter2" not in repr(configuration)


@pytest.mark.parametrize(
    "store",
    [
        "redis://host:6379",
        "redis://[::1]:6379/0",
        "rediss://loader@host:6379/",
        "redis-sentinel://one:26379,two:26379/claims",
        "rediss-sentinel://loader@one:26379/claims/2",
        "redis-cluster://one:6379,two:6379",
        "rediss-cluster://one:6379/",
    ],
)
def test_stores_that_workers_elsewhere_reach(tmp_path: Path, store: str) -> None:
    configuration = load_text(tmp_path, with_section(f'store = "{store}"', FAR))
    assert configuration.deduplication == DeduplicationConfiguration(store)
    assert not configuration.deduplication.is_local


def test_the_directory_of_the_local_store(tmp_path: Path) -> None:
    for written, path in (
        ('path = "claims"', tmp_path / "claims"),
        ('store = "local"\npath = "/claims"', Path("/claims")),
        ('store = "local"', tmp_path / "sluice-claims"),
    ):
        configuration = load_text(tmp_path, with_section(written))
        assert configuration.deduplication == DeduplicationConfiguration("local", str(path))


def test_a_store_that_no_table_uses(tmp_path: Path) -> None:
    assert load_text(tmp_path, MINIMAL).deduplication is None
    section = with_section('store = "redis://host:1"\npassword = { file = "p" }', MINIMAL)
    found = load_text(tmp_path, section).deduplication
    assert found is not None and found.password.source == SecretSource(
        "password", file=str(tmp_path / "p")
    )


def test_the_example_shows_what_it_says(tmp_path: Path) -> None:
    text = EXAMPLE.replace("# deduplicate =", "deduplicate =")
    text = text.replace("# [deduplication]", "[deduplication]")
    local = text.replace("# store =", "store =").replace('# path = "sl', 'path = "sl')
    found = load_text(tmp_path, local).deduplication
    assert found == load_text(tmp_path, text).deduplication
    assert found is not None and found.path == str(tmp_path / "sluice-claims")
    far = text.replace('# store = "local"', 'store = "rediss://host:6379"')
    far = far.replace('# password = { file = "r', 'password = { file = "r').replace(
        "# ca_file", "ca_file"
    )
    found = load_text(tmp_path, far).deduplication
    assert found is not None and found.password.source == SecretSource(
        "password", file=str(tmp_path / "redis-password")
    )


#: (what stands in the table instead, key in the message, words in the message)
TABLE = [
    ("deduplicate = true", "deduplicate", "must be a table, not true"),
    ('deduplicate = { key = ["id"] }', "deduplicate.window", "is missing"),
    ('deduplicate = { window = "7d" }', "deduplicate.key", "is missing"),
    ('deduplicate = { key = "id", window = "7d" }', "deduplicate.key", 'list like ["id"]'),
    ('deduplicate = { key = [], window = "7d" }', "deduplicate.key", "must not be empty"),
    ('deduplicate = { key = ["a", "a"], window = "7d" }', "deduplicate.key[2]", "named twice"),
    ('deduplicate = { key = [""], window = "7d" }', "deduplicate.key[1]", "must not be empty"),
    ('deduplicate = { key = ["a"], window = 7 }', "deduplicate.window", "write its unit"),
    ('deduplicate = { key = ["a"], window = "9m" }', "deduplicate.window", "use 10m to 400d"),
    ('deduplicate = { key = ["a"], window = "401d" }', "deduplicate.window", "out of range"),
    (
        'deduplicate = { key = ["a"], window = "119m" }',
        "deduplicate.window",
        "must be 2h at least, 12 times batch.lease: a range in doubt is only repeated while",
    ),
    ('deduplicate = { keys = ["a"], window = "7d" }', "deduplicate.keys", 'did you mean "key"?'),
    (
        'deduplicate = { key = ["a"], window = "7d", scope = 7 }',
        "deduplicate.scope",
        "must be a string, not 7",
    ),
    (
        'deduplicate = { key = ["a"], window = "7d", duplicates = "keep" }',
        "deduplicate.duplicates",
        'use "drop", "dead-letter" or "topic"',
    ),
    (
        'rows = "many"\ndeduplicate = { key = ["a"], window = "7d", duplicates = "topic" }',
        "deduplicate.duplicates",
        '"topic" needs rows = "one"',
    ),
    (
        'deduplicate = { key = ["a"], window = "7d", on_null = "default" }',
        "deduplicate.on_null",
        'use "dead-letter" or "row"',
    ),
    (
        'rows = "many"\ndeduplicate = { key = ["a"], window = "7d", duplicates = "dead-letter" }',
        "deduplicate.duplicates",
        'needs rows = "one"',
    ),
    ("lineage = false\n" + DEDUPLICATE, "deduplicate", "use lineage = true"),
    ("deduplicat = {}", "deduplicat", 'did you mean "deduplicate"?'),
]


@pytest.mark.parametrize(("lines", "key", "words"), TABLE)
def test_what_a_table_may_not_say(tmp_path: Path, lines: str, key: str, words: str) -> None:
    found = findings_of(tmp_path, f"{MINIMAL}{lines}\n")
    matching = [line for line in found if line.startswith(f"sluice.toml: table[orders].{key}: ")]
    assert any(words in line for line in matching), found


#: (the section, key in the message, words in the message)
SECTION = [
    ('store = "memcached://host"', "store", 'is no store of claims; write "redis://host:6379/0"'),
    ('store = "redis"', "store", "is no address of redis; write it like redis://host:6379/0"),
    ('store = "redsi://host"', "store", 'did you mean "redis"?'),
    ('store = "Local"', "store", 'did you mean "local"?'),
    ("store = 7", "store", "must be a string, not 7"),
    ('store = "redis://"', "store", "is no address of redis; write it like redis://host:6379/0"),
    ('store = "redis://host"', "store", "is no address of redis"),
    ('store = "redis://host:1/db"', "store", "is no address of redis"),
    ('store = "rediss-cluster://a"', "store", "write it like rediss-cluster://one:6379,two:6379"),
    ('store = "redis://one:1,two:2"', "store", "is no address of redis"),
    ('store = "redis-sentinel://one:1,two:2"', "store", "one:26379,two:26379/name"),
    ('store = "redis-cluster://one:1/0"', "store", "is no address of redis-cluster"),
    (
        'store = "redis://:hunter2@host"',
        "store",
        '"***@host" carries a password; move it to deduplication.password',
    ),
    ('store = "redis://loader:a@b@host"', "store", "move it to deduplication.password"),
    ('store = "redis://host:1"\npath = "a"', "path", 'only store = "local" has a directory'),
    ('store = "redis://host:1"\nca_file = "a"', "ca_file", 'write rediss for "redis" in'),
    ('store = "local"\npassword = "a"', "password", "is of no use: the local store is a directory"),
    ('password = { file = "a" }', "password", "is of no use"),
    ('store = "local"\nca_file = "a"', "ca_file", "is of no use"),
    (
        'url = "redis://host"',
        "url",
        "known here: ca_file, password, path, store, topic",
    ),
]


@pytest.mark.parametrize(("section", "key", "words"), SECTION)
def test_what_the_section_may_not_say(tmp_path: Path, section: str, key: str, words: str) -> None:
    found = findings_of(tmp_path, with_section(section))
    matching = [line for line in found if line.startswith(f"sluice.toml: deduplication.{key}: ")]
    assert any(words in line for line in matching), found
    assert "hunter2" not in "".join(found)


def test_copies_of_duplicates_have_a_topic(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, KNOWN)
    assert configuration.duplicates_topic == "sluice.orders.duplicates"
    assert configuration.duplicates_topic not in configuration.own_topics
    kept = changed('window = "7d"', 'window = "7d", duplicates = "topic"', KNOWN)
    configuration = load_text(tmp_path, with_section('topic = "again"', kept))
    assert configuration.own_topics == (
        "sluice.orders.ledger",
        "sluice.orders.dead-letters",
        "sluice.orders.decisions",
        "again",
    )
    (finding,) = findings_of(tmp_path, with_section('topic = "sluice.orders.ledger"', kept))
    assert finding == "sluice.toml: deduplication.topic: is also ledger.topic; choose another"


def test_workers_elsewhere_need_a_store_that_is_named(tmp_path: Path) -> None:
    expected = (
        "sluice.toml: table[orders].deduplicate: needs a store that all workers of "
        "spark://host:7077 reach; name it as store in the section [deduplication], like store = "
        '"redis://host:6379/0"'
    )
    assert findings_of(tmp_path, FAR) == [expected]
    assert findings_of(tmp_path, with_section("", FAR)) == [expected]
    (finding,) = findings_of(tmp_path, with_section('store = "local"', FAR))
    assert "deduplication.store: " in finding and "would not see each other's claims" in finding


@pytest.mark.parametrize(
    ("second", "is_refused"),
    [
        ('key = ["source", "id"], window = "9d"', False),
        ('key = ["id"], window = "7d"', True),
        ('key = ["source", "id"], window = "7d", scope = "q"', True),
    ],
)
def test_entries_of_one_table_know_events_by_one_key(
    tmp_path: Path, second: str, is_refused: bool
) -> None:
    """A rebuild claims each row of the table, whichever entry it is of."""
    more = '[[table]]\nname = "more"\ntarget = "default.orders"\ntopics = ["more"]\n'
    text = changed('["orders"]\n[batch]', '["orders", "more"]\n[batch]', KNOWN)
    text += f"{more}deduplicate = {{ {second} }}\n"
    if not is_refused:
        load_text(tmp_path, text)
        return
    (finding,) = findings_of(tmp_path, text)
    assert finding.startswith("sluice.toml: table[more].deduplicate: has another key or scope")


SECOND = f'[[table]]\nname = "bids"\ntopics = ["orders"]\n{DEDUPLICATE}'


def test_one_scope_is_not_that_of_two_tables_of_a_topic(tmp_path: Path) -> None:
    """Each event would be a row of one of them only."""
    load_text(tmp_path, KNOWN + SECOND)
    shared = (KNOWN + SECOND).replace('"7d"', '"7d", scope = "all"')
    (finding,) = findings_of(tmp_path, shared)
    assert finding.startswith("sluice.toml: table[bids].deduplicate.scope: ")
    assert 'is that of "orders", which takes "orders" too' in finding
    routed = shared.replace(
        'topics = ["orders"]\ndeduplicate',
        'topics = ["orders"]\nroute = { header = "" }\ndeduplicate',
    )
    assert routed.count("route = ") == 2
    load_text(tmp_path, routed)
    one_table = shared.replace('name = "bids"', 'name = "bids"\ntarget = "orders"')
    load_text(tmp_path, one_table)
