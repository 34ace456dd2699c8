"""Quotas of a cluster, as far as reading feels them.

A broker that has given a user or a client id as much as its quota allows answers a fetch without
messages, and says for how long it reads no more requests from that connection (KIP-219, Kafka from
2.0 on). Of a small quota that may be tens of seconds, and nothing is wrong.
"""

from __future__ import annotations

import logging
import time

from confluent_kafka import ThrottleEvent

_logger = logging.getLogger("sluice.kafka")

#: A broker is asked again after so long at the latest, whatever it says.
SLOWED_SECONDS_MAX = 60.0
#: It is said when it begins, and again where it was not so for so long.
_AGAIN_SECONDS = 60.0


class Slowed:
    """Until when brokers slow one reader down. Not thread-safe."""

    def __init__(self) -> None:
        #: By `time.monotonic`, of the broker that takes longest.
        self.until = float("-inf")

    def take(self, broker: str, seconds: float) -> float:
        """A broker said so; gives until when it is not to be asked, by `time.monotonic`."""
        now = time.monotonic()
        if now - self.until > _AGAIN_SECONDS:
            _logger.warning(
                "broker %s slows reading down, now for %.1f s: a quota of Sluice's user or client "
                "id is used up (consumer_byte_rate or request_percentage). Nothing is lost, and "
                "what is read comes later. Try: a larger quota, by kafka-configs.sh --alter "
                "--add-config consumer_byte_rate=…",
                broker,
                seconds,
            )
        until = now + min(seconds, SLOWED_SECONDS_MAX)
        self.until = max(self.until, until)
        return until

    def told_by_librdkafka(self, event: ThrottleEvent) -> None:
        """As its `throttle_cb`."""
        self.take(event.broker_name, event.throttle_time)

    def seconds_since(self, at: float) -> float:
        """How long ago something was, by `time.monotonic`, without the time that brokers took."""
        return time.monotonic() - max(at, self.until)
