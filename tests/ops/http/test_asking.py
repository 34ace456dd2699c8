"""What `sluice status` is told by a driver that runs, over its own HTTP server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.config import Configuration, HttpConfiguration
from sluice.config.clickhouse import CertificatesConfiguration
from sluice.config.model import VerifyConfiguration
from sluice.core.errors import TerminalError
from sluice.core.ranges import TopicPartition
from sluice.ops.http.asking import DriverSilentError, read_proof, read_refused
from sluice.ops.proof import _begun
from sluice.verify.continuous import Turn
from tests.driver.loop_world import World
from tests.ops.http.scene import Served, run_of
from tests.support.certificates import Authority


@contextmanager
def proving(folder: Path, tls: CertificatesConfiguration | None = None) -> Iterator[Configuration]:
    """The configuration of a driver whose audit has found something, and that answers."""
    served = Served(folder, [], tls=tls)
    now_ms = time.time_ns() // 1_000_000
    records = {what: _begun(what, 60.0, now_ms) for what in ("verify", "audit")}
    records["audit"].take(
        Turn("audit", now_ms, now_ms, problems={"missing": 2}, where=("a[0] at 7",))
    )
    served.proof._records = records  # type: ignore[assignment]
    where = HttpConfiguration(("127.0.0.1", served.port), tls=tls or CertificatesConfiguration())
    try:
        yield replace(served.configuration, http=where, verify=VerifyConfiguration(60.0))
    finally:
        served.server.stop()


def test_it_says_what_was_found_last_and_when(tmp_path: Path) -> None:
    with proving(tmp_path) as configuration:
        verify, audit = read_proof(configuration)
    assert (verify.what, verify.verdict, verify.ended_ms) == ("verify", "starting", None)
    assert "continuous verify: starting, has not ended yet: " in verify.line()
    assert audit.line().startswith("continuous audit: found, ended ")
    assert "2 missing: a[0] at 7" in audit.line() and audit.age_seconds < 60


def test_nothing_is_asked_where_none_is_configured_and_silence_is_told(tmp_path: Path) -> None:
    with proving(tmp_path) as configuration:
        assert read_proof(replace(configuration, verify=None)) == []
    with pytest.raises(DriverSilentError, match=r"does not answer at http://127\.0\.0\.1:\d+"):
        read_proof(configuration)
    with pytest.raises(DriverSilentError, match="is missing"):
        read_proof(replace(configuration, http=None))


def test_it_says_which_topics_the_driver_refuses(tmp_path: Path) -> None:
    loop = World([TopicPartition("a", 0)]).loop()
    loop._topics.refused.refuse({"b": TerminalError("b comes twice", "Narrow it.")})
    served = Served(tmp_path, [run_of(loop), run_of(None, "dc2")])
    where = HttpConfiguration(("127.0.0.1", served.port))
    configuration = replace(served.configuration, http=where)
    try:
        told = read_refused(configuration)
    finally:
        served.server.stop()
    assert told == ["connector dc1: topic b is not loaded: b comes twice. Try: Narrow it."]
    assert read_refused(replace(configuration, http=None)) == []
    with pytest.raises(DriverSilentError):
        read_refused(configuration)


@pytest.mark.parametrize("with_clients", [False, True])
def test_a_driver_behind_tls_is_known_by_its_certificate(
    tmp_path: Path, with_clients: bool
) -> None:
    """Whatever name that has."""
    authority = Authority(tmp_path / "authority")
    certificate, key = authority.sign("driver")
    trusted = str(authority.certificate) if with_clients else ""
    tls = CertificatesConfiguration(trusted, str(certificate), str(key))
    with proving(tmp_path, tls) as configuration:
        assert len(read_proof(configuration)) == 2
        assert configuration.http is not None
        other, _ = Authority(tmp_path / "other", "other").sign("driver")
        stranger = replace(tls, ca="", certificate=str(other), key="")
        asked = replace(configuration, http=replace(configuration.http, tls=stranger))
        with pytest.raises(DriverSilentError, match="certificate"):
            read_proof(asked)
