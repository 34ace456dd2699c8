"""A configuration of several files: what is joined, and what two files must not both say."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.config import Configuration, load
from sluice.core.errors import ConfigurationError
from tests.config.support import MINIMAL

CLICKS = """\
[[connector]]
name = "dc1"
topics = ["clicks"]
[[table]]
name = "clicks"
topics = ["clicks"]
"""


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


def refused(path: Path, root: Path) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    return [line.replace(f"{root}/", "") for line in str(caught.value).splitlines()]


def names(configuration: Configuration) -> list[str]:
    return [table.name for table in configuration.tables]


def test_a_folder_instead_of_the_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "pipeline.d", main=MINIMAL, clicks=CLICKS)
    (folder / ".half.toml").write_text("[[")
    (folder / "notes.txt").write_text("nothing")
    found = load(folder, {})
    assert names(found) == ["clicks", "orders"]
    assert found.connector("dc1").topics == ("clicks", "orders")
    assert found.connector("dc1").brokers == ("localhost:9092")
    assert found.path == folder


def test_a_folder_beside_the_file(tmp_path: Path) -> None:
    write(tmp_path, sluice=MINIMAL)
    write(tmp_path / "sluice.d", clicks=CLICKS)
    write(tmp_path / "other.d", clicks="[[")
    assert names(load(tmp_path / "sluice.toml", {})) == ["orders", "clicks"]


def test_names_of_files_are_relative_to_the_file_or_to_the_folder(tmp_path: Path) -> None:
    text = MINIMAL.replace("[batch]", '[http]\ntokens_file = "tokens"\n[batch]')
    folder = write(tmp_path / "pipeline.d", main=text)
    http = load(folder, {}).http
    assert http is not None and http.tokens_file == str(folder / "tokens")
    beside = load(write(tmp_path, sluice=text) / "sluice.toml", {}).http
    assert beside is not None and beside.tokens_file == str(tmp_path / "tokens")


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (
            '\n# an entry of the same name\n[[table]]\nformat = "CSV"\nname = "orders"\n',
            "table[orders]: is set twice: pipeline.d/a.toml, line 12, and "
            "pipeline.d/b.toml, line 5",
        ),
        (
            '[clickhouse]\nuser = "u"\n\ndurability = "quorum"\n',
            "clickhouse.durability: is set twice: pipeline.d/a.toml, line 10, and "
            "pipeline.d/b.toml, line 4",
        ),
        (
            '[clickhouse]\nshards = { s1 = ["http://b:8123"] }\n',
            "clickhouse.shards.s1: is set twice: pipeline.d/a.toml, line 9, and "
            "pipeline.d/b.toml, line 2",
        ),
        (
            '[[connector]]\nname = "dc1"\nbrokers = "other:9092"\n',
            "connector[dc1].brokers: is set twice: pipeline.d/a.toml, line 5, and "
            "pipeline.d/b.toml, line 3",
        ),
        (
            '[[connector]]\nname = "dc1"\ntopics = ["orders"]\n',
            "connector[dc1].topics: is set twice: pipeline.d/a.toml, line 6, and "
            "pipeline.d/b.toml, line 3",
        ),
        (
            "pipeline = 1\n",
            "pipeline: is set twice: pipeline.d/a.toml, line 1, and pipeline.d/b.toml, line 1",
        ),
        (
            "table = 1\n",
            "table: is set twice: pipeline.d/a.toml, line 11, and pipeline.d/b.toml, line 1",
        ),
    ],
)
def test_nothing_is_set_by_two_files(tmp_path: Path, other: str, line: str) -> None:
    folder = write(tmp_path / "pipeline.d", a=MINIMAL, b=other)
    assert refused(folder, tmp_path) == [f"pipeline.d: {line}; keep one of them"]


def test_sections_of_two_files_are_joined_key_by_key(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "pipeline.d",
        a=MINIMAL,
        b='[batch]\nlease = "1m"\n[connector_]\n',
        c='[[connector]]\nname = "dc1"\n[connector.kafka]\n"client.id" = "x"\n',
    )
    assert refused(folder, tmp_path)[0].startswith("pipeline.d/b.toml: connector_: ")
    (folder / "b.toml").write_text('[batch]\nlease = "1m"\n')
    found = load(folder, {})
    assert found.batch.lease_seconds == 60
    assert found.connector("dc1").properties() == {"client.id": "x"}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[[table]]\nname = "t"\ntopics = ["orders"]\nformat = "CVS"\n', "b.toml: table[t].format"),
        ('[[table]]\nname = "t"\ntopics = ["clicks"]\n', "b.toml: table[t].topics"),
        ('[[table]]\ntopics = ["orders"]\n', "b.toml: table[2].name"),
        ('[batch]\nlease = "1 fortnight"\n', "b.toml: batch.lease"),
        ('[spark]\nconf = { "a.b" = "${NOT_SET}" }\n', 'b.toml: spark.conf."a.b"'),
        ('[clickhouse]\npassword = "${NOT_SET}"\n', "b.toml: clickhouse.password"),
        ('[[connector]]\nname = "dc1"\nreader = "fast"\n', "b.toml: connector[dc1].reader"),
        ('[[connector]]\nname = "dc2"\ntopics = ["x"]\n', "b.toml: connector[dc2].brokers"),
    ],
)
def test_errors_name_the_file_that_says_it(tmp_path: Path, text: str, line: str) -> None:
    folder = write(tmp_path / "pipeline.d", a=MINIMAL, b=text)
    (found,) = refused(folder, tmp_path)
    assert found.startswith(f"pipeline.d/{line}: ")


def test_a_file_that_is_no_toml_and_a_folder_without_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "pipeline.d", a=MINIMAL, b="x = \n")
    (found,) = refused(folder, tmp_path)
    assert found.startswith("pipeline.d/b.toml: is not TOML: ")
    assert refused(write(tmp_path / "empty.d"), tmp_path) == [
        "empty.d: has no file that ends in .toml"
    ]
