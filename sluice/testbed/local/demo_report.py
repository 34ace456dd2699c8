"""The demonstration's verdict, and the commands to look further."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sluice.config import Configuration
from sluice.testbed.local.console import Console, aligned
from sluice.testbed.local.producing import Produced
from sluice.verify.audit import AuditReport


@dataclass(frozen=True, slots=True)
class Findings:
    """What was produced, and what became of it.

    :param dead_letters: (partition, offset) of every dead letter there is.
    :param loading_seconds: from each driver's first task to its end.
    :param rows: of the table.
    :param orders: different ones among them.
    """

    produced: Produced
    audited: AuditReport
    dead_letters: tuple[tuple[int, int], ...]
    loading_seconds: float
    rows: int
    orders: int

    @property
    def doubled(self) -> int:
        """Rows beyond the first of an order, whether of one message or of two."""
        return self.rows - self.orders

    @property
    def duplicates(self) -> int:
        """Good messages that made no row, since their order had one."""
        return (
            self.produced.good + self.produced.repeated - self.audited.loaded - self.audited.missing
        )

    def problems(self) -> list[str]:
        """Everything that is not as promised; empty if all is well."""
        produced, audited = self.produced, self.audited
        compared = [
            ("lost", audited.missing, 0),
            ("doubled", audited.doubled, 0),
            ("rows of an order that has one", self.doubled, 0),
            ("orders in the table", self.orders, produced.good),
            ("foreign", audited.foreign, 0),
            ("loaded", audited.loaded, produced.good),
            ("skipped", audited.skipped, produced.tombstones),
        ]
        found = [
            f"{name}: {is_value:,}, expected {expected:,}"
            for name, is_value, expected in compared
            if is_value != expected
        ]
        found += [f"{entry}: could not be audited" for entry in audited.unaudited]
        counts = Counter(self.dead_letters)
        for text, number in (
            ("broken events without a dead letter", len(produced.broken - counts.keys())),
            ("dead letters of good events", len(counts.keys() - produced.broken)),
            ("dead letters more than once", sum(count > 1 for count in counts.values())),
        ):
            if number:
                found.append(f"{text}: {number:,}")
        return found


def report(
    console: Console, findings: Findings, configuration: Configuration, keep: bool, seconds: float
) -> int:
    """Print the verdict; gives the exit status."""
    produced, audited = findings.produced, findings.audited
    kinds = sum(name != "tombstone" for name in produced.kinds)
    rate = round(audited.loaded / max(0.001, findings.loading_seconds))
    dead_letters = len(findings.dead_letters)
    console.line()
    console.line(
        aligned(
            [
                ("produced", produced.events, ""),
                ("unique", produced.unique, ""),
                ("duplicates", findings.duplicates, "orders that had a row"),
                ("loaded", audited.loaded, ""),
                ("dead-lettered", dead_letters, f"broken in {kinds} ways"),
                ("skipped", audited.skipped, "messages without a value"),
                ("lost", audited.missing, ""),
                ("doubled", findings.doubled, ""),
                (
                    "rows/s",
                    rate,
                    f"over {findings.loading_seconds:.1f} s of loading, kills and replays "
                    "included, starts of Spark not",
                ),
            ]
        )
    )
    console.line()
    problems = findings.problems()
    for problem in problems:
        console.line(f"  BROKEN: {problem}")
    if not problems:
        console.line(f"Every order exactly once. All of it took {seconds:.0f} s.")
    console.line()
    for text in _further(configuration, keep):
        console.line(text)
    return 1 if problems else 0


def _further(configuration: Configuration, keep: bool) -> list[str]:
    """Commands to look further; the servers have to be started again for them."""
    folder = configuration.path.parent
    if not keep:
        return [
            "Nothing was left behind. `sluice demo --keep` keeps the data to look further,",
            "with status, audit, dead-letters and SELECT.",
        ]
    broker_port = configuration.connectors[0].brokers.rpartition(":")[2]
    url = configuration.clickhouse.shards[0].replicas[0]
    table = configuration.tables[0].target
    return [
        "Nothing is left running; the data was kept. To look further, start the servers again:",
        f"  sluice local kafka --data {folder}/kafka --port {broker_port} &",
        f"  sluice local clickhouse --data {folder}/clickhouse --port {url.rpartition(':')[2]} &",
        "and then:",
        f"  sluice status {configuration.path}",
        f"  sluice audit {configuration.path}",
        f"  sluice dead-letters list {configuration.path}",
        f"  curl {url} --data-binary "
        f"'SELECT country, count(), sum(amount) FROM {table} GROUP BY country FORMAT Pretty'",
    ]
