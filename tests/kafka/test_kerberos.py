"""Logins by Kerberos at a real broker with a real key distribution center.

The librdkafka of confluent-kafka's wheel is built without it. Debian packages one that has it,
with a confluent-kafka that is older than what Sluice runs on; the clients that Sluice makes, and
the reader, need little more than that. So they run in a process of their own, with that one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.testbed.local.running import running_program
from tests.support.children import running
from tests.support.kerberos import KerberosBroker, KeyCenter
from tests.support.logins import VALUES, fill

TOPIC = "kerberos"
DEBIAN = Path("/usr/lib/python3/dist-packages/confluent_kafka")

#: What a driver and its workers do first: look at the cluster, take over, read a range.
CLIENTS = f"""
import json, sys
import confluent_kafka.admin
for name in ("ResourceType", "TopicDescription"):  # younger than Debian's
    vars(confluent_kafka.admin).setdefault(name, object)
import sluice.kafka.reader
from sluice.core.ranges import Range, TopicPartition
from sluice.kafka.clients import KafkaAccess, make_admin, make_producer
from sluice.kafka.reader import Wanted
from sluice.kafka.readers import make_reader
from sluice.kafka.transactions import initialise

access = KafkaAccess("dc1", sys.argv[1], json.loads(sys.argv[2]))
topics = list(make_admin(access).list_topics(timeout=15).topics)
refused = initialise(make_producer(access, "kerberos", 10_000, "topic"))
sluice.kafka.reader._TUNING.pop("fetch_queue_backoff_ms")  # younger than Debian's
values, reader = [], make_reader(access)
wanted = [Wanted(Range(TopicPartition("{TOPIC}", 0), 0, {len(VALUES)}))]
reader.read_ranges(wanted, 1 << 30, lambda found, _: values.extend(found))
print(json.dumps([topics, str(refused), [each.decode() for each in values]]))
"""


@pytest.fixture(scope="module")
def center() -> Iterator[KeyCenter]:
    with running(KeyCenter) as made:
        yield made


@pytest.fixture(scope="module")
def broker(center: KeyCenter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosBroker]:
    folder = tmp_path_factory.mktemp("kerberos")
    with running_program(KerberosBroker(folder / "kafka", center)) as broker:
        fill(broker.brokers, TOPIC)
        yield broker


@pytest.fixture
def python(center: KeyCenter, tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has Debian's confluent-kafka."""
    library = f"cimpl.cpython-{sys.version_info.major}{sys.version_info.minor}*.so"
    if not list(DEBIAN.glob(library)):
        pytest.skip(
            "needs Debian's package python3-confluent-kafka, and its Python: scripts/setup-tests"
        )
    (tmp_path / DEBIAN.name).symlink_to(DEBIAN)
    places = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    return {**os.environ, **center.environment, "PYTHONPATH": places}


def logs_in(broker: KerberosBroker, python: dict[str, str], **changed: str) -> tuple[int, str]:
    """The status, and what it prints, of a process that does what drivers and workers do."""
    properties = json.dumps(broker.login() | {f"sasl.kerberos.{n}": v for n, v in changed.items()})
    command = [sys.executable, "-c", CLIENTS, broker.logins, properties]
    done = subprocess.run(
        command, env=python, capture_output=True, text=True, timeout=120, check=False
    )
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


@pytest.mark.slow
def test_every_client_logs_in(broker: KerberosBroker, python: dict[str, str]) -> None:
    status, said = logs_in(broker, python)
    assert status == 0, said
    topics, refused, values = json.loads(said)
    assert TOPIC in topics and refused == "None" and values == [each.decode() for each in VALUES]


@pytest.mark.slow
def test_without_keys_nobody_does(
    broker: KerberosBroker, center: KeyCenter, python: dict[str, str]
) -> None:
    """The broker's keys are no user's."""
    python["KRB5CCNAME"] = "MEMORY:"
    status, said = logs_in(broker, python, keytab=str(center.service_keys))
    assert status != 0 and "No credentials were supplied" in said
