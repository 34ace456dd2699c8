"""The readers of ranges, by the name in the connector's section."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from sluice.kafka.clients import KafkaAccess
from sluice.kafka.reader import RangeReader

if TYPE_CHECKING:
    from sluice.kafka.wire.reader import WireReader

Reader: TypeAlias = "RangeReader | WireReader"


def make_reader(access: KafkaAccess) -> Reader:
    """What reads the ranges of this connector.

    :raises ConfigurationError: the reader is not installed, or cannot do what is configured.
    """
    if access.reader == "wire":
        # The compiled part is optional: without this reader nothing of it is touched.
        from sluice.kafka.wire.reader import WireReader

        return WireReader(access)
    return RangeReader(access)
