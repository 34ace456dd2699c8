"""The files of lines that the engine reads: a line of names, then rows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.marked import Indices, pieces
from sluice.decode.messages.memory import MemoryFile
from sluice.decode.text.line_formats import LineFormat


def write_lines(
    file: MemoryFile,
    lines: LineFormat,
    head: bytes,
    buffer: MessageBuffer,
    chosen: Indices | None,
    mark: bytes,
) -> None:
    """Write the line of names and rows.

    :param head: the line of names; of a marked file without the mark's.
    :param chosen: which rows; None: all.
    :param mark: what stands in front of each row, before its place; b"": nothing.
    """
    if not mark and chosen is None:
        _copy(file, head, buffer)
        return
    file.append(lines.marked_head(head) if mark else head)
    for piece in pieces(buffer, np.arange(buffer.messages) if chosen is None else chosen):
        text = piece.text
        if mark:
            begins = [0, *piece.ends[:-1].tolist()]
            places = range(piece.first, piece.first + len(begins))
            rows = zip(places, begins, piece.ends.tolist(), strict=True)
            text = b"".join([lines.marked(mark + b"%d" % k, text[a:b]) for k, a, b in rows])
        file.append(text)


def write_numbered(
    file: MemoryFile,
    lines: LineFormat,
    head: bytes,
    rows: Sequence[tuple[int, bytes]],
    stopped: bool,
) -> None:
    """Write rows with a number in front of each.

    :param rows: number and text without its newline; in the text, newlines become spaces.
    :param stopped: behind each row stands a line at which the engine cannot go on.
    """
    behind = b"\n" + lines.stopper if stopped else b"\n"
    text = [lines.marked(b"%d" % k, row.replace(b"\n", b" ")) + behind for k, row in rows]
    file.append(lines.marked_head(head), b"".join(text))


def _copy(file: MemoryFile, head: bytes, buffer: MessageBuffer) -> None:
    """All rows as they stand, without their passing through this process's memory."""
    file.append(head)
    with Path(buffer.path).open("rb") as source:
        number = source.fileno()
        size, done = os.fstat(number).st_size, 0
        while done < size:
            done += os.sendfile(file.file, number, done, size - done)
