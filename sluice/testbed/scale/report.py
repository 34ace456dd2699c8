"""The tables of docs/SCALE.md, as the model makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sluice.testbed.scale.constants import MEASURED, Constants, measured_constants
from sluice.testbed.scale.designs import LARGE, MANY
from sluice.testbed.scale.model import Design, Estimate, estimate
from sluice.testbed.scale.sizes import Sizes, typical_sizes

_LINES: tuple[tuple[str, Callable[[Estimate], str]], ...] = (
    ("partitions that may go together", lambda e: _short(e.cut.group)),
    ("rows wait", lambda e: f"{_short(e.cut.wait_seconds)} s"),
    ("rows of a range", lambda e: _short(e.cut.rows_of_range)),
    ("ranges/s", lambda e: _short(e.cut.ranges)),
    ("ranges of a bundle", lambda e: _short(e.cut.members)),
    ("bundles/s", lambda e: _short(e.cut.bundles)),
    ("blocks of a bundle", lambda e: _short(e.shards_of_bundle)),
    ("blocks/s", lambda e: _short(e.blocks)),
    ("rows of a block", lambda e: _short(e.rows_of_block)),
    ("parts/s of a table and shard", lambda e: _short(e.parts_of_table)),
    ("deduplication window wanted", lambda e: f"{e.window:,}"),
    ("ZooKeeper calls/s", lambda e: _short(e.zookeeper_calls)),
    ("drivers", lambda e: f"{e.drivers:,}"),
    ("Python cores of a driver", lambda e: _short(e.driver_cores)),
    ("ranges of a batch", lambda e: f"{e.batch_ranges:,}"),
    ("driver's Python for a batch", lambda e: f"{_short(e.batch_seconds * 1000)} ms"),
    ("between looks at the ends", lambda e: f"{_short(e.look_seconds)} s"),
    ("offsets in a transaction", lambda e: f"{_short(e.transaction_bytes / 1e3)} KB"),
    ("__consumer_offsets, each driver", lambda e: f"{_short(e.offsets_bytes_a_day / 1e9)} GB/day"),
    ("ledger, all drivers", lambda e: f"{_short(e.ledger_bytes_a_day / 1e9)} GB/day"),
    ("memory of a driver", lambda e: f"{_short(e.driver_bytes / 1e6)} MB"),
    ("Spark slots", lambda e: f"{e.slots:,}"),
    ("memory of all workers", lambda e: f"{_short(e.slots * e.worker_bytes / 1e9)} GB"),
    ("**what speaks against it**", lambda e: "; ".join(e.objections) or "nothing"),
)


_BEGIN, _END = "<!-- python -m sluice.testbed.scale -->\n", "\n<!-- end -->"


def written_into(document: str) -> str:
    """A document with the tables as they are now between its marks."""
    before, _, rest = document.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{report()}{_END}{after}"


def report() -> str:
    """All tables, as Markdown."""
    constants, sizes = measured_constants(), typical_sizes()
    lines = [
        *_constants(),
        "",
        *_sizes(sizes),
        "",
        "#### 2,050 shards x 4 replicas, 500 topics, 10 brokers, 1,000,000 rows/s of 200 bytes",
        "",
        *_designs(LARGE, constants, sizes),
        "",
        "#### 100 topics, 3 brokers, 100,000 rows/s of 200 bytes, 8 shards x 2 replicas",
        "",
        *_designs(MANY, constants, sizes),
    ]
    return "\n".join(lines)


def _constants() -> Iterator[str]:
    yield "| constant | value | what | measured with |"
    yield "|---|---|---|---|"
    for name, one in MEASURED.items():
        command = f"`{one.command}`" if one.command else "assumed"
        yield f"| `{name}` | {_number(one.value, one.unit)} | {one.what} | {command} |"


def _sizes(sizes: Sizes) -> Iterator[str]:
    yield "| bytes | |"
    yield "|---|---|"
    yield f"| a record, as metadata of an offset | {sizes.metadata} |"
    yield f"| the same in a send of at most {sizes.send_max:,} | {sizes.offset_send} |"
    yield f"| the same in `__consumer_offsets` | {sizes.offset_stored} |"
    for what, found in (("of a bundle of 1,000", sizes.bundled), ("alone", sizes.alone)):
        yield f"| ledger: two records of a range {what}, and its counts | {found.range:.0f} |"
        yield f"| ledger: its receipt of a block | {found.receipt:.0f} |"


def _designs(designs: Sequence[Design], constants: Constants, sizes: Sizes) -> Iterator[str]:
    found = [estimate(design, constants, sizes) for design in designs]
    yield f"| | {' | '.join(design.name for design in designs)} |"
    yield "|---" * (len(designs) + 1) + "|"
    yield f"| partitions | {' | '.join(f'{design.partitions:,}' for design in designs)} |"
    yield f"| table entries | {' | '.join(f'{design.entries:,}' for design in designs)} |"
    for name, shown in _LINES:
        yield f"| {name} | {' | '.join(shown(one) for one in found)} |"


def _number(value: float, unit: str) -> str:
    if unit.startswith("s"):
        scaled, prefix = (value * 1e6, "µs") if value < 1e-3 else (value * 1e3, "ms")
        return f"{scaled:.3g} {prefix}{unit[1:]}" if not unit.startswith("shards") else f"{value:g}"
    if unit == "bytes":
        return f"{value / 1e6:g} MB" if value >= 1e6 else f"{value / 1e3:g} KB"
    return f"{value:,g} {unit}"


def _short(value: float) -> str:
    """Three digits are more than the model knows."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.3g}"
