"""Metrics of each partition, as text. There may be thousands of them, and the library takes ten
times as long to write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sluice.driver.loop import ConnectorLoop
from sluice.driver.state import PartitionState
from sluice.ops.running import behind_seconds

#: name -> help; gauges with the labels connector, topic and partition.
PARTITION_GAUGES: Mapping[str, str] = {
    "sluice_settled_offset": "Nothing below this offset is outstanding.",
    "sluice_stable_end_offset": "Last stable offset as last read.",
    "sluice_lag_messages": "Stable end minus settled offset.",
    "sluice_behind_seconds": "Since when at least its oldest message that is not settled is there.",
    "sluice_in_doubt": "1 while a recorded range is not settled.",
    "sluice_stopped": "1 once the partition stopped; a person must decide.",
    "sluice_probing": "1 while a range waits for its probe.",
    "sluice_consecutive_failures": "Failed attempts at the recorded range.",
}
#: The same with the label table, too.
RATIO = "sluice_dead_letters_ratio"
RATIO_HELP = "Share of dead letters among the last messages; from max_ratio on the partition stops."
LABELS = ("connector", "topic", "partition")


def _values(state: PartitionState, at_ms: int) -> tuple[float, ...]:
    return (
        state.settled,
        state.stable_end,
        max(0, state.stable_end - state.settled),
        behind_seconds(state, at_ms),
        state.record.in_doubt,
        state.stopped is not None,
        state.has_to_be_probed,
        state.failures,
    )


def partition_text(loops: Iterable[ConnectorLoop], at_ms: int) -> str:
    """All of them in Prometheus' text format."""
    lines: list[list[str]] = [[_head(name, text)] for name, text in PARTITION_GAUGES.items()]
    names = tuple(PARTITION_GAUGES)
    ratios = [_head(RATIO, RATIO_HELP)]
    for loop in loops:
        for source, state in loop.states.copy().items():
            where = _labelled(loop.name, source.topic, source.partition)
            for name, family, value in zip(names, lines, _values(state, at_ms), strict=True):
                family.append(f"{name}{{{where}}} {_shown(value)}\n")
        ratios += _ratios(loop)
    return "".join(line for family in (*lines, ratios) for line in family)


def _ratios(loop: ConnectorLoop) -> Iterator[str]:
    """How near each partition is to its limit."""
    for source, window in list(loop.dead_letters.windows.items()):
        where = _labelled(loop.name, source.topic, source.partition)
        for table in list(window.dead_letters):
            yield f'{RATIO}{{{where},table="{_escaped(table)}"}} {_shown(window.ratio(table))}\n'


def _head(name: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n"


def _labelled(connector: str, topic: str, partition: int) -> str:
    return f'connector="{_escaped(connector)}",topic="{_escaped(topic)}",partition="{partition}"'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _shown(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
