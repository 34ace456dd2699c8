"""What may be said to the HTTP server: the body of each decision, the questions of each look.

The OpenAPI document is made of these.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from sluice.core.decided import HOST_MAX, LOG_LEVELS, WHY_MAX
from sluice.core.flights import INFLIGHT_INSERTS_LIMIT
from sluice.ops.dead_letters import DeadLetterSelection

#: So many lines of a look are answered, and so many dead letters are replayed by one request.
LINES_MAX, REPLAYED_MAX = 200, 10_000

_Name = Annotated[str, Field(max_length=HOST_MAX)]
_Offset = Annotated[int, Field(ge=0, lt=1 << 63)]


def _moment(text: object) -> datetime:
    if not isinstance(text, str):
        raise ValueError("a time is a text")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("a time needs its zone, like 2026-01-31T00:00:00Z")
    return moment


class Said(BaseModel, extra="forbid", strict=True):
    """The body of a decision."""

    why: str = Field(max_length=WHY_MAX, description="the reason, which the ledger keeps")


class Confirmed(Said):
    """Of what is told before it is done."""

    confirm: str = Field(
        "", max_length=100, description="as answered when it was asked without; then it is done"
    )


class Frozen(Said):
    """What is frozen or resumed."""

    connector: _Name = ""
    table: _Name = Field("", description="name of a table entry")
    replica: _Name = Field("", description="host:port or URL; at most one of these three")
    data_center: _Name = Field("", description="name of a data center")


class Level(Said):
    """How much is logged."""

    level: str | None = Field(json_schema_extra={"enum": [*LOG_LEVELS, None]})


class Limit(Said):
    """How many ranges may be out."""

    max_inflight_inserts: int | None = Field(
        json_schema_extra={"minimum": 1, "maximum": INFLIGHT_INSERTS_LIMIT}
    )
    connector: _Name = ""


class Partitions(Confirmed):
    """Some of a topic."""

    connector: _Name
    topic: _Name
    partitions: list[_Offset] = Field(min_length=1, max_length=1000)


class Resolved(Partitions):
    """What became of ranges in doubt."""

    outcome: Literal["loaded", "not-loaded", "probe"]


class Adopted(Partitions):
    """Where partitions go on."""

    offset: _Offset


class Rewound(Partitions):
    """From where partitions are loaded again."""

    to: _Offset | Annotated[datetime, BeforeValidator(_moment)] = Field(
        description="an offset, or a time with its zone, like 2026-01-31T00:00:00Z"
    )


class DeadLetters(BaseModel):
    """Which dead letters are meant."""

    of: Literal["", "parking", "duplicates"] = Field(
        "", description="messages of parked tables, or copies of duplicates, instead"
    )
    connector: _Name | None = None
    table: _Name | None = None
    reason: _Name | None = None
    topic: _Name | None = None
    partition: _Offset | None = None
    offset: _Offset | None = None
    since_ms: _Offset | None = None
    before_ms: _Offset | None = None
    replayed: bool | None = None

    def selection(self, until: float) -> DeadLetterSelection:
        """They are looked for until then."""
        chosen = {name: getattr(self, name) for name in DeadLetters.model_fields if name != "of"}
        return DeadLetterSelection(**chosen, until=until)


class Replayed(Confirmed, DeadLetters):
    """Dead letters that go back into their topics."""

    limit: int = Field(REPLAYED_MAX, ge=1, le=REPLAYED_MAX, description="the oldest so many")


class Purged(Confirmed, DeadLetters):
    """Dead letters that are deleted for good."""

    all: bool = Field(False, description="all of them, where nothing else says which")


class _Question(BaseModel, extra="forbid"):
    """The words of a query."""

    limit: int = Field(20, ge=1, le=LINES_MAX)


class DeadLettersQuestion(_Question, DeadLetters):
    """Which dead letters are shown."""

    whole: bool = Field(False, description="their payloads up to 64 KiB, not the first of each")


class HistoryQuestion(_Question):
    """Of which partition, or block, the history is told."""

    connector: _Name | None = None
    table: _Name | None = None
    topic: _Name | None = None
    partition: _Offset | None = None
    offset: _Offset | None = Field(None, description="only of the ranges that have this offset")
    since_ms: _Offset | None = Field(None, description="without it: of the last hour")


def first_wrong(error: ValidationError) -> str:
    """What is wrong with what was said, in words; no value is quoted."""
    found: Any = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(map(str, found["loc"]))
    return f"{where}: {found['msg']}" if where else str(found["msg"])
