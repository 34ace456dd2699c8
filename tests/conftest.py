"""Shared fixtures: the real servers live in tests/support."""

import pytest
from hypothesis import settings

from tests.support.examples import ALL

pytest_plugins = ["tests.support.fixtures", "tests.support.kafka", "tests.support.identity"]

# How long an example takes says something of the machine, and nothing of the code. `make test`
# tries a quarter of the examples; `make test-long` takes the other profile.
settings.register_profile("long", deadline=None, max_examples=ALL)
settings.register_profile("sluice", deadline=None, max_examples=ALL // 4)
settings.load_profile("sluice")

#: Their files take longest, so they come first: else a process works on one of them at the end,
#: while the others have nothing left.
_FIRST = (
    *("tests/worker/test_delivery_conformance.py", "tests/e2e/", "tests/testbed/"),
    *("tests/stream/", "tests/prove/", "tests/worker/", "tests/decode/"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        starts = [item.nodeid.startswith(folder) for folder in _FIRST]
        return starts.index(True) if any(starts) else len(starts)

    items.sort(key=place)
