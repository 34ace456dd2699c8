"""Workers that do not decode as the driver thinks."""

from __future__ import annotations

from dataclasses import replace

from sluice.config import load
from sluice.core.receipts import Failed, Loaded
from sluice.driver.specs import read_spec
from sluice.worker.worker_cache import OtherDecoderError
from tests.support.range_task import Task
from tests.support.world import Truth, World


def test_a_worker_with_another_decoder_inserts_nothing(world: World) -> None:
    """The driver may have other packages than the machines of its workers."""
    world.create_topic("decoders", 1)
    world.create_table("decoded")
    world.produce("decoders", 10, Truth(), partitions=1)
    configuration = load(world.configure({"decoded": ["decoders"]}), {})
    text = read_spec(configuration, "dc1")
    recorded = replace(text, decoder="chdb 99.9.9, rules 1")
    refused = Task(configuration, "decoders", 10, recorded).load(is_first=True).outcome
    assert isinstance(refused, Failed) and isinstance(refused.error, OtherDecoderError)
    assert "recorded for chdb 99.9.9, rules 1" in str(refused.error)
    assert text.decoder in str(refused.error) and refused.error.hint
    assert world.count("decoded") == 0
    assert isinstance(Task(configuration, "decoders", 10, text).load().outcome, Loaded)
    assert world.count("decoded") == 10
