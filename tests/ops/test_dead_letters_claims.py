"""Dead letters go back into their topics without the claims of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.clickhouse.http import Server
from sluice.config import load
from sluice.core.dead_letters import DUPLICATE, PARKED
from sluice.core.errors import SluiceError
from sluice.ops.claims import holders
from sluice.verify.audit import audit
from tests.cli.support import run
from tests.ops.claims_scene import Claiming
from tests.ops.dead_letters import DeadLetters
from tests.ops.test_claims import now_s
from tests.support.fixtures import fresh_database
from tests.support.kafka import Kafka


class ClaimingLetters(Claiming, DeadLetters):
    """Messages of a table whose events are known again, as dead letters."""

    def held(self, *ids: int) -> list[bool]:
        """Whether anybody has the keys of these events."""
        with self.store() as store:
            _, is_held = holders(store, self.keys(*ids))
        return [bool(each) for each in is_held]

    def claim(self, key: int, offset: int) -> None:
        """The message at an offset has the key of this event."""
        with self.store() as store:
            store.claim(self.keys(key), self.owners(offset), now_s() + 3600, now_s())

    def park(self, offset: int, value: bytes, topic_id: str = "") -> None:
        """A message that its table did not take."""
        self.write(offset, value=value, reason=PARKED, table="orders", topic_id=topic_id)


def claiming_letters(
    kafka: Kafka, folder: Path, server: Server, url: str
) -> Iterator[ClaimingLetters]:
    """Some in a database of their own, which are closed at the end."""
    for database in fresh_database(url):
        made = ClaimingLetters(kafka, folder, server, database)
        yield made
        made.close()


@pytest.fixture
def letters(
    kafka: Kafka, tmp_path: Path, embedded: Server, embedded_url: str
) -> Iterator[ClaimingLetters]:
    yield from claiming_letters(kafka, tmp_path, embedded, embedded_url)


@pytest.mark.slow
def test_a_parked_message_gives_its_claim_up_before_it_comes_again(
    letters: ClaimingLetters,
) -> None:
    letters.claim(50, offset=5)
    letters.claim(60, offset=99)
    letters.claim(70, offset=7)
    for offset, key in ((5, 50), (6, 60), (8, 80)):
        letters.park(offset, b'{"id": %d, "note": "x"}' % key)
    assert letters.replay().replayed == 3
    assert len(letters.written()) == 3
    # The event at 60 is another message's, and nobody was asked about the one at 70
    assert letters.held(50, 60, 70, 80) == [False, True, True, False]


def test_a_message_of_a_topic_that_was_made_anew_gives_its_claim_up(
    letters: ClaimingLetters,
) -> None:
    """It has claimed as one of the topic of then, and its copy is one of today's."""
    letters.claim(50, offset=5)
    letters.park(5, b'{"id": 50, "note": "x"}', topic_id=letters.topic_id)
    letters.kafka.delete_topic(letters.topic)
    letters.kafka.topic(name=letters.topic)
    assert letters.replay().replayed == 1
    assert letters.held(50) == [False]


def test_a_message_that_its_route_takes_no_more_gives_its_claim_up(
    letters: ClaimingLetters,
) -> None:
    """It comes back for its entry only, which takes it all the same."""
    letters.claim(50, offset=5)
    letters.park(5, b'{"id": 50, "note": "x"}')
    before, text = letters.configuration, letters.path.read_text()
    routed = text.replace("deduplicate =", 'route = { header = "vip" }\ndeduplicate =', 1)
    letters.path.write_text(routed)
    letters.configuration = load(letters.path, {})
    assert letters.replay().replayed == 1
    letters.configuration = before
    assert letters.held(50) == [False]


def test_what_cannot_be_decoded_has_no_claim(letters: ClaimingLetters) -> None:
    letters.claim(50, offset=5)
    letters.write(4, 5, value=b"no JSON", table="orders")
    letters.write(6, value=b'{"id": 50}', table="")
    assert letters.replay().replayed == 3
    assert letters.held(50) == [True]


def test_nothing_is_produced_while_a_claim_cannot_be_given_up(
    letters: ClaimingLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.ops.dead_letters_replaying._PAUSE_SECONDS", 0.0)
    letters.park(5, b'{"id": 50, "note": "x"}')
    folder = letters.path.parent / "sluice-claims"
    folder.mkdir()
    (folder / "stranger").write_text("x")
    with pytest.raises(SluiceError, match="stranger"):
        letters.replay()
    assert letters.written() == []
    (folder / "stranger").unlink()
    assert letters.replay().replayed == 1


@pytest.mark.slow
def test_a_copy_of_a_duplicate_is_no_dead_letter_to_an_audit(
    letters: ClaimingLetters, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ledger tells of the message, and goes on to when the copy is purged."""
    values = [b'{"id": %d, "note": "x"}' % key for key in (10, 10, 11)]
    letters.kafka.produce(letters.topic, values)
    letters.insert({0: 10})
    letters.settled(0, 3, 1)
    letters.write(1, reason=DUPLICATE, table="orders")
    letters.write(2, table="orders")
    for _ in range(2):
        report = audit(letters.configuration)
        assert (report.dead_lettered, report.duplicates) == (1, 1)
        assert (report.missing, report.doubled) == (0, 0)
        run(capsys, "dead-letters", "purge", str(letters.path), "--all", "--yes")
    assert run(capsys, "dead-letters", "list", str(letters.path)).out == ""
