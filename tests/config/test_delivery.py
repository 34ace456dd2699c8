"""How blocks come into a table: what may be written, every refusal."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.support import MINIMAL, findings_of, load_text


def test_what_is_left_out_and_what_may_be_said(tmp_path: Path) -> None:
    assert load_text(tmp_path, MINIMAL).tables[0].delivery == "block"
    assert load_text(tmp_path, MINIMAL + 'delivery = "staged"\n').tables[0].delivery == "staged"


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ('deduplicate = { key = ["id"], window = "7d" }', "deduplicate"),
        ('on_error = "park"', "on_error"),
    ],
)
def test_what_does_not_go_with_it(tmp_path: Path, line: str, where: str) -> None:
    findings = str(findings_of(tmp_path, f'{MINIMAL}{line}\ndelivery = "staged"\n'))
    assert where in findings and 'does not go with delivery = "staged"' in findings


def test_only_staged_tables_wait_for_each_other(tmp_path: Path) -> None:
    text = MINIMAL.replace("[batch]", 'commit = "bundle"\n[batch]', 1)
    (finding,) = map(str, findings_of(tmp_path, text))
    assert "commit" in finding and 'needs delivery = "staged" in all its tables' in finding
    loaded = load_text(tmp_path, text + 'delivery = "staged"\n')
    assert loaded.connectors[0].commit == "bundle"


def test_another_word_is_refused(tmp_path: Path) -> None:
    assert "delivery" in str(findings_of(tmp_path, MINIMAL + 'delivery = "exchange"\n'))
