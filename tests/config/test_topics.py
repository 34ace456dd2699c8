"""Topics by an expression: who takes which, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import Configuration
from sluice.config.topics import why_refused
from tests.config.support import MINIMAL, findings_of, load_text

_CONNECTOR = MINIMAL[MINIMAL.index("[[connector]]") : MINIMAL.index("[batch]")]
NAMED, PATTERN = 'topics = ["orders"]', 'topic_pattern = "orders\\\\..*"'


def both(connector: str, table: str, more: str = "") -> str:
    """The minimal file, with other topics on both sides."""
    head, tail = MINIMAL.split("[batch]")
    return f"{head.replace(NAMED, connector)}[batch]{tail.replace(NAMED, table)}{more}"


def entry(name: str, table: str, topics: str, more: str = "") -> str:
    return f'\n[[table]]\nname = "{name}"\ntarget = "{table}"\n{topics}\n{more}\n'


EXISTING = [
    "orders",
    "orders.eu",
    "orders.us",
    "my.orders.eu",
    "orders.eu\n",
    "users",
    "__consumer_offsets",
    "sluice.orders.ledger",
    "sluice.orders.dead-letters",
    "sluice.other.dead-letters",
    "sluice.other.parking",
]


@pytest.mark.parametrize(
    ("connector", "table", "topics"),
    [
        (NAMED, NAMED, ["orders"]),
        (PATTERN, PATTERN, ["orders.eu", "orders.us"]),
        (f"{NAMED}\n{PATTERN}", f"{NAMED}\n{PATTERN}", ["orders", "orders.eu", "orders.us"]),
        ('topic_pattern = ".*"', PATTERN, ["orders.eu", "orders.us"]),
        ('topic_pattern = ".*"', 'topics = ["users"]', ["users"]),
        ('topic_pattern = "orders|users"', 'topic_pattern = "u.*"', ["users"]),
        ('topics = ["users", "new"]', 'topic_pattern = ".*"', ["users", "new"]),
        (
            'topic_pattern = ".*"',
            'topic_pattern = "(?!orders).*"',
            ["my.orders.eu", "users"],
        ),
    ],
)
def test_a_topic_is_loaded_if_both_sides_take_it(
    tmp_path: Path, connector: str, table: str, topics: list[str]
) -> None:
    configuration = load_text(tmp_path, both(connector, table))
    assert list(configuration.topics_of("dc1", EXISTING)) == topics
    assert all(configuration.reads("dc1", topic) for topic in topics)
    for topic in set(EXISTING) - set(topics):
        assert not configuration.reads("dc1", topic)


def test_own_topics_of_any_name_are_no_sources(tmp_path: Path) -> None:
    own = '\n[ledger]\ntopic = "intents"\n[dead_letters]\ntopic = "letters"\n'
    text = both('topic_pattern = ".*"', 'topic_pattern = ".*"', own)
    configuration = load_text(tmp_path, text)
    assert configuration.topics_of("dc1", ["intents", "letters", "a"]) == ("a",)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (both('topic_pattern = "a("', NAMED), "connector[dc1].topic_pattern", "not a regular"),
        (both(PATTERN, PATTERN.replace("orders", "[")), "table[orders].topic_pattern", "regular"),
        (both('topic_pattern = ""', NAMED), "connector[dc1].topic_pattern", "must not be empty"),
        (both("topic_pattern = 3", NAMED), "connector[dc1].topic_pattern", "must be a string"),
        (both("", NAMED), "connector[dc1].topics", "is missing"),
        (both(PATTERN, NAMED), "table[orders].topics", 'no [[connector]] has the topic "orders"'),
        (both(NAMED, PATTERN), "connector[dc1].topics", 'no [[table]] takes the topic "orders"'),
        (
            both(NAMED, NAMED, entry("more", "more", 'topic_pattern = "users"')),
            "table[more].topic_pattern",
            "takes no topic of a [[connector]]",
        ),
        (
            both('topic_pattern = ".*"', 'topics = ["sluice.orders.ledger"]'),
            "table[orders].topics",
            "no [[connector]] has the topic",
        ),
        (
            both('topic_pattern = ".*"', NAMED, entry("all", "orders", 'topic_pattern = "o.*"')),
            "table[all].topic_pattern",
            'takes "orders", which "orders" loads into default.orders already',
        ),
    ],
)
def test_what_the_file_alone_shows_is_refused(
    tmp_path: Path, text: str, key: str, words: str
) -> None:
    (line,) = [line for line in findings_of(tmp_path, text) if f": {key}: " in line]
    assert words in line


def routed(name: str, header: str) -> str:
    return entry(name, "orders", 'topic_pattern = ".*"', f'route = {{ header = "{header}" }}')


@pytest.mark.parametrize(
    ("more", "refused"),
    [
        (entry("b", "orders", 'topic_pattern = "orders.*"'), True),
        (entry("b", "other", 'topic_pattern = "orders.*"'), False),
        (entry("b", "orders", 'topic_pattern = "users.*"'), False),
        (routed("b", "x"), True),
        (routed("b", "x") + routed("c", "x"), True),
    ],
)
def test_two_expressions_must_not_load_a_topic_twice(
    tmp_path: Path, more: str, refused: bool
) -> None:
    configuration = load_text(tmp_path, both('topic_pattern = ".*"', PATTERN, more))
    refusal = why_refused(configuration, "dc1", "orders.eu")
    assert (refusal is not None) == refused
    if refusal is not None:
        assert "orders.eu goes to default.orders twice: entries orders and b" in str(refusal)


def test_routes_tell_entries_apart_and_names_are_meant(tmp_path: Path) -> None:
    text = both('topic_pattern = ".*"', NAMED)
    text = text[: text.index("[[table]]")] + routed("b", "x") + routed("c", "y")
    assert why_refused(load_text(tmp_path, text), "dc1", "orders.eu") is None
    named = both(NAMED, NAMED, entry("again", "orders", NAMED))
    assert why_refused(load_text(tmp_path, named), "dc1", "orders") is None


def two_connectors(tmp_path: Path, lineage: str) -> Configuration:
    other = _CONNECTOR.replace("dc1", "dc2").replace(NAMED, 'topic_pattern = ".*"')
    text = both(PATTERN, f"{PATTERN}\nlineage = {lineage}").replace("[batch]", f"{other}[batch]")
    return load_text(tmp_path, text)


def test_two_connectors_must_not_write_the_same_lineage(tmp_path: Path) -> None:
    refusal = why_refused(two_connectors(tmp_path, "true"), "dc1", "orders.eu")
    assert refusal is not None
    assert "connectors dc1 and dc2 both load a topic orders.eu" in str(refusal)
    assert why_refused(two_connectors(tmp_path, "false"), "dc1", "orders.eu") is None
