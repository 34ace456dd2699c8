"""A bug on purpose about blocks that go from one replica to the next; see `planted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sluice.core.receipts import Receipt
from sluice.testbed.simulate.patches import patched
from sluice.worker import inserting


def _failover_with_another_token() -> AbstractContextManager[None]:
    """The next replica is offered the block under a token of its own."""
    real: Callable[..., Receipt] = inserting._insert_into

    def insert_into(*parts: Any) -> Receipt:
        *before, token, lease, attempt, mine = parts
        own = f"{token}/{len(attempt.failures)}" if attempt.failures else token
        return real(*before, own, lease, attempt, mine)

    return patched((inserting, "_insert_into", insert_into))


FAILOVER_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "failover-with-another-token": _failover_with_another_token,
}
