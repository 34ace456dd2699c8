"""The verdict of a chaos run, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.testbed.chaos.content import ContentReport
from sluice.testbed.chaos.layout import Layout
from sluice.testbed.chaos.replicas import ReplicaFindings
from sluice.testbed.local.console import aligned, unexpected
from sluice.verify.audit import AuditReport


@dataclass(frozen=True, slots=True)
class ClaimsReport:
    """Of a run that deduplicates.

    :param duplicates: messages beyond the first of an event.
    :param starts: of the store; `losses`: how often it lost claims, or may have.
    :param unclaimed: rows whose key nobody has at the end; `others`: whose key another message has.
    :param examples: of them.
    """

    duplicates: int
    starts: int
    losses: int
    unclaimed: int
    others: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What was done to the pipeline, and what became of every row.

    :param seconds: while faults struck.
    :param rows: events that had to become rows: different ones, where they are deduplicated.
    :param broken: events that had to become dead letters.
    :param rows_per_event: likewise dead letters: one of each table entry.
    :param faults: how often each struck, by name.
    :param missed: strikes that found nothing to strike at.
    :param replayed: ranges that were recorded again under the same token.
    :param probed: ranges that had left the window and were looked for in the table.
    :param fenced: drivers that slept, were succeeded, woke and ended with status 4.
    :param dropped_replies: acknowledgements that the proxies withheld.
    :param violations: what else was not as promised.
    :param layout: of the cluster, if it is one; likewise `replicas`.
    :param producers_replaced: since they were stuck: this program's own.
    :param unknown: events that these did not hear of; `unknown_found`: those that the topics hold.
    :param claims: if events were deduplicated.
    """

    seed: int
    seconds: float
    spark: str
    rows: int
    broken: int
    tombstones: int
    faults: dict[str, int]
    missed: int
    driver_restarts: int
    replayed: int
    probed: int
    fenced: int
    dropped_replies: int
    resets: int
    content: ContentReport
    audited: AuditReport
    anomalies: int
    violations: tuple[str, ...]
    layout: Layout | None = None
    replicas: ReplicaFindings | None = None
    rows_per_event: int = 1
    producers_replaced: int = 0
    unknown: int = 0
    unknown_found: int = 0
    claims: ClaimsReport | None = None

    @property
    def duplicates(self) -> int:
        """Messages that are left out."""
        return 0 if self.claims is None else self.claims.duplicates

    @property
    def problems(self) -> list[str]:
        """Everything that is not as promised; empty if every row is there once."""
        audited, content = self.audited, self.content
        rows, broken = self.rows * self.rows_per_event, self.broken * self.rows_per_event
        compared = [
            ("rows in the table", content.loaded, rows),
            ("lost", content.lost, 0),
            ("doubled", content.doubled, 0),
            ("foreign", content.foreign, 0),
            ("altered", content.altered, 0),
            ("dead letters", content.dead_letters, broken),
            ("dead letters missing", content.dead_letters_missing, 0),
            ("dead letters doubled", content.dead_letters_doubled, 0),
            ("dead letters of good events", content.dead_letters_foreign, 0),
            ("audit: loaded", audited.loaded, rows),
            ("audit: lost", audited.missing, 0),
            ("audit: doubled", audited.doubled, 0),
            ("audit: foreign", audited.foreign, 0),
            ("audit: skipped", audited.skipped, self.tombstones),
            ("audit: duplicates", audited.duplicates, self.duplicates),
            ("verifier: anomalies", self.anomalies, 0),
        ]
        if self.claims is not None:
            compared += [
                ("rows whose key nobody has", self.claims.unclaimed, 0),
                ("rows whose key another message has", self.claims.others, 0),
            ]
        of_replicas = () if self.replicas is None else self.replicas.problems
        of_claims = () if self.claims is None else self.claims.examples
        return [
            *unexpected(compared),
            *content.examples,
            *of_claims,
            *of_replicas,
            *self.violations,
        ]

    @property
    def is_exact(self) -> bool:
        """Every row and every dead letter exactly once, and nothing else went wrong."""
        return not self.problems

    def fields(self) -> dict[str, object]:
        """For JSON."""
        content = self.content
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "spark": self.spark,
            "produced": self.rows + self.duplicates + self.broken + self.tombstones,
            "loaded": content.loaded,
            "dead_lettered": content.dead_letters,
            "skipped": self.audited.skipped,
            "faults": self.faults,
            "faults_missed": self.missed,
            "driver_restarts": self.driver_restarts,
            "ranges_replayed": self.replayed,
            "ranges_probed": self.probed,
            "drivers_fenced": self.fenced,
            "replies_dropped": self.dropped_replies,
            "connections_reset": self.resets,
            "lost": content.lost,
            "doubled": content.doubled,
            "anomalies": self.anomalies,
            "exact": self.is_exact,
            "problems": self.problems,
            "producers_replaced": self.producers_replaced,
            **self._claims_fields(),
            **self._cluster_fields(),
        }

    def _claims_fields(self) -> dict[str, object]:
        if self.claims is None:
            return {}
        return {
            "unique": self.rows,
            "duplicates": self.claims.duplicates,
            "store_restarts": self.claims.starts - 1,
            "store_losses": self.claims.losses,
        }

    def _claims_lines(self) -> list[tuple[str, object, str]]:
        if self.claims is None:
            return []
        return [
            ("duplicates", self.claims.duplicates, "messages that came again"),
            ("store restarts", self.claims.starts - 1, f"lost claims {self.claims.losses} times"),
        ]

    def _cluster_fields(self) -> dict[str, object]:
        if self.layout is None or self.replicas is None:
            return {}
        receipts = self.replicas.receipts
        return {
            "shards": self.layout.shards,
            "replicas": self.layout.replicas,
            "data_centers": self.layout.data_centers,
            "rows_of_servers": self.replicas.rows,
            "blocks": receipts.blocks,
            "blocks_of_servers": receipts.by_replica,
            "inserts_sent": self.replicas.posts,
            "blocks_failed_over": receipts.failed_over,
            "replicas_passed_by": receipts.passed,
            "failed_over_in_doubt": receipts.in_doubt,
            "locked_inserts": receipts.locked_inserts,
            "unlocked_inserts": receipts.unlocked_inserts,
        }

    def _cluster_lines(self) -> list[tuple[str, object, str]]:
        if self.layout is None or self.replicas is None:
            return []
        layout, receipts = self.layout, self.replicas.receipts
        servers = f"{layout.shards} x {layout.replicas} in {layout.data_centers} data centers"
        return [
            ("servers compared", len(self.replicas.rows), servers),
            *((f"  {name}", count, "rows") for name, count in self.replicas.rows.items()),
            ("blocks", receipts.blocks, f"settled; {self.replicas.posts:,} inserts were sent"),
            ("blocks failed over", receipts.failed_over, "went past one replica at least"),
            *((f"  {name}", count, "") for name, count in receipts.passed.items()),
            ("  in doubt there", receipts.in_doubt, ""),
            (
                "locked inserts",
                receipts.locked_inserts,
                f"and {receipts.unlocked_inserts} unlocked",
            ),
        ]

    def lines(self) -> list[str]:
        """For people."""
        content = self.content
        struck = sum(self.faults.values())
        rows: list[tuple[str, object, str]] = [
            ("events produced", self.rows, f"in {self.seconds:.0f} s, seed {self.seed}"),
            *self._claims_lines(),
            ("loaded", content.loaded, f"{self.rows_per_event} of each event"),
            ("dead-lettered", content.dead_letters, f"of {self.broken:,} broken events"),
            ("skipped", self.audited.skipped, "messages without a value"),
            ("faults", struck, f"and {self.missed} that found nothing to strike at"),
            *((f"  {name}", count, "") for name, count in sorted(self.faults.items())),
            ("replies dropped", self.dropped_replies, ""),
            ("connections reset", self.resets, ""),
            ("driver restarts", self.driver_restarts, ""),
            ("drivers fenced", self.fenced, "woken after a successor had taken over"),
            *(
                [
                    (
                        "producers replaced",
                        self.producers_replaced,
                        f"stuck; of {self.unknown:,} events that they did not hear of "
                        f"{self.unknown_found:,} are there",
                    )
                ]
                if self.producers_replaced
                else []
            ),
            ("ranges replayed", self.replayed, ""),
            ("ranges probed", self.probed, "outside of the deduplication window"),
            *self._cluster_lines(),
            ("anomalies", self.anomalies, "found by the verifier"),
            ("lost", content.lost, ""),
            ("doubled", content.doubled, ""),
        ]
        return [
            "",
            *aligned(rows).splitlines(),
            "",
            *(f"  BROKEN: {problem}" for problem in self.problems),
            *(["Every row exactly once."] if self.is_exact else []),
        ]
