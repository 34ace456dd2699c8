"""One block, offered to the replicas of its shard one after the other, until one has it.

All replicas of a Replicated table share its deduplication window, so a block that one of them
may have stored is known to all (H15). What is offered is the same each time: bytes, token, quorum.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from sluice.clickhouse.reactions import KEEPER_CODES, ServerError, may_still_land, name_of
from sluice.clickhouse.schema import OtherColumnsError
from sluice.clickhouse.topology import ReplicaAwayError
from sluice.core.errors import InDoubtError, SluiceError, TerminalError
from sluice.core.receipts import Receipt
from sluice.core.replicas import Breaker
from sluice.worker.errors import BlockRefusedError, OtherVersionError

_NEXT = ("next-replica", "same-block-then-next-replica")
#: Less than this is not enough to deliver a block.
_SECONDS_MIN = 1.0


@dataclass(slots=True)
class FailoverAttempt:
    """What became of a block so far, within one task.

    :param seconds: for all replicas together, from the first that failed or was sent the block.
    :param may_land: a replica that failed may still store it.
    """

    seconds: float
    failures: list[tuple[str, SluiceError]] = field(default_factory=list)
    doubt: InDoubtError | None = None
    may_land: bool = False
    _begun_at: float | None = None
    _profile: object = None

    @property
    def is_clean(self) -> bool:
        """No replica that was offered the block may have stored it, or may yet store it."""
        return self.doubt is None

    def seconds_left(self) -> float:
        """How long the next POST may take; the first call starts the clock."""
        now = time.monotonic()
        if self._begun_at is None:
            self._begun_at = now
            return self.seconds
        return self._begun_at + self.seconds - now

    def admit(self, url: str, profile: object) -> None:
        """To be called before the block is sent.

        :param profile: by what a server knows a block again: its version, and whether by tokens.
        :raises OtherVersionError: the block is in doubt at a server of another profile.
        """
        if self.doubt is not None and profile != self._profile:
            raise OtherVersionError(
                f"{url} runs another version than the server where the block is in doubt: "
                f"{profile} and {self._profile} may not know each other's blocks; {self.doubt}"
            )
        self._profile = profile

    def outcome(self) -> SluiceError:
        """What to say when no replica has acknowledged the block."""
        last = self.failures[-1][1]
        if not goes_elsewhere(last):
            # A refusal for good says that the block may be stored, if it may be.
            is_final = isinstance(last, BlockRefusedError | TerminalError | InDoubtError)
            return last if self.doubt is None or is_final else self._told(self.doubt)
        if self.doubt is not None:
            return self._told(self.doubt)
        # Columns that only one replica lacks may be on their way to it.
        away = [e for _, e in self.failures if not isinstance(e, BlockRefusedError)]
        return self._told(away[-1]) if away else self.failures[0][1]

    def _told(self, error: SluiceError) -> SluiceError:
        others = [str(other) for _, other in self.failures if other is not error]
        if others:
            error.message = f"{error.message}; of the other replicas: {'; '.join(others)}"
            error.args = (error.message,)
        return error


def offer_block(
    urls: Sequence[str],
    breaker: Breaker,
    seconds: float,
    send: Callable[[str, FailoverAttempt], Receipt],
    behind: Collection[str] = (),
) -> Receipt:
    """Offer a block to one replica after the other, as long as the next may help.

    :param urls: in the order of their turn; those that failed lately are tried last.
    :param seconds: see `FailoverAttempt`.
    :param send: inserts the block at one replica.
    :param behind: replicas that are tried after the others.
    :returns: the receipt of the one that has it, with those that failed before.
    :raises SluiceError: none has it; in doubt if any of them may.
    """
    attempt = FailoverAttempt(seconds)
    for url in breaker.order(urls, time.monotonic(), behind):
        if attempt.failures and attempt.seconds_left() < _SECONDS_MIN:
            break
        try:
            receipt = send(url, attempt)
        except SluiceError as error:
            attempt.failures.append((url, error))
            if isinstance(error, InDoubtError) and not isinstance(error, OtherVersionError):
                attempt.doubt = error
                attempt.may_land |= may_still_land(error)
            if is_unhealthy(error):
                breaker.failed(url, time.monotonic())
            if not goes_elsewhere(error):
                break
        else:
            breaker.succeeded(url)
            return replace(
                receipt,
                failed_over=tuple(f"{url} {name_of(error)}" for url, error in attempt.failures),
                in_doubt=attempt.may_land,
            )
    raise attempt.outcome()


def goes_elsewhere(error: SluiceError) -> bool:
    """Whether another replica may take the block that this one did not."""
    if isinstance(error, BlockRefusedError):
        # An ALTER reaches the replicas one after the other. Nothing was sent.
        return isinstance(error.error, OtherColumnsError)
    if isinstance(error, ServerError):
        return error.action in _NEXT
    return isinstance(error, ReplicaAwayError | OtherVersionError)


def is_unhealthy(error: SluiceError) -> bool:
    """Whether a replica is better tried last for a while.

    A server that lost its session with ZooKeeper is sent the same block again by the driver,
    not by this task; but it need not be the same server.
    """
    if isinstance(error, OtherVersionError):
        return False
    return goes_elsewhere(error) or (isinstance(error, ServerError) and error.code in KEEPER_CODES)
