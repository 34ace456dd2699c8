"""What members write is read back as it was; what nobody wrote so is refused."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.core.fleet.placement import owner_id
from sluice.core.fleet.records import (
    VERSION,
    Gone,
    Report,
    UnreadableError,
    decode,
    encode,
    key_of,
)
from tests.support.examples import examples

TEXT = st.text(max_size=5)
REPORTS = st.builds(
    Report,
    owner=st.sampled_from(["run-1", "run-2", "run-3"]),
    member=TEXT,
    number=st.integers(1, 100),
    wall_ms=st.integers(0, 10**13),
    slots=st.integers(1, 64),
    rows_per_second=st.floats(0, 1e9),
    oldest_wait_seconds=st.floats(0, 1e6),
    spec=TEXT,
    floors=st.dictionaries(TEXT, st.integers(0), max_size=3),
    counted=st.dictionaries(TEXT, st.integers(0), max_size=3),
    busy=st.dictionaries(TEXT, st.integers(1, 9), max_size=3),
    is_leaving=st.booleans(),
)
REPORT = Report("run-1", "a", 3, software="1.0", floors={"d.t/s1": 7})
KEY = key_of("dc1", "run-1")


@settings(max_examples=examples(100))
@given(REPORTS, TEXT)
def test_what_is_written_is_read(report: Report, connector: str) -> None:
    key, value = key_of(connector, report.owner), encode(report)
    assert decode(connector, key, value) == report
    assert decode(f"{connector}.", key, value) is None
    assert decode(connector, key, None) == Gone(report.owner)


def test_a_report_is_small() -> None:
    """Eight members write four of them a second."""
    floors = {f"shop.orders_{number}/s1": 10**9 for number in range(4)}
    counted = {owner_id(str(number), 1_800_000_000_000, "0f"): 10**6 for number in range(7)}
    assert len(encode(Report(owner_id("a", 1_800_000_000_000, "0f"), "a", 1, floors=floors))) < 700
    assert len(encode(Report("run-1", "a", 1, floors=floors, counted=counted))) < 900


@pytest.mark.parametrize("name", [each.name for each in fields(Report)])
def test_each_field_is_what_it_may_be(name: str) -> None:
    body = json.loads(encode(REPORT))
    wrong: Any = None if not isinstance(body[name], bool) else 1
    with pytest.raises(UnreadableError, match=name):
        decode("dc1", KEY, json.dumps(body | {name: wrong}).encode())


@pytest.mark.parametrize(
    "changed",
    [{"version": "x"}, {"number": True}, {"floors": {"t": "7"}}, {"owner": "run-2"}]
    + [{"busy": {"t/1": level}} for level in (0, -1, 61, 10**9)],
)
def test_what_nobody_wrote_is_refused(changed: dict[str, Any]) -> None:
    body = json.loads(encode(REPORT)) | changed
    with pytest.raises(UnreadableError):
        decode("dc1", KEY, json.dumps(body).encode())


def test_what_a_newer_version_says_beside_it_is_passed_over() -> None:
    """So members can be upgraded one at a time."""
    body = json.loads(encode(REPORT)) | {"more": 1}
    assert decode("dc1", KEY, json.dumps(body).encode()) == REPORT


@pytest.mark.parametrize("value", [b"", b"[]", b"1", b"{}", b"\xff", b'{"version": 1}'])
def test_garbage_is_refused(value: bytes) -> None:
    with pytest.raises(UnreadableError, match="no report"):
        decode("dc1", KEY, value)


@pytest.mark.parametrize("key", [None, b"", b"dc1", b"dc1/claim/run-1", b"dc1/report/", b"\xff"])
def test_a_key_of_another_kind_is_passed_over(key: bytes | None) -> None:
    assert decode("dc1", key, b"anything") is None


def test_a_newer_version_is_named() -> None:
    newer = json.loads(encode(REPORT)) | {"version": VERSION + 1, "software": "7.1"}
    with pytest.raises(UnreadableError, match=r"version 2 by 7\.1; version 1 is known"):
        decode("dc1", KEY, json.dumps(newer).encode())
