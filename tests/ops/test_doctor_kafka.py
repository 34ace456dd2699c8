"""What the doctor makes of brokers' settings, also where they do not show all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.config import load
from sluice.core.errors import ConfigurationError, TerminalError
from sluice.core.fleet.records import Report
from sluice.kafka.broker_facts import BrokerFacts
from sluice.kafka.errors import KafkaTerminalError, KafkaUnavailableError
from sluice.kafka.fleet import FleetTopic
from sluice.ops.doctor_findings import Examination, Finding
from sluice.ops.doctor_kafka import check_token_validator, check_verification, look_at_kafka
from sluice.ops.doctor_rights import check_kafka_rights
from tests.ops.pipelines import Pipeline
from tests.support.kafka import Kafka

NAME = "transaction.partition.verification.enable"


@pytest.mark.parametrize("shown", ["all but one", "none"])
def test_a_setting_that_is_not_shown_is_judged_by_what_the_broker_speaks(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: str
) -> None:
    """As by a service that shows few settings, or refuses to show any."""
    pipeline = Pipeline(kafka, tmp_path)
    connector = pipeline.configuration.connector("dc1")
    seen = BrokerFacts.settings

    def settings(cluster: BrokerFacts) -> dict[int, dict[str, str]]:
        if shown == "none":
            raise KafkaTerminalError("reading settings of broker 1: not authorized")
        found = {broker: dict(values) for broker, values in seen(cluster).items()}
        assert all(values.pop(NAME) == "true" for values in found.values())
        return found

    monkeypatch.setattr(BrokerFacts, "settings", settings)
    look = look_at_kafka(pipeline.configuration, connector)
    found = {finding.check: finding for finding in look.findings}
    assert found["transactions"].level == "warning"
    assert f"does not show {NAME}; it is Kafka 3.7 or newer" in found["transactions"].what
    assert not [each for each in look.findings if each.level == "error"]


def test_members_that_report_are_asked_for_their_silent_after(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(kafka, tmp_path)
    text = pipeline.path.read_text()

    def found(silent_after: str) -> dict[str, Finding]:
        """What is said of it, by level."""
        pipeline.path.write_text(f'{text}[fleet]\nmember = "a"\nsilent_after = "{silent_after}"\n')
        configuration = load(pipeline.path, {})
        look = look_at_kafka(configuration, configuration.connector("dc1"))
        return {each.level: each for each in look.findings if each.check == "silent-after"}

    assert found("8s") == {}  # there is no topic yet
    topic = FleetTopic(kafka.access(), pipeline.configuration.fleet_topic, is_made=True)
    topic.send(Report("run-1", "b", 1, silent_seconds=60.5))
    topic.send(Report("run-2", "c", 1, silent_seconds=0.0))  # silent by now
    assert topic.flush(10)
    topic.close()
    assert found("60500ms").keys() == {"ok"}
    finding = found("8s")["warning"]
    assert "8 s here, and 60.5 s for b:" in finding.what and "[fleet]" in finding.fix
    assert finding.where == f"dc1: topic {pipeline.configuration.fleet_topic}"

    def away(*_: object) -> None:
        raise KafkaUnavailableError("reading the topic")

    monkeypatch.setattr(FleetTopic, "poll", away)
    assert found("8s")["error"].passing


def speaks(version: int) -> Callable[[int, int], int]:
    return lambda broker, request: version


def away(broker: int, request: int) -> int:
    raise KafkaUnavailableError("asking broker 1")


def refused(broker: int, request: int) -> int:
    raise TerminalError("the certificate of b:9092")


@pytest.mark.parametrize(
    ("verifies", "version", "level", "words"),
    [
        ("true", refused, "", ""),
        ("false", speaks(17), "error", "switched off"),
        (None, speaks(16), "warning", "3.7 or newer"),
        (None, speaks(15), "error", "older than Kafka 3.7"),
        (None, away, "error", "asking broker 1"),
        (None, refused, "error", "the certificate of b:9092"),
    ],
)
def test_verification(
    verifies: str | None, version: Callable[[int, int], int], level: str, words: str
) -> None:
    found = Examination("here")
    check_verification(found, 1, verifies, version)
    assert [each.level for each in found.findings] == ([level] if level else [])
    assert all(words in each.what for each in found.findings)
    assert [each.passing for each in found.findings] == ([version is away] if level else [])
    assert all(("Redpanda" in each.fix) == ("older than" in each.what) for each in found.findings)


HANDLERS = "org.apache.kafka.common.security.oauthbearer"
SETTING = "sasl.oauthbearer.jwt.validator.class"
DEFAULT = {SETTING: f"{HANDLERS}.DefaultJwtValidator"}
CHOSEN = f"{HANDLERS}.BrokerJwtValidator"


def takes_tokens(prefix: str = "listener.name.outside.oauthbearer.") -> dict[str, str]:
    handler = f"{HANDLERS}.OAuthBearerValidatorCallbackHandler"
    return {f"{prefix}sasl.server.callback.handler.class": handler}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, 0),
        (DEFAULT, 0),  # no listener takes tokens
        (takes_tokens(), 0),  # Kafka before 4.1 has no such setting, and looks at tokens
        (DEFAULT | takes_tokens(), 1),
        (DEFAULT | takes_tokens("oauthbearer."), 1),
        (DEFAULT | takes_tokens() | takes_tokens("listener.name.other.oauthbearer."), 1),
        (DEFAULT | takes_tokens("listener.name.outside.plain."), 0),
        ({SETTING: CHOSEN} | takes_tokens(), 0),
        (DEFAULT | takes_tokens() | {f"listener.name.outside.{SETTING}": CHOSEN}, 0),
        (DEFAULT | takes_tokens() | {f"listener.name.outside.oauthbearer.{SETTING}": CHOSEN}, 0),
        (DEFAULT | takes_tokens() | {f"oauthbearer.{SETTING}": CHOSEN}, 0),
        (DEFAULT | takes_tokens() | {f"listener.name.other.{SETTING}": CHOSEN}, 1),
        (DEFAULT | {"oauthbearer.sasl.server.callback.handler.class": "com.example.Own"}, 0),
    ],
)
def test_a_broker_that_may_believe_any_token(settings: dict[str, str], told: int) -> None:
    found = Examination("here")
    check_token_validator(found, 1, settings)
    assert [each.level for each in found.findings] == ["warning"] * told


@pytest.mark.parametrize("known", [True, False])
def test_rights_that_cannot_be_asked_are_not_said_to_be_there(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """With a login that only librdkafka knows, as Kerberos."""

    def asked(cluster: BrokerFacts, transactional_id: str, group: str) -> str:
        if known:
            return ""
        raise ConfigurationError("sasl.mechanism = GSSAPI")

    monkeypatch.setattr(BrokerFacts, "refused_of_recording", asked)
    pipeline = Pipeline(kafka, tmp_path)
    connector = pipeline.configuration.connector("dc1")
    (finding,) = check_kafka_rights(pipeline.configuration, connector, BrokerFacts(kafka.access()))
    assert finding.level == "ok"
    assert ("has all that are needed" in finding.what) == known
    assert ("the start of `sluice run` tells" in finding.what) != known
