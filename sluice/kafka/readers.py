"""What reads ranges and the ends of logs, by the reader in the connector's section."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sluice.kafka.clients import KafkaAccess
from sluice.kafka.reader import RangeReader

if TYPE_CHECKING:
    from sluice.kafka.wire.ends import StableEnds
    from sluice.kafka.wire.reader import WireReader

Reader: TypeAlias = "RangeReader | WireReader"


def make_reader(access: KafkaAccess) -> Reader:
    """What reads the ranges of this connector.

    :raises ConfigurationError: the reader is not installed, or cannot do what is configured.
    """
    if access.reader == "native":
        # Here: with the other reader nothing of this one is loaded.
        from sluice.kafka.wire.reader import WireReader

        return WireReader(access)
    return RangeReader(access)


def make_ends(access: KafkaAccess) -> StableEnds | None:
    """What asks for the last stable offsets of this connector's partitions; None: the admin client
    does."""
    if access.reader == "native":
        from sluice.kafka.wire.ends import StableEnds

        return StableEnds(access)
    return None
