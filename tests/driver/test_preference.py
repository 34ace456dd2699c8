"""Which replicas a connector's blocks go to first."""

from __future__ import annotations

from pathlib import Path

from sluice.driver.specs import access_of
from sluice.ops.doctor_shards import look_at_cluster
from tests.config.support import MINIMAL, changed, load_text

SHARDS = """\
shards = { s1 = ["http://e1:8123", "http://w1:8123"], s2 = ["http://w2:8123"] }
data_centers = { east = ["e*"], west = ["w1", "w2:8123"] }
prefer = "west"
"""
TEXT = changed('shards = { s1 = ["http://localhost:8123"] }\n', SHARDS)
TEXT = changed(
    'topics = ["orders"]\n[batch]', 'topics = ["orders"]\nprefer = "east"\n[batch]', TEXT
)
TEXT += 'shards = ["s1"]\n'


def test_a_connector_prefers_what_it_says_and_else_what_all_do(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, TEXT)
    assert access_of(configuration, "dc1").preferred == {"http://e1:8123"}
    assert access_of(configuration).preferred == {"http://w1:8123", "http://w2:8123"}
    assert access_of(load_text(tmp_path, MINIMAL), "dc1").preferred == frozenset()


def test_the_doctor_names_shards_without_a_preferred_replica(tmp_path: Path) -> None:
    _, (finding,) = look_at_cluster(load_text(tmp_path, TEXT))
    assert (finding.level, finding.check) == ("warning", "data-center")
    assert "connector dc1 prefers east, where no replica of s2 is" in finding.what
