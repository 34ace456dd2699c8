"""A pipeline that logs in at Kafka with tokens, which end while it runs: both readers, and every
command that reads what it wrote."""

from __future__ import annotations

import signal
import time
import uuid
from pathlib import Path

import pytest

from sluice.testbed.local.running import ClickHouse
from tests.support.identity import SECRET, TOKEN_SECONDS, IdentityService, TokenBroker
from tests.support.world import Truth, World, assert_dead_letters, assert_exact, wait_for

COMMANDS = (
    ("doctor",),
    ("status",),
    ("verify",),
    ("audit",),
    ("dead-letters", "list"),
    ("ledger",),
)


@pytest.mark.long
def test_a_pipeline_whose_tokens_end_while_it_runs(
    tmp_path: Path,
    identity: IdentityService,
    token_broker: TokenBroker,
    embedded_server: ClickHouse,
) -> None:
    world = World(tmp_path, token_broker, embedded_server, f"t{uuid.uuid4().hex[:8]}")
    truths = {f"native-{world.name}": Truth(), f"other-{world.name}": Truth()}
    tables = {topic.partition("-")[0]: topic for topic in truths}
    for table, topic in tables.items():
        world.create_topic(topic, partitions=1)
        world.create_table(table)
    try:
        path = _configuration(world, tables)
        _produce(world, truths, 0)
        driver = world.run(path)
        for table, topic in tables.items():
            world.wait_for_rows(table, truths[topic].rows, driver)
        given, since = identity.given, time.time()
        wait_for(
            lambda: identity.given > given + 1 and time.time() > since + TOKEN_SECONDS,
            240,
            "the end of the tokens that were shown at first",
        )
        _produce(world, truths, 500)
        for table, topic in tables.items():
            world.wait_for_rows(table, truths[topic].rows, driver)
        driver.signal(signal.SIGTERM)
        assert driver.wait() == 0, driver.text()[-4000:]
        for table, topic in tables.items():
            assert_exact(world, table, truths[topic])
        both = Truth(bad={0: [offset for truth in truths.values() for offset in truth.bad[0]]})
        assert_dead_letters(world, both)
        said = driver.text()
        for command in COMMANDS:
            done = world.sluice(*command, str(path))
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            said += done.stdout + done.stderr
        assert SECRET not in said and "eyJ" not in said  # as every token begins
    finally:
        world.close()
        world.clean()


def _configuration(world: World, tables: dict[str, str]) -> Path:
    """A connector with each reader; both at the listener that wants tokens."""
    path = world.configure({table: [topic] for table, topic in tables.items()})
    head, _, rest = path.read_text().partition("[[connector]]")
    assert isinstance(world.broker, TokenBroker)
    properties = "\n".join(f'"{name}" = "{value}"' for name, value in world.broker.login().items())
    connectors = "".join(
        f'[[connector]]\nname = "{table}"\nbrokers = "{world.broker.logins}"\n'
        f'topics = ["{topic}"]\nreader = "{reader}"\n[connector.kafka]\n{properties}\n'
        for (table, topic), reader in zip(tables.items(), ("native", "librdkafka"), strict=True)
    )
    path.write_text(f"{head}{connectors}[batch]{rest.partition('[batch]')[2]}")
    return path


def _produce(world: World, truths: dict[str, Truth], first: int) -> None:
    for topic, truth in truths.items():
        world.produce(topic, 500, truth, partitions=1, bad_every=50, first=first)
