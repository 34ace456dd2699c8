"""`sluice verify` and `sluice ledger`: arguments, statuses, and what is printed."""

from __future__ import annotations

import json
import time
import types
from dataclasses import replace
from typing import Any

import pytest

from sluice.cli.arguments import a_time_or_age
from sluice.cli.exit import ExitStatus
from sluice.cli.ledger import line_of
from sluice.core.anomalies import Anomaly, AnomalyKind, Judge
from sluice.core.ledger import Background, encode_entry, late_insert_entry, record_entry, spec_entry
from sluice.core.ranges import Range
from sluice.core.records import Kind
from sluice.verify import verifier
from sluice.verify.verifier import LogVerified, PartitionVerified, VerifyReport
from tests.cli.support import run
from tests.core.histories import SOURCE, TABLES, Writer
from tests.core.test_ledger import LOADED, RECEIPT
from tests.core.test_records import a_record


def a_gap() -> Anomaly:
    writer = Writer(ledger=False)
    writer.intend(10)
    writer.write(writer.follow(kind=Kind.INTEND, begin=150, end=160))
    judge = Judge(lambda *_: TABLES, has_receipts=False, complete=True)
    (anomaly,) = [found for event in writer.events for found in judge.take(event)]
    return anomaly


def a_report(*anomalies: Anomaly, unjudged: tuple[Anomaly, ...] = ()) -> VerifyReport:
    last = a_gap().after
    return VerifyReport(
        source="ledger",
        logs=(LogVerified("dc1", "sluice.orders.ledger", 0, 0, 99, 1234),),
        partitions=(
            PartitionVerified(
                "dc1", "orders", 3, last, last, {"intend": 2}, 1000, {"orders": 998, "copies": 1000}
            ),
            PartitionVerified("dc1", "orders", 4, None, None, {}, 0, {}),
        ),
        anomalies=anomalies,
        unjudged=unjudged,
    )


def test_a_clean_history(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sources: list[str] = []

    def look(configuration: Any, source: str) -> VerifyReport:
        sources.append(source)
        return a_report()

    monkeypatch.setattr(verifier, "verify", look)
    ended = run(capsys, "verify", config, "--source", "ledger")
    assert ended.status == ExitStatus.DONE
    header, first, second, _, verdict = ended.out.splitlines()
    assert header.split() == [
        *("connector", "topic", "partition", "from", "settled", "steps", "messages", "rows")
    ]
    expected = "dc1 orders 3 150 150 2 intend 1,000 copies 1,000 orders 998"
    assert " ".join(first.split()) == expected
    assert second.split()[:5] == ["dc1", "orders", "4", "-", "-"]
    assert verdict == "clean: 1,234 instances from ledger, no anomaly"
    assert run(capsys, "verify", config).status == ExitStatus.DONE
    assert sources == ["ledger", "offsets"]


def test_an_anomaly_with_its_instances_side_by_side(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verifier, "verify", lambda *_: a_report(a_gap(), unjudged=(a_gap(),)))
    ended = run(capsys, "verify", config)
    assert ended.status == ExitStatus.BROKEN
    assert (
        "gap: dc1 orders[3], tables orders, copies: offsets [110, 150) were never intended\n"
    ) in ended.out
    (ranges,) = [line for line in ended.out.splitlines() if line.startswith("range")]
    assert [cell.strip() for cell in ranges.split("  ") if cell][1:] == ["[100, 110)", "[150, 160)"]
    assert "not judged: 1 steps" in ended.out
    assert ended.out.endswith("anomalies in 1,234 instances from ledger: 1 gap\n")
    ended = run(capsys, "verify", config, "--json")
    assert ended.status == ExitStatus.BROKEN
    report = json.loads(ended.out)
    (anomaly,) = report["anomalies"]
    assert (anomaly["kind"], anomaly["topic"], anomaly["partition"]) == ("gap", "orders", 3)
    assert anomaly["tables"] == list(TABLES)
    assert (anomaly["before"]["end"], anomaly["after"]["begin"]) == (110, 150)
    assert anomaly["after"]["log_offset"] == 20
    assert report["partitions"][0]["rows"] == {"orders": 998, "copies": 1000}
    assert report["partitions"][1]["first"] is None


def test_what_has_no_record_is_shown_as_it_stands(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gap = a_gap()
    foreign = replace(gap.after, record=None, metadata="a\x1bb", problem="no record")
    anomaly = replace(gap, kind=AnomalyKind.FOREIGN, before=None, after=foreign, tables=())
    monkeypatch.setattr(verifier, "verify", lambda *_: a_report(anomaly))
    ended = run(capsys, "verify", config)
    assert "foreign: dc1 orders[3], tables -: " in ended.out
    assert "a\\x1bb" in ended.out and "\x1b" not in ended.out
    (found,) = json.loads(run(capsys, "verify", config, "--json").out)["anomalies"]
    assert found["before"] is None and "kind" not in found["after"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("verify", "--source", "spark"), "'spark' is not one of 'offsets', 'ledger'"),
        (("verify", "--metrics-port", "9000"), "--metrics-port needs --follow"),
        (("verify", "--follow", "--metrics-port", "x"), "'x' is not a port"),
        (("ledger", "--partition", "-1"), "'-1' is not a number from 0"),
        (("ledger", "--partition", "one"), "'one' is not a number from 0"),
        (("ledger", "--since", "yesterday"), "neither a time like 2026-01-31T00:00:00Z nor"),
        (("ledger", "--since", "2026-01-31T00:00:00"), "has no time zone"),
        (("ledger", "--table", "nowhere"), 'no [[table]] is named "nowhere"'),
        (("ledger", "--topic", "nowhere"), 'no connector loads the topic "nowhere"'),
        (("ledger", "--connector", "nowhere"), 'none is named "nowhere"'),
    ],
)
def test_a_wrong_command_line(
    words: tuple[str, ...], complaint: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run(capsys, words[0], config, *words[1:])
    assert ended.status == ExitStatus.CONFIGURATION
    assert complaint in ended.err.splitlines()[0]
    assert ended.err.splitlines()[-1].startswith("Try: ")
    assert ended.out == ""


def test_a_time_or_an_age() -> None:
    assert a_time_or_age("2026-01-31T00:00:00Z") == 1_769_817_600_000
    assert a_time_or_age("2026-01-31T01:00:00+01:00") == 1_769_817_600_000
    assert abs(a_time_or_age("1h") - (time.time() - 3600) * 1000) < 60_000


def body(entry: Any) -> dict[str, Any]:
    _, value = encode_entry("dc1", 1_769_817_600_123, entry)
    return {"offset": 5, **json.loads(value)}


def test_entries_are_lines() -> None:
    from sluice.core.ledger import receipt_entry, settled_entry

    block_range = Range(SOURCE, 10, 20)
    record = a_record(Kind.PROBE, rest="aa", owner="run-1")
    background = Background(rest={"orders": ((10, 12), (15, 16))})
    expected = {
        line_of(body(record_entry(SOURCE, record, background, why="resolve --as probe"))): (
            "probe [10, 20) 7 1 decided: resolve --as probe, owner run-1, "
            "3 offsets missing in orders"
        ),
        line_of(body(receipt_entry(block_range, 7, 2, RECEIPT))): (
            "receipt [10, 20) 7 2 orders (shop.orders) in shard s1, 9 rows, 1234 bytes, "
            "checksum abc, http://localhost:8123 after 15 ms"
        ),
        line_of(body(settled_entry(block_range, 7, 2, LOADED))): (
            "settled [10, 20) 7 2 10 messages, 9 rows, 900 bytes, 1 dead letters, 1 skipped, 0.0 s"
        ),
        line_of(body(late_insert_entry(block_range, 1_769_817_600_000, {}))): (
            "late_insert [10, 20) - - may still be inserted until 2026-01-31T00:00:00.000Z"
        ),
    }
    for line, words in expected.items():
        assert " ".join(line.split()) == f"2026-01-31T00:00:00.123Z dc1 orders[3] {words}"
    text = line_of(body(spec_entry("0123456789abcdef", "{}")))
    assert text.split()[:4] == ["2026-01-31T00:00:00.123Z", "dc1", "load_spec", "-"]
    assert text.endswith("0123456789abcdef, 2 characters")


def test_the_ledger_is_printed_as_it_is_read(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = body(spec_entry("d", "{}"))
    asked: list[Any] = []

    def read_ledger(configuration: Any, selection: Any, stop: Any) -> list[dict[str, Any]]:
        asked.append((selection, stop))
        return [entry, entry]

    module = types.SimpleNamespace(read_ledger=read_ledger)
    monkeypatch.setattr("sluice.ops.ledger_view.read_ledger", module.read_ledger)
    ended = run(capsys, "ledger", config, "--partition", "3")
    assert ended.status == ExitStatus.DONE
    header, *lines = ended.out.splitlines()
    assert header.split()[:3] == ["time", "partition", "entry"] and len(lines) == 2
    ended = run(capsys, "ledger", config, "--json", "--follow")
    assert [json.loads(line) for line in ended.out.splitlines()] == [entry, entry]
    (selection, no_stop), (_, stop) = asked
    assert (selection.partition, selection.table, no_stop) == (3, None, None)
    assert stop is not None and not stop.is_set()
