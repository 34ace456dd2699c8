"""Independent pieces of work, spread over Spark's slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pyspark import SparkContext


Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(
    context: SparkContext,
    description: str,
    work: Callable[[Item], Result],
    items: Sequence[Item],
) -> list[Result]:
    """The results in the order of the items; each item is a task of its own.

    :param description: shown in Spark's UI.
    :param work: travels to the workers, as do items and results: picklable.
    """
    if not items:
        return []
    context.setJobDescription(description)
    results: list[Result] = context.parallelize(items, len(items)).map(work).collect()
    return results
