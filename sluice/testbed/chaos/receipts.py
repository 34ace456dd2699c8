"""What the ledger's receipts say of replicas that were passed by. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ReceiptFindings:
    """All receipts of a run.

    :param blocks: that were acknowledged and settled.
    :param by_replica: how many each server acknowledged, by URL.
    :param failed_over: blocks that one replica at least did not take before, in the same task.
    :param passed: how often a replica was passed by, by what was wrong with it.
    :param in_doubt: of `failed_over`, those that a replica passed by may have stored as well.
    :param locked_inserts: blocks that were sent under the table's insert lock.
    :param unlocked_inserts: that were sent without it, since nobody could be asked.
    :param problems: what no receipt may say.
    """

    blocks: int
    by_replica: Mapping[str, int]
    failed_over: int
    passed: Mapping[str, int]
    in_doubt: int
    locked_inserts: int
    unlocked_inserts: int
    problems: tuple[str, ...]


def examine_receipts(
    entries: Iterable[Mapping[str, Any]], replicas: Mapping[str, tuple[str, ...]]
) -> ReceiptFindings:
    """Look at all receipts.

    :param entries: of ledgers; those that are no receipts are passed over.
    :param replicas: URLs of each shard.
    """
    # A bundle's block has a receipt for each of its members, the first of which counts it.
    receipts = [e for e in entries if e["type"] == "receipt" and not e.get("is_shared")]
    tokens = Counter(str(each["token"]) for each in receipts)
    problems = [f"{count} receipts of {token}" for token, count in tokens.items() if count > 1]
    passed: Counter[str] = Counter()
    queued = [each["queueing"] for each in receipts if each.get("queueing")]
    locked_inserts = sum(bool(each["held"]) for each in queued)
    past = [each for each in receipts if each.get("failed_over")]
    for each in past:
        before = [str(told).partition(" ") for told in each["failed_over"]]
        passed.update(name for _, _, name in before)
        tried = [url for url, _, _ in before] + [str(each["replica"])]
        if len(set(tried)) < len(tried) or not set(tried) <= set(replicas[each["shard"]]):
            problems.append(f"{each['token']} was offered to {', '.join(tried)}")
    return ReceiptFindings(
        blocks=len(receipts),
        by_replica=dict(sorted(Counter(str(each["replica"]) for each in receipts).items())),
        failed_over=len(past),
        passed=dict(sorted(passed.items())),
        in_doubt=sum(bool(each.get("in_doubt")) for each in past),
        locked_inserts=locked_inserts,
        unlocked_inserts=len(queued) - locked_inserts,
        problems=tuple(problems),
    )
