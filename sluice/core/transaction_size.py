"""How much one Kafka transaction may carry: dead letters make it heavy, and its brokers end one
that takes longer than its time-out. Then whoever wrote it is fenced, and begins it anew (H4)."""

from __future__ import annotations

#: Dead letters of one transaction, however fast they are written.
BYTES_MAX = 64 * 1024 * 1024
#: Before any was measured: those of one task.
BYTES_FIRST = 8 * 1024 * 1024
#: What carries no more than this is slow for another reason.
BYTES_MIN = 1024 * 1024
#: Of its time-out, what the dead letters of a transaction are to take.
_SHARE = 1 / 3


class TransactionSize:
    """Follows from the time-out and from what the way to the brokers gave last. It grows to
    twice what was carried, since a quota lets the first bytes pass at once.

    :ivar bytes_max: dead letters that the next transaction may carry.
    """

    def __init__(self) -> None:
        self.bytes_max = BYTES_FIRST

    def learn(
        self, carried: int, seconds: float, timeout_seconds: float, *, is_committed: bool
    ) -> None:
        """A transaction carried so many bytes of dead letters for so long."""
        share = _SHARE * timeout_seconds
        bearable = int(carried * share / max(seconds, 0.001))
        if seconds > share and carried > BYTES_MIN:
            self.bytes_max = max(BYTES_MIN, min(self.bytes_max, bearable))
        elif is_committed:
            self.bytes_max = min(BYTES_MAX, max(self.bytes_max, min(2 * carried, bearable)))
