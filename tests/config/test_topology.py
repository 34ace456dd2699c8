"""Where the replicas are, which are preferred, and from when on they are tried last."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import ClusterConfiguration
from sluice.core.replicas import ReplicaLimits
from tests.config.support import MINIMAL, changed, findings_of, load_text

SHARDS = 'shards = { s1 = ["http://localhost:8123"] }'
CLUSTER = changed(
    SHARDS, 'cluster = { name = "prod", servers = ["https://seed:8443"] }\nshards = ["s1"]'
)


def test_the_replicas_of_a_cluster_are_left_to_its_servers(tmp_path: Path) -> None:
    clickhouse = load_text(tmp_path, CLUSTER).clickhouse
    cluster = clickhouse.cluster
    assert cluster == ClusterConfiguration("prod", ("https://seed:8443",))
    assert (cluster.scheme, cluster.port) == ("https", 8443)
    assert [(shard.name, shard.replicas) for shard in clickhouse.shards] == [("s1", ())]


def test_addresses_that_cannot_be_guessed(tmp_path: Path) -> None:
    keys = (
        'name = "prod", http_port = 80, shard_macro = "layer", '
        'addresses = { "a:9000" = "http://gate:1" }'
    )
    cluster = load_text(tmp_path, changed('name = "prod"', keys, CLUSTER)).clickhouse.cluster
    assert cluster is not None
    assert (cluster.port, cluster.shard_macro) == (80, "layer")
    assert cluster.addresses == {"a:9000": "http://gate:1"}


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ('shards = ["s1"]', "", "shards", "is missing: name the shards of the cluster"),
        ('shards = ["s1"]', "shards = []", "shards", "must not be empty"),
        ('shards = ["s1"]', 'shards = ["a b"]', "shards", "is not a name"),
        (', servers = ["https://seed:8443"]', "", "cluster.servers", "is missing"),
        (
            'name = "prod"',
            'name = "prod", addresses = { a = "http://b:1" }',
            "cluster.addresses.a",
            "host:port",
        ),
        ('name = "prod"', 'name = "prod", server = 1', "cluster.server", 'mean "servers"?'),
    ],
)
def test_refusals_of_a_cluster(tmp_path: Path, old: str, new: str, key: str, words: str) -> None:
    findings = findings_of(tmp_path, changed(old, new, CLUSTER))
    assert any(f"clickhouse.{key}" in line and words in line for line in findings), findings


TWO = changed(
    SHARDS,
    'shards = { s1 = ["http://a.east:8123", "http://b.west:8123"] }\n'
    'data_centers = { east = ["*.east"], west = ["*.west:8123"] }\nprefer = "east"',
)


def test_a_connector_may_prefer_another_data_center(tmp_path: Path) -> None:
    text = changed('name = "dc1"', 'name = "dc1"\nprefer = "west"', TWO)
    configuration = load_text(tmp_path, text)
    assert configuration.clickhouse.prefer == "east"
    assert configuration.connectors[0].prefer == "west"


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ('prefer = "east"', 'prefer = "esat"', "prefer", 'no data center is named "esat"; did you'),
        ('"*.east"', '"*.eest"', "data_centers.east", "is the host of no replica"),
        ('"*.west:8123"', '"*:8123"', "data_centers.west", "http://a.east:8123 is in east, too"),
        ('"*.east"', '"http://a.east:8123"', "data_centers.east", "is no host"),
    ],
)
def test_refusals_of_data_centers(tmp_path: Path, old: str, new: str, key: str, words: str) -> None:
    findings = findings_of(tmp_path, changed(old, new, TWO))
    assert any(f"clickhouse.{key}" in line and words in line for line in findings), findings


def test_a_preference_needs_data_centers(tmp_path: Path) -> None:
    (finding,) = findings_of(tmp_path, changed(SHARDS, f'{SHARDS}\nprefer = "east"'))
    assert "data_centers = {" in finding


def test_limits_of_a_replica(tmp_path: Path) -> None:
    assert load_text(tmp_path, MINIMAL).clickhouse.limits == ReplicaLimits(300.0, 1000)
    lines = f'{SHARDS}\nmax_replica_delay = "30s"\nmax_replica_queue = 50'
    limits = load_text(tmp_path, changed(SHARDS, lines)).clickhouse.limits
    assert limits == ReplicaLimits(30.0, 50)
