"""Logins by SASL SCRAM at a real broker, by both readers and all other clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import pytest

from sluice.core.errors import TerminalError
from sluice.driver.connector import BROKEN, ConnectorRun
from sluice.kafka.clients import KafkaAccess, make_admin, make_producer
from sluice.kafka.errors import KafkaRefusedError, KafkaTerminalError
from sluice.kafka.readers import make_reader
from sluice.kafka.topics import cluster_metadata
from sluice.kafka.transactions import initialise
from sluice.ops.doctor_findings import refusal as doctor_refusal
from sluice.ops.doctor_kafka import look_at_kafka
from sluice.testbed.local.running import running_program
from tests.config.support import changed, load_text
from tests.support.guarded import GuardedBroker
from tests.support.logins import VALUES, all_of, fill, read

TOPIC = "scram"
#: Not in ASCII: both kinds of clients have to make the same bytes of it.
PASSWORD, NEXT, WRONG = "planted-pässword-1", "planted-pässword-2", "planted-wrong-password"
REFUSED = "Authentication failed during authentication due to invalid credentials"

mechanisms = pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    with running_program(GuardedBroker(tmp_path_factory.mktemp("scram") / "kafka")) as broker:
        fill(broker.brokers, TOPIC)
        yield broker


def access(
    broker: GuardedBroker, mechanism: str, password: str, reader: str = "native"
) -> KafkaAccess:
    return KafkaAccess("dc1", broker.logins, broker.scram_login(mechanism, password), reader)


@mechanisms
def test_every_client_logs_in(broker: GuardedBroker, mechanism: str) -> None:
    broker.set_scram_password(mechanism, PASSWORD)
    for reader in ("native", "librdkafka"):
        assert read(access(broker, mechanism, PASSWORD, reader), TOPIC) == VALUES
    known = access(broker, mechanism, PASSWORD)
    assert TOPIC in cluster_metadata(make_admin(known)).topics
    assert initialise(make_producer(known, f"of {mechanism}", 10_000, TOPIC)) is None


@mechanisms
def test_a_changed_password_counts_for_new_connections(
    broker: GuardedBroker, mechanism: str
) -> None:
    """A connection lives on, as Kafka has it; so a driver has time until it is started again."""
    broker.set_scram_password(mechanism, PASSWORD)
    before = access(broker, mechanism, PASSWORD)
    with closing(make_reader(before)) as reader:
        reader.read_ranges(all_of(TOPIC), 1 << 30, lambda *_: None)
        broker.set_scram_password(mechanism, NEXT)
        again: list[bytes] = []
        reader.read_ranges(all_of(TOPIC), 1 << 30, lambda found, _: again.extend(found))
        assert again == VALUES
    with pytest.raises(KafkaTerminalError, match=REFUSED):
        read(before, TOPIC)
    for name in ("native", "librdkafka"):
        assert read(access(broker, mechanism, NEXT, name), TOPIC) == VALUES


@pytest.mark.slow
@mechanisms
def test_a_wrong_password_is_told(
    tmp_path: Path, broker: GuardedBroker, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    broker.set_scram_password(mechanism, PASSWORD)
    wrong = access(broker, mechanism, WRONG)
    with pytest.raises(KafkaTerminalError, match=f"{mechanism}.*{REFUSED}") as refused:
        read(wrong, TOPIC)
    with pytest.raises(KafkaRefusedError, match=REFUSED) as unknown:
        cluster_metadata(make_admin(wrong), timeout_seconds=3.0)
    for error in (refused.value, unknown.value):
        assert "credentials" in error.hint
    section = "\n".join(f'"{name}" = "{value}"' for name, value in wrong.properties.items())
    text = changed("[batch]", f"[connector.kafka]\n{section}\n[batch]")
    configuration = load_text(tmp_path, changed("localhost:9092", broker.logins, text))
    (finding,) = look_at_kafka(configuration, configuration.connector("dc1")).findings
    assert finding.level == "error" and REFUSED in str(finding) and "credentials" in str(finding)
    assert isinstance(doctor_refusal([finding]), TerminalError)
    run = ConnectorRun(
        *(configuration, configuration.connector("dc1"), Future(), threading.Event()),
        lambda configuration, connector: None,
    )
    run.run(True, 1.0)  # ends, although a Kafka that is away is waited for
    assert run.status == BROKEN and isinstance(run.error, KafkaRefusedError)
    assert "Kafka refuses the login: " in caplog.text
    assert WRONG not in f"{caplog.text}{finding}{refused.value!r}{unknown.value!r}"
