"""Nothing that is printed holds a secret."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import traceback
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.config import Secret
from sluice.core.errors import ConfigurationError
from tests.config.support import MINIMAL, changed, load_text

SECRET = "hunter2-7fa1"

_KAFKA = """\
kafka = { "sasl.password" = "VALUE", "ssl.key.password" = "VALUE", "sasl.jaas.config" = "VALUE", \
"sasl.oauthbearer.client.secret" = "VALUE", "sasl.username" = "${SECRET}", "client.id" = "me" }
[batch]"""
_SPARK = """\
[spark]
conf = { "spark.hadoop.fs.s3a.secret.key" = "VALUE", "spark.x" = "${SECRET}" }
[clickhouse]
password = "VALUE\""""


def full_text() -> str:
    text = changed("[batch]", _KAFKA.replace("VALUE", SECRET))
    return changed("[clickhouse]", _SPARK.replace("VALUE", SECRET), text)


def test_repr_masks_and_properties_reveal(tmp_path: Path) -> None:
    configuration = load_text(tmp_path, full_text(), {"SECRET": SECRET})
    assert SECRET not in repr(configuration)
    assert SECRET not in str(configuration)
    assert SECRET not in repr(dataclasses.asdict(configuration))
    assert SECRET not in json.dumps(dataclasses.asdict(configuration), default=str)
    assert "'client.id': 'me'" in repr(configuration)
    (connector,) = configuration.connectors
    assert connector.properties()["sasl.password"] == SECRET
    assert connector.properties()["sasl.username"] == SECRET
    assert configuration.spark.properties()["spark.x"] == SECRET
    assert configuration.clickhouse.password.reveal() == SECRET


def test_secrets_of_commands_and_files_are_read_when_they_are_needed(tmp_path: Path) -> None:
    runs, script = tmp_path / "runs", tmp_path / "vault"
    script.write_text(f'#!/bin/sh\necho "$1" >> {runs}\necho "{SECRET}"\n')
    script.chmod(0o700)
    (tmp_path / "token").write_text(f"{SECRET}\n")
    kafka = """kafka = { "sasl.password" = { command = ["./vault", "of ${USER}"] }, \
"sasl.username" = { file = "token" }, "security.protocol" = "SASL_SSL" }
[registry]
url = "http://a:1"
token = { file = "token" }
[spark]
conf = { spark.x = { command = ["./vault", "spark"] }, spark.y.file = "y" }
[batch]"""
    text = changed("[batch]", kafka)
    text = changed("[clickhouse]", '[clickhouse]\npassword = { command = ["./vault", "c"] }', text)
    configuration = pickle.loads(pickle.dumps(load_text(tmp_path, text, {"USER": "me"})))
    assert not runs.exists()
    assert configuration.registry.token.reveal() == SECRET
    (connector,) = configuration.connectors
    properties = {"sasl.password": SECRET, "sasl.username": SECRET, "security.protocol": "SASL_SSL"}
    assert connector.properties() == connector.properties() == properties
    assert configuration.spark.properties() == {"spark.x": SECRET, "spark.y.file": "y"}
    assert configuration.spark.secret_names == {"spark.x"}
    assert configuration.clickhouse.password.reveal() == SECRET
    assert runs.read_text() == "of me\nspark\nc\n"
    assert SECRET not in repr(configuration)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # refused values next to secrets, and secrets where they do not belong
        ("[batch]", f'kafka = {{ "sasl.password" = ["{SECRET}"] }}\n[batch]'),
        ("[batch]", f'kafka = {{ "group.id" = "{SECRET}" }}\n[batch]'),
        ("[batch]", '[spark]\nconf = { "spark.speculation" = "${SECRET}" }'),
        ("[clickhouse]", f'[clickhouse]\npasword = "{SECRET}"'),
        ("[clickhouse]", f'[clickhouse]\npassword = ["{SECRET}"]'),
        ("[clickhouse]", f'[clickhouse]\npassword = "{SECRET}${{NOPE}}"'),
        ("[clickhouse]", '[clickhouse]\npassword = { command = ["${SECRET}"] }'),
        ("[clickhouse]", '[clickhouse]\npassword = { command = ["a", "${SECRET}"], file = "b" }'),
        ("[clickhouse]", '[clickhouse]\ndatabase = "${SECRET} x"'),
        ("http://localhost:8123", f"http://bob:{SECRET}@localhost:8123"),
        ("http://localhost:8123", f"http://bob:a/{SECRET}@localhost:8123"),
        ("http://localhost:8123", f"http://bob:a@{SECRET}@localhost:8123"),
        ("http://localhost:8123", "http://bob:${SECRET}@localhost:8123"),
        ("http://localhost:8123", "${SECRET}"),
        ("localhost:9092", f"bob:{SECRET}@localhost:9092"),
        ("localhost:9092", f"a:1,b:{SECRET}@c:2"),
        ("localhost:9092", "${SECRET} x"),
        ('name = "dc1"', 'name = "${SECRET} x"'),
        ('durability = "single"', 'durability = "${SECRET}"'),
        ('[[table]]\nname = "orders"', '[[table]]\nname = "orders"\ntarget = "${SECRET}.a.b"'),
        ("[batch]", '[batch]\nmax_bytes = "${SECRET}"'),
        ("[batch]", '[batch]\nlease = "${SECRET}"'),
        ("[batch]", 'start = "${SECRET}"\n[batch]'),
        ("[batch]", '[http]\nlisten = "${SECRET}"'),
        ('["orders"]\n[batch]', '["${SECRET} x"]\n[batch]'),
        ("[batch]", f'[deduplication]\nstore = "redis://me:{SECRET}@host"'),
        ("[batch]", f'[deduplication]\nstore = "redis://:a@{SECRET}@host"'),
        ("[batch]", '[deduplication]\nstore = "redis://host:1/${SECRET}"'),
        ("[batch]", f'[deduplication]\npasword = "{SECRET}"'),
        ("[batch]", f'[deduplication]\nstore = "redis://host:1"\npassword = ["{SECRET}"]'),
    ],
)
def test_errors_never_hold_a_secret(tmp_path: Path, old: str, new: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_text(tmp_path, changed(old, new), {"SECRET": SECRET})
    assert SECRET not in str(caught.value)
    assert SECRET not in caught.value.hint
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_syntax_error_does_not_quote_the_line(tmp_path: Path) -> None:
    text = MINIMAL + f'[clickhouse.x]\npassword = "{SECRET}'
    with pytest.raises(ConfigurationError) as caught:
        load_text(tmp_path, text)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@given(st.text(min_size=4).filter(lambda text: text not in "***" and text not in "Secret"))
def test_no_way_to_print_a_secret(text: str) -> None:
    secret = Secret(text)
    assert repr(secret) == str(secret) == f"{secret}" == "***"
    assert copy.deepcopy(secret) == secret
    assert secret != text
    with pytest.raises(TypeError):
        json.dumps({"password": secret})
    with pytest.raises(TypeError):
        "".join([secret])  # type: ignore[list-item]


def test_equal_secrets_are_equal() -> None:
    assert Secret("a") == Secret("a") != Secret("b")
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert not Secret("")
