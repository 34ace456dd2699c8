"""Which shards the rows of a [[table]] go to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from sluice.config.section import Conflict, Section
from sluice.config.values import Text
from sluice.core.load_spec import Sharding

_STRIPE_MAX = 2**63 - 1
EXAMPLES = (
    'write one like sharding = { by = "key", column = "user_id" }, '
    '{ by = "offset", stripe = 10000 } or '
    '{ by = "expression", expression = "cityHash64(user_id)" }'
)
#: What each way needs, and what it may say.
_NEEDS = {"key": ("column",), "offset": (), "expression": ("expression",)}
_MAY = {"key": ("stripe",), "offset": ("stripe",), "expression": ()}


@dataclass(frozen=True, slots=True)
class _Sharding(Section):
    """`sharding = { by = "key", column = "user_id", stripe = 1 }` and so on."""

    by: Literal["key", "offset", "expression"] | None = None
    column: Text = ""
    stripe: Annotated[int, Field(strict=True, ge=1, le=_STRIPE_MAX)] = 1
    expression: Text = ""

    def conflicts(self, written: Mapping[str, Any]) -> Iterator[Conflict]:
        if self.by is None:
            yield (), f"does not say by what; {EXAMPLES}"
            return
        for key in ("column", "stripe", "expression"):
            if key in _NEEDS[self.by] and key not in written:
                yield key, "is missing"
            if key in written and key not in _NEEDS[self.by] + _MAY[self.by]:
                yield key, f'says nothing with by = "{self.by}"; leave it out'


_SHARDING = TypeAdapter(_Sharding)


def a_sharding(written: object) -> Sharding:
    """Which shard a row goes to."""
    read = _SHARDING.validate_python(written)
    assert read.by is not None
    return Sharding(read.by, read.column, read.stripe, read.expression)
