"""The files of lines that the engine reads: a line of names, then rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.marked import Indices, pieces, write_at
from sluice.decode.text.line_formats import LineFormat


@contextmanager
def line_file() -> Iterator[int]:
    """An empty file in memory."""
    file = os.memfd_create("sluice-lines", os.MFD_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def write_lines(
    file: int,
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
    if mark:
        head = lines.marked_head(head)
    end = write_at(file, head, 0)
    for piece in pieces(buffer, np.arange(buffer.messages) if chosen is None else chosen):
        text = piece.text
        if mark:
            begins = [0, *piece.ends[:-1].tolist()]
            places = range(piece.first, piece.first + len(begins))
            rows = zip(places, begins, piece.ends.tolist(), strict=True)
            text = b"".join([lines.marked(mark + b"%d" % k, text[a:b]) for k, a, b in rows])
        end += write_at(file, text, end)


def write_numbered(
    file: int, lines: LineFormat, head: bytes, rows: Sequence[tuple[int, bytes]], stopped: bool
) -> None:
    """Write rows with a number in front of each.

    :param rows: number and text without its newline; in the text, newlines become spaces.
    :param stopped: behind each row stands a line at which the engine cannot go on.
    """
    behind = b"\n" + lines.stopper if stopped else b"\n"
    text = [lines.marked(b"%d" % k, row.replace(b"\n", b" ")) + behind for k, row in rows]
    write_at(file, lines.marked_head(head) + b"".join(text), 0)


def _copy(file: int, head: bytes, buffer: MessageBuffer) -> None:
    """All rows as they stand, without their passing through this process's memory."""
    write_at(file, head, 0)
    with Path(buffer.path).open("rb") as source:
        number = source.fileno()
        size, done = os.fstat(number).st_size, 0
        os.lseek(file, len(head), os.SEEK_SET)
        while done < size:
            done += os.sendfile(file, number, done, size - done)
