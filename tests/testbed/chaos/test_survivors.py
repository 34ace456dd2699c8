"""Rows by the moment at which they were acknowledged."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.cli.main import main
from sluice.testbed.chaos.survivors import measured

URLS = {"s1": ("http://a", "http://b")}


def receipt(at_ms: int, rows: int, *failed: str) -> dict[str, Any]:
    past = {"failed_over": list(failed), "in_doubt": False} if failed else {}
    entry = {"type": "receipt", "token": str(at_ms), "shard": "s1", "replica": "http://b"}
    return {**entry, "acknowledged_at_ms": at_ms, "rows": rows, **past}


def test_windows_count_what_was_acknowledged_within_them() -> None:
    receipts = [
        receipt(999, 7),  # before the phase
        receipt(1_000, 10),
        receipt(5_999, 20, "http://a CONNECT_FAILED"),
        receipt(14_000, 50),
        receipt(16_500, 5),  # in the last window, which is cut short
        receipt(17_000, 7),  # after it
    ]
    phase = measured("during", receipts, URLS, 1_000, 17_000)
    assert phase.windows == (6.0, 0.0, 10.0)
    assert phase.rows_per_second == 6.0
    assert phase.pause_seconds == pytest.approx(8.001)
    assert (phase.receipts.blocks, phase.receipts.failed_over) == (4, 1)


def test_a_phase_without_a_block_says_so() -> None:
    phase = measured("during", [], URLS, 0, 10_000)
    assert (phase.windows, phase.rows_per_second, phase.pause_seconds) == ((0.0, 0.0), 0.0, 10.0)


def test_survivors_need_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chaos", "--survivors"]) == 2
    assert main(["chaos", "--survivors", "--shards", "2", "--replicas", "1"]) == 2
    assert "--survivors needs replicas" in capsys.readouterr().err
