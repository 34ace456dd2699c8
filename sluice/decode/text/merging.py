"""Blocks of the same columns to one block, in the order of their messages."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from sluice.decode.engine.native import column_head, with_columns
from sluice.decode.engine.session import literal, run
from sluice.decode.messages.assemble import Body, Lineage
from sluice.decode.messages.decoded import Decoded
from sluice.decode.messages.marked import memory_file
from sluice.decode.messages.origins import Origins
from sluice.decode.text.plan import PLACE_COLUMN, Plan

_ROW = "_row"


def merge(plan: Plan, parts: list[Decoded], origins: Origins) -> tuple[Body, Lineage]:
    """The rows of all parts, without lineage columns, and the lineage of each.

    :param parts: with rows, in the order of their messages; no message is in two of them.
    """
    offsets = np.concatenate([part.offsets for part in parts])
    order = np.argsort(offsets, kind="stable")
    places = np.empty(len(order), np.uint32)
    places[order] = np.arange(len(order), dtype=np.uint32)
    numbers: list[NDArray[np.uint32]] = []
    body = Body()
    with ExitStack() as stack:
        paths, begin = [], 0
        for part in parts:
            own = places[begin : begin + part.rows].tobytes()
            block = with_columns(part.native, [column_head(PLACE_COLUMN, "UInt32") + own])
            begin += part.rows
            paths.append(stack.enter_context(memory_file(block)))
            numbers.append(_row_numbers(part, paths[-1]))
        run(plan.merge_into(body.path, paths, len(order)), "Null")
    body.measure()
    all_numbers = np.concatenate(numbers)[order]
    return body, Lineage(origins, offsets[order], all_numbers)


def _row_numbers(part: Decoded, path: str) -> NDArray[np.uint32]:
    """Of each row within its message, which are zeros unless the block says them."""
    if _ROW not in part.columns:
        return np.zeros(part.rows, np.uint32)
    query = f"SELECT toUInt32({_ROW}) FROM file({literal(path)}, Native)"
    return np.frombuffer(run(query, "RowBinary").bytes(), np.uint32)
