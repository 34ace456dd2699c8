"""A group for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.groups import Group
from tests.support.kafka import Kafka


@pytest.fixture
def group(kafka: Kafka) -> Iterator[Group]:
    made = Group(kafka)
    yield made
    made.close()
