"""Whether receipts account for every message of a settled range, table by table. Pure.

For a range that was loaded wholly, and each table entry of its load spec:
messages = messages in receipts + dead letters of this entry + skipped (tombstones) + passed
(of other entries, or of no rows).
For a probe, whose task loads only what was missing, rows and dead letters are bounded by the
recorded number of offsets instead: what was there before has no receipt.
"""

from __future__ import annotations

from collections.abc import Sequence

from sluice.core.instances import Acknowledged, Instance, Settled
from sluice.core.records import Record

#: Table entries, none for all of them, and what is wrong.
WrongCount = tuple[tuple[str, ...], str]


def judge_counts(
    before: Instance,
    acknowledged: Sequence[Acknowledged],
    settled: Sequence[Settled],
    entries: tuple[str, ...] | None,
    *,
    must_be_settled: bool,
) -> list[WrongCount]:
    """What is wrong with what the ledger says about a range in doubt.

    :param before: the record whose range the entries must be about.
    :param acknowledged: receipts since that record; likewise `settled`.
    :param entries: the table entries that the range goes to; None if nobody knows.
    :param must_be_settled: the next record goes on behind the range.
    """
    record = before.record
    assert record is not None
    wrong: list[WrongCount] = []
    entries_said: list[Acknowledged | Settled] = [*acknowledged, *settled]
    for entry in entries_said:
        if not record.in_doubt or not _is_about(entry, record):
            table = (entry.entry,) if isinstance(entry, Acknowledged) else ()
            what = "a receipt" if isinstance(entry, Acknowledged) else "a settle"
            said = (
                f"{what} at {entry.place} is about [{entry.begin}, {entry.end}) of batch "
                f"{entry.batch}, which was not in doubt"
            )
            wrong.append((table, said))
    if wrong:
        return wrong
    if must_be_settled and not settled:
        return [((), f"nothing says that [{record.begin}, {record.end}) was loaded")]
    if len(settled) > 1:
        return [((), f"[{record.begin}, {record.end}) was settled {len(settled)} times")]
    if not settled:
        receipts = f"{len(acknowledged)} receipts without a settle"
        return [((), receipts)] if acknowledged else []
    return _judge_settled(before, record, acknowledged, settled[0], entries)


def _is_about(entry: Acknowledged | Settled, record: Record) -> bool:
    if (entry.begin, entry.end, entry.batch) != (record.begin, record.end, record.batch):
        return False
    if isinstance(entry, Settled):
        return True
    if record.bundle:
        return f"/{record.bundle}/" in entry.token
    named = f"/{record.begin}-{record.end}"
    return entry.token.endswith(f"{named}/{record.rest}" if record.rest else named)


def _judge_settled(
    before: Instance,
    record: Record,
    acknowledged: Sequence[Acknowledged],
    settled: Settled,
    entries: tuple[str, ...] | None,
) -> list[WrongCount]:
    wrong: list[WrongCount] = []
    made: dict[str, int] = {}
    blocks: set[tuple[str, str]] = set()
    for receipt in acknowledged:
        block = (receipt.entry, receipt.shard)
        if block in blocks:
            said = f"shard {receipt.shard} has two receipts for one block"
            wrong.append(((receipt.entry,), said))
        blocks.add(block)
        made[receipt.entry] = made.get(receipt.entry, 0) + receipt.messages
    if settled.messages > record.end - record.begin:
        said = f"{settled.messages} messages in {record.end - record.begin} offsets"
        wrong.append(((), said))
    rows = sum(receipt.rows for receipt in acknowledged)
    if settled.rows != rows:
        said = f"{settled.rows} rows were settled, the receipts name {rows}"
        wrong.append(((), said))
    for name in sorted(set(made) - set(entries or made)):
        wrong.append(((name,), "a receipt for a table that the load spec does not name"))
    for name in entries or ():
        said = _judge_table(before, record, settled, name, made.get(name, 0))
        if said:
            wrong.append(((name,), said))
    return wrong


def _judge_table(before: Instance, record: Record, settled: Settled, name: str, made: int) -> str:
    """What is wrong with the counts of one table, "" if nothing is."""
    if record.rest:
        offsets = None if before.rest_offsets is None else before.rest_offsets.get(name, 0)
        bad = 0 if settled.bad is None else settled.bad.get(name, 0)
        if offsets is not None and made + bad > offsets:
            return f"{made} rows and {bad} dead letters of {offsets} offsets that were missing"
        return ""
    values = settled.messages - settled.skipped - settled.passed.get(name, 0)
    if settled.bad is None:
        if not 0 <= values - made <= settled.dead_letters:
            return (
                f"{values} messages with a value, {made} made rows, and {settled.dead_letters} "
                "dead letters in all tables"
            )
        return ""
    bad = settled.bad.get(name, 0)
    if made + bad != values:
        passed = settled.passed.get(name, 0)
        over = f", {passed} passed over" if passed else ""
        return (
            f"{settled.messages} messages, but {made} rows, {bad} dead letters and "
            f"{settled.skipped} skipped{over}"
        )
    return ""
