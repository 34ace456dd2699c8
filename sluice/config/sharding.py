"""Reads which shards the rows of a [[table]] go to."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.config.findings import suggest
from sluice.config.model import TableConfiguration
from sluice.config.section import Section
from sluice.config.values import a_choice, a_text, an_integer
from sluice.core.text import Sharding

_WAYS = ("key", "offset", "expression")
_STRIPE_MAX = 2**63 - 1
#: A block for each is too small long before, and each takes two open files of a worker, which may
#: have 1024 by default.
SHARDS_MAX = 256
_EXAMPLES = (
    'write one like sharding = { by = "key", column = "user_id" }, '
    '{ by = "offset", stripe = 10000 } or '
    '{ by = "expression", expression = "cityHash64(user_id)" }'
)
_PARTS: dict[str, tuple[str, ...]] = {
    "key": ("column", "stripe"),
    "offset": ("stripe",),
    "expression": ("expression",),
}


def read_sharding(section: Section) -> Sharding | None:
    """`sharding = { by = "key", column = "user_id", stripe = 1 }` and so on."""
    if not section.has("sharding"):
        return None
    inner = section.table("sharding")
    if not inner.has("by"):
        section.refuse("sharding", f"does not say by what; {_EXAMPLES}")
        inner.keys()
        return None
    by = inner.optional("by", a_choice(*_WAYS), "")
    if not by:
        inner.keys()
        return None
    parts = _PARTS[by]
    for key in ("column", "stripe", "expression"):
        if key not in parts and inner.has(key):
            inner.refuse(key, f'says nothing with by = "{by}"; leave it out')
    a_stripe = an_integer(1, _STRIPE_MAX)
    sharding = Sharding(
        by,  # type: ignore[arg-type]
        column=inner.required("column", a_text, "") if "column" in parts else "",
        stripe=inner.optional("stripe", a_stripe, 1) if "stripe" in parts else 1,
        expression=inner.required("expression", a_text, "") if "expression" in parts else "",
    )
    inner.finish()
    return sharding


def check_sharding(section: Section, table: TableConfiguration, names: Sequence[str]) -> None:
    """Refuse what does not say, for each row, one of the shards that there are.

    :param names: of all shards.
    """
    for name in table.shards:
        if names and name not in names:
            section.refuse("shards", f'no shard is named "{name}"; {suggest(name, names)}')
    shards = sorted(table.shards or names)
    sharding = table.sharding
    if sharding is None:
        if len(shards) > 1 and not section.has("sharding"):
            section.refuse(
                "sharding",
                f"is missing: rows go to {len(shards)} shards ({_listed(shards)}); {_EXAMPLES}, "
                f'or name one shard, as in shards = ["{shards[0]}"]',
            )
        return
    if len(shards) > SHARDS_MAX:
        section.refuse(
            "sharding",
            f"would cut each block into up to {len(shards)}, and {SHARDS_MAX} is the most; give "
            "each shard a topic of its own, with shards = [...] in its entry",
        )
    if len(shards) == 1:
        section.refuse(
            "sharding", f"decides nothing: all rows go to the shard {shards[0]}; leave it out"
        )
    if table.rows == "many" and sharding.by != "offset":
        section.refuse(
            "sharding",
            f'by = "{sharding.by}" and rows = "many" could send rows of one message to different '
            "shards, and nobody could tell by its offset whether all of them are there; use "
            'by = "offset", or one shard',
        )
    if table.lineage is False and sharding.by == "offset":
        section.refuse(
            "sharding",
            'by = "offset" needs the column _offset in the table, and lineage = false leaves it '
            "out; use lineage = true",
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{', '.join(names[:5])}{more}"
