"""`sluice run`: checks, then loads until told to stop."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sluice.cli.arguments import a_duration_seconds, command, config_argument, load_configuration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.config import Configuration
    from sluice.driver.connector import ConnectorRun
    from sluice.ops.applying import OwnFile
    from sluice.ops.doctor_findings import Finding

log = logging.getLogger(__name__)


@command("run", "sluice run sluice.toml --until-caught-up")
@config_argument
@click.option(
    "--until-caught-up",
    is_flag=True,
    help="stop once everything is loaded that the topics held at the start",
)
@click.option(
    "--grace",
    type=a_duration_seconds,
    default="30s",
    help="how long to wait for ranges in flight when told to stop",
)
def run(config: Path, until_caught_up: bool, grace: float) -> int:
    """Load topics into tables, in the foreground.

    Each connector is examined like `sluice doctor` does it, then loaded.
    """
    configuration = load_configuration(config)
    from sluice.driver.pipeline import run_pipeline
    from sluice.ops.applying import OwnFile
    from sluice.spark.context import SUBMITTED
    from sluice.spark.java import set_java_home

    if SUBMITTED not in os.environ:
        set_java_home()
    from sluice.ops.doctor_spark import look_at_spark

    _warn(look_at_spark(configuration))  # of the process, and not of each connector

    endings, own_file = ExitStack(), OwnFile(configuration)

    def observe(runs: Sequence[ConnectorRun]) -> None:
        from sluice.ops.service_manager import notify_service_manager

        notify_service_manager(runs, os.environ)
        proof = None
        if configuration.verify is not None or configuration.audit is not None:
            from sluice.ops.proof import Proof

            proof = Proof(configuration)
        if configuration.http is not None:
            from sluice.ops.http.server import HttpServer

            server = HttpServer(configuration.http, configuration, runs, proof)
            # Who has drained this driver by a request still gets the answer
            endings.callback(server.stop)
            log.info("http", extra={"url": configuration.http.url(server.port)})

    with endings:
        return int(
            run_pipeline(
                configuration,
                until_caught_up=until_caught_up,
                grace_seconds=grace,
                examine=_refuse_what_breaks_the_promise,
                observe=observe,
                reload=lambda: _apply_file(config, own_file),
            )
        )


def _apply_file(path: Path, own_file: OwnFile) -> None:
    """Apply the file as it is by now; what came of it is in the log."""
    from sluice.core.errors import SluiceError

    try:
        for line in own_file.apply_if_changed(load_configuration(path), by="SIGHUP"):
            log.warning(line)
    except SluiceError as error:
        log.error("%s is not applied, nothing changes: %s. Try: %s", path, error, error.hint)


def _refuse_what_breaks_the_promise(configuration: Configuration, connector: str) -> None:
    """Doctor before a connector's first range.

    :raises TransientError: something does not answer now; the pipeline asks again.
    :raises KafkaRefusedError: Kafka lets nobody in.
    :raises TerminalError: a finding breaks the promise.
    """
    from sluice.ops.doctor import examine, refusal

    findings = examine(configuration, connector)
    error = refusal(findings)
    _warn(findings)
    if error is not None:
        raise error


def _warn(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.level == "warning":
            log.warning(finding.what, extra={"check": finding.check, "where": finding.where})
