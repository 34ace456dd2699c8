"""The blocks of one table entry, sent to several shards at the same time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from sluice.core.errors import InDoubtError, SluiceError, TerminalError
from sluice.core.receipts import Receipt
from sluice.decode.messages.decoded import Block
from sluice.worker.errors import BlockRefusedError, OutdatedTextError

#: Shards of one range that are sent to at once.
SENDERS_MAX = 16

_logger = logging.getLogger("sluice.spark")

Send = Callable[[str, Block], Receipt]
#: Shards with their blocks, the last one first: taken out one by one, so that a block's memory
#: goes when it is stored.
Parts = list[tuple[str, Block]]


def send_sequentially(parts: Parts, send: Send) -> tuple[list[Receipt], list[SluiceError]]:
    """Send one block after the other; the first error is the last attempt."""
    receipts: list[Receipt] = []
    while parts:
        try:
            receipts.append(send(*parts.pop()))
        except SluiceError as error:
            return receipts, [error]
    return receipts, []


def send_parallel(parts: Parts, send: Send) -> tuple[list[Receipt], list[SluiceError]]:
    """Send each block to its shard, and wait for all of them: what is still on its way must not
    outlive the task's report.

    :param send: called for each shard once, from this thread and others. No two shards share a
        server.
    :returns: receipts and errors, each in the order of the shards.
    """
    order = [shard for shard, _ in reversed(parts)]
    receipts: dict[str, Receipt] = {}
    errors: dict[str, Exception] = {}

    def send_some() -> None:
        while True:
            try:
                shard, block = parts.pop()
            except IndexError:
                return
            try:
                receipts[shard] = send(shard, block)
            except Exception as error:
                errors[shard] = error

    threads = [
        threading.Thread(target=send_some, name=f"insert-{number}")
        for number in range(1, min(SENDERS_MAX, len(order)))
    ]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        _logger.warning("blocks of %d shards go out more slowly: %s", len(order), error)
    finally:
        try:
            send_some()
        finally:
            for thread in started:
                thread.join()
    failed: list[SluiceError] = []
    for why in (errors[shard] for shard in order if shard in errors):
        if not isinstance(why, SluiceError):
            raise why
        failed.append(why)
    return [receipts[shard] for shard in order if shard in receipts], failed


def decisive(errors: list[SluiceError], receipts: list[Receipt]) -> SluiceError:
    """What several shards' errors mean for the range. Pure.

    What may be stored comes first: the range may not be loaded under another load spec then, nor
    parked. A refusal that surely stored nothing comes last: it shows again when everything else
    is stored.

    :param errors: of one entry; one at least.
    :param receipts: of the same entry.
    :returns: one of them; its message names the others.
    """
    error = min(errors, key=_rank)
    if isinstance(error, BlockRefusedError):
        error.is_unstored = error.is_unstored and not receipts
    others = "; ".join(str(each) for each in errors if each is not error)
    if others:
        error.message = f"{error.message}; in other shards: {others}"
        error.args = (error.message,)
    return error


def _rank(error: SluiceError) -> int:
    if isinstance(error, InDoubtError):
        return 0
    if isinstance(error, BlockRefusedError):
        return 4 if error.is_unstored else 1
    if isinstance(error, TerminalError):
        return 1  # of a server after another one, at which the block may be
    return 2 if isinstance(error, OutdatedTextError) else 3
