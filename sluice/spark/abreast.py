"""The blocks of one table entry, sent to several shards at the same time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sluice.core.errors import InDoubtError, SluiceError
from sluice.core.receipts import Receipt
from sluice.decode.messages.decoded import Block
from sluice.spark.asking import OutdatedTextError
from sluice.spark.failover import BlockRefusedError

#: Shards of one range that are sent to at once.
SENDERS_MAX = 16

Send = Callable[[str, Block], Receipt]
#: Shards with their blocks, the last one first: taken out one by one, so that a block's memory
#: goes when it is stored.
Parts = list[tuple[str, Block]]


def send_in_turn(parts: Parts, send: Send) -> tuple[list[Receipt], list[SluiceError]]:
    """Send one block after the other; the first error is the last attempt."""
    receipts: list[Receipt] = []
    while parts:
        try:
            receipts.append(send(*parts.pop()))
        except SluiceError as error:
            return receipts, [error]
    return receipts, []


def send_abreast(parts: Parts, send: Send) -> tuple[list[Receipt], list[SluiceError]]:
    """Send each block to its shard, and wait for all of them: what is still on its way must not
    outlive the task's report.

    :param send: called from other threads, for each shard once. No two shards share a server.
    :returns: receipts and errors, each in the order of the shards.
    """
    receipts: list[Receipt] = []
    errors: list[SluiceError] = []
    with ThreadPoolExecutor(min(SENDERS_MAX, len(parts)), "insert") as pool:
        sent = [pool.submit(send, *parts.pop()) for _ in range(len(parts))]
    for future in sent:
        try:
            receipts.append(future.result())
        except SluiceError as error:
            errors.append(error)
    return receipts, errors


def decisive(errors: list[SluiceError], receipts: list[Receipt]) -> SluiceError:
    """What several shards' errors mean for the range. Pure.

    What may be stored comes first: the range may not be loaded under another text then, nor
    parked. A refusal comes last: it shows again when everything else is stored.

    :param errors: of one entry; one at least.
    :param receipts: of the same entry.
    """
    error = min(errors, key=_rank)
    if isinstance(error, BlockRefusedError):
        refused = [each for each in errors if isinstance(each, BlockRefusedError)]
        error.is_unstored = not receipts and all(each.is_unstored for each in refused)
    return error


def _rank(error: SluiceError) -> int:
    if isinstance(error, InDoubtError):
        return 0
    if isinstance(error, OutdatedTextError):
        return 1
    return 3 if isinstance(error, BlockRefusedError) else 2
