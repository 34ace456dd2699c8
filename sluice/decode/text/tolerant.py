"""The good rows of a text in one pass, although some of its messages are bad.

The engine skips a message that it cannot read: it goes on behind the next newline, and writes
down which of its attempts to read a row failed. A message whose structure is one object, on one
line, is one attempt: it is read to its end, or what fails in it is skipped to its end at least. An
attempt that takes more than that takes whole messages more. So if n messages were n
attempts, each was exactly one. The n + 1st attempt is a line behind them that fails: it counts.

What is read is read as in a strict pass and narrowed by the same expressions, after
rows with a value that may not fit were left out. Those, and what was skipped, are suspects: whoever
asked judges them one by one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from sluice.decode.engine.session import EngineError, run
from sluice.decode.engine.types import leaves, parse_type
from sluice.decode.messages.assemble import Body
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.marked import Indices, write_at
from sluice.decode.text.plan import PLACE_COLUMN, Plan
from sluice.decode.text.suspects import run_marked

#: Cannot be read in any format, and says so in the log.
_LAST_LINE = b"!\n"
_ATTEMPT = re.compile(rb'^"[^"]*",[^,]*,[^,]*,([0-9]+),', re.MULTILINE)

_LEAVES = re.compile(
    r"U?Int(8|16|32|64|128|256)|Float(32|64)|BFloat16|Decimal(32|64|128|256)?|String|FixedString"
    r"|UUID|IPv[46]|Bool|DateTime(64)?|Date(32)?|Enum(8|16)?"
)
#: Defaults in which no moment can be clamped.
_HARMLESS = re.compile(r"\s*|-?[0-9.]+|'[^'\\]*'|now\(\)")


def overflow_behavior(plan: Plan) -> str | None:
    """What becomes of a moment beyond its type in a tolerant pass, "throw" or "saturate"; None
    if such a pass would not surely make the rows of a strict one.

    A DateTime beyond its type stops a query unless it is clamped, and then every default
    expression clamps too. What a reader leaves behind of a value that it gave up may show in
    the bytes of types that are not named here.
    """
    read = [column for column in plan.table.columns if column.name in plan.readable]
    names = {leaf for column in read for leaf in leaves(parse_type(column.type))}
    if plan.table.format != "JSONEachRow" or not all(map(_LEAVES.fullmatch, names)):
        return None
    if "DateTime" not in names:
        return "throw"
    harmless = all(_HARMLESS.fullmatch(column.expression) for column in read if column.kind)
    return "saturate" if harmless else None


@dataclass(frozen=True, slots=True)
class Sifted:
    """What a tolerant pass made.

    :param body: the rows of all messages but the suspects.
    :param suspects: places of messages that cannot be read, or may hold what does not fit.
    :param unread: those of them that cannot be read.
    """

    body: Body
    suspects: Indices
    unread: Indices


def sift(plan: Plan, buffer: MessageBuffer, messages: int, overflow: str) -> Sifted | None:
    """The rows of a buffer whose messages are known, each for itself, to be one object on
    one line; None if it is not proven which row is which message.

    :param messages: how many of the buffer's messages the engine can see.
    :param overflow: see `overflow_behavior`.
    """
    body = Body()
    with _attempts(buffer) as (path, errors):
        try:
            run(plan.tolerant_into(body.path, path, messages + 1, errors, overflow), "Null")
        except EngineError:
            body.close()
            return None
        read = _read_of(errors, messages)
    if read is None:
        body.close()
        return None
    places = np.zeros(0, np.int64)
    if body.size and body.measure():
        cut = np.frombuffer(body.cut(PLACE_COLUMN, "UInt32", 4), np.uint32)
        places = np.sort(cut).astype(np.int64)
    suspects = np.ones(messages, np.bool_)
    suspects[read[places]] = False
    unread = np.delete(np.arange(messages), read)
    return Sifted(body, np.flatnonzero(suspects), unread)


def find_unfit(plan: Plan, buffer: MessageBuffer, messages: int) -> Indices | None:
    """Places of the messages that are at fault, as far as one query can tell; None if it
    cannot. Of the same buffers as `sift`."""
    with _attempts(buffer) as (path, errors):
        rows = run_marked(plan.unfit(path, messages + 1, errors))
        read = None if rows is None else _read_of(errors, messages)
    if rows is None or read is None:
        return None
    unfit = np.ones(messages, np.bool_)
    unfit[read] = False
    unfit[read[rows[0]]] = True
    return np.flatnonzero(unfit)


def _read_of(errors: str, messages: int) -> Indices | None:
    """Places of the messages that were read; None if attempts were not messages."""
    try:
        log = Path(errors).read_bytes()
    except FileNotFoundError:
        return None
    failed = np.array(list(map(int, _ATTEMPT.findall(log))), np.int64) - 1
    if len(failed) != log.count(b"\n") or not len(failed) or failed[-1] != messages:
        return None
    return np.delete(np.arange(messages), failed[:-1])


@contextmanager
def _attempts(buffer: MessageBuffer) -> Iterator[tuple[str, str]]:
    """The buffer's file with one more line, and a path for the log of attempts that fail."""
    path = buffer.path
    size = Path(path).stat().st_size
    with TemporaryDirectory(prefix="sluice-") as folder:
        try:
            with Path(path).open("r+b", buffering=0) as file:
                write_at(file.fileno(), _LAST_LINE, size)
            yield path, str(Path(folder, "errors"))
        finally:
            os.truncate(path, size)
