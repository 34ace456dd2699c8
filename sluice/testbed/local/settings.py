"""Configuration files for pipelines of the local stack."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence

#: One worker for each core, but no more than there are partitions.
_SLOTS_MAX = 4

Section = Mapping[str, object]


#: What an entry says where orders are known again.
DEDUPLICATE: Section = {"key": ["order_id"], "window": "1d"}


def pipeline_text(
    name: str,
    connectors: Sequence[Section],
    tables: Sequence[Section],
    *,
    batch: Section,
    clickhouse: Section,
    spark: Section | None = None,
    deduplication: Section | None = None,
) -> str:
    """The configuration that `sluice run` takes; each section as it stands there.

    :param connectors: their topics begin at the earliest message.
    :param tables: entries, of JSON unless they say otherwise, with lineage.
    :param spark: None for this machine.
    """
    here = {"master": f"local[{slots()}]", "conf": {"spark.ui.enabled": "false"}}
    return written(
        {
            "pipeline": {"name": name},
            "spark": here if spark is None else spark,
            "connector": [{**each, "start": "earliest"} for each in connectors],
            "batch": batch,
            "clickhouse": {"database": "default", "durability": "single", **clickhouse},
            "deduplication": deduplication or {},
            "table": [{"format": "JSONEachRow", "lineage": True, **each} for each in tables],
        }
    )


def slots() -> int:
    """Tasks that run at once."""
    return max(1, min(_SLOTS_MAX, len(os.sched_getaffinity(0))))


def written(tree: Mapping[str, Section | Sequence[Section]]) -> str:
    """A configuration as TOML.

    :param tree: its sections by name; of one that is repeated, a list. What is None, and a section
        without anything in it, is left out.
    """
    sections = [
        (f"[{name}]", found) if isinstance(found, Mapping) else (f"[[{name}]]", each)
        for name, found in tree.items()
        for each in ([found] if isinstance(found, Mapping) else found)
    ]
    return "\n".join(
        "".join(f"{line}\n" for line in (heading, *_lines(section)))
        for heading, section in sections
        if section
    )


def inline(value: object) -> str:
    """A value as TOML: a text, a number, a list of these, or named values."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_lines(value))} }}"
    # JSON's way to write a text or a list is one of TOML's.
    return json.dumps(value)


def _lines(section: Section) -> Iterator[str]:
    for name, value in section.items():
        if value is not None:
            yield f"{name if name.isidentifier() else json.dumps(name)} = {inline(value)}"
