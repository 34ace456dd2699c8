"""From facts about a quorum to words and statements. The states were met on real servers first;
tests/e2e/test_stuck_quorum.py makes them there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.core.quorum import (
    STUCK_SECONDS,
    Judgement,
    OwnView,
    PendingQuorum,
    QueueEntry,
    Replica,
    TableQuorum,
    covers,
    judge,
    parse_status,
)

PART = "all_7_7_0"
PATH = "/tables/t"
STATUS = (
    "version: 1\npart_name: all_7_7_0\nrequired_number_of_replicas: 2\n"
    "actual_number_of_replicas: 1\nreplicas:\nr1\n"
)
CANCELLED = "Code: 236, DB::Exception: Fetching of part was cancelled"


def pending(age: int = 60, node: str = "status") -> PendingQuorum:
    return PendingQuorum(node, PART, 2, ("r1",), age, block_ids=("all_1_2",))


def replica(number: int, *, holds: bool = False, **own: object) -> Replica:
    parts = frozenset({PART} if holds else ())
    view = OwnView(**own)  # type: ignore[arg-type]
    return Replica(f"r{number}", f"http://h{number}:8123", True, parts, view)


def dead(number: int, *, holds: bool = False) -> Replica:
    return Replica(f"r{number}", "", False, frozenset({PART} if holds else ()), None)


def facts(*replicas: Replica, age: int = 60) -> TableQuorum:
    found = TableQuorum("s1", ("d", "t"), PATH, wanted=2)
    return replace(found, pending=(pending(age),), replicas=replicas)


def entry(**more: object) -> tuple[QueueEntry, ...]:
    return (QueueEntry(PART, **more),)  # type: ignore[arg-type]


def said(judgement: Judgement) -> str:
    return "\n".join(finding.what for finding in judgement.findings)


def statements(judgement: Judgement) -> list[tuple[str, str]]:
    return [
        (action.url.split("//")[1][:2], action.statement.removeprefix("SYSTEM ").split(" `")[0])
        for action in judgement.actions
    ]


def test_the_text_of_a_status_node() -> None:
    found = parse_status("status", STATUS, 9)
    assert found == PendingQuorum("status", PART, 2, ("r1",), 9)
    assert found.is_serial
    nobody = parse_status("parallel/x", STATUS.replace("r1\n", ""), 9)
    assert nobody is not None and nobody.counted == () and not nobody.is_serial
    for text in ("", "version: 2\nparts count: 0\n", STATUS.replace("replicas:\n", "")):
        assert parse_status("status", text, 9) is None


@pytest.mark.parametrize(
    ("part", "other", "expected"),
    [
        (PART, PART, True),
        ("all_0_9_2", PART, True),
        ("all_0_9_2_11", PART, True),
        ("all_0_6_2", PART, False),
        ("all_7_7_0_3", PART, False),
        ("x_0_9_2", PART, False),
        ("20260101_20260131_0_9_2", "20260101_20260131_7_7_0", False),
    ],
)
def test_which_part_came_of_which(part: str, other: str, expected: bool) -> None:
    assert covers(part, other) is expected


def test_nothing_pending_is_not_stuck() -> None:
    judgement = judge(replace(facts(replica(1), replica(2)), pending=()))
    assert judgement == Judgement((), (), (), ())
    assert not judgement.is_stuck


def test_a_young_part_and_one_that_is_being_fetched_are_on_their_way() -> None:
    lacking = replica(2, entries=entry(exception=CANCELLED, tries=1))
    young = judge(facts(replica(1, holds=True), lacking, age=STUCK_SECONDS - 1))
    assert not young.is_stuck and "may be on its way" in said(young)
    assert judge(facts(replica(1, holds=True), lacking, age=STUCK_SECONDS)).is_stuck
    fetching = replica(2, entries=entry(is_executing=True))
    assert not judge(facts(replica(1, holds=True), fetching)).is_stuck
    again = replica(2, entries=entry(is_executing=True, exception="no route", tries=9))
    assert judge(facts(replica(1, holds=True), again)).is_stuck


@pytest.mark.parametrize(
    ("own", "why", "rungs"),
    [
        (
            {"entries": entry(exception=CANCELLED, tries=1)},
            "its fetches are stopped",
            [[("h2", "START FETCHES")], [("h2", "RESTART REPLICA")], []],
        ),
        (
            {
                "entries": entry(
                    postpone_reason="Not executing fetch of part all_7_7_0 because replicated "
                    "fetches are cancelled now.",
                )
            },
            "its fetches are stopped",
            [[("h2", "START FETCHES")]],
        ),
        (
            {"entries": entry()},
            "its queue does not run",
            [[("h2", "START REPLICATION QUEUES")], [("h2", "RESTART REPLICA")], []],
        ),
        (
            {"entries": entry(exception="Cannot read all data", tries=5)},
            "to fetch it failed 5 times: Cannot read all data",
            [
                [("h2", "START FETCHES"), ("h1", "START REPLICATED SENDS")],
                [("h1", "RESTART REPLICA")],
                [("h2", "RESTART REPLICA")],
                [],
            ],
        ),
        (
            {"log_behind": 4},
            "has not read 4 entries of the table's log",
            [[("h2", "START REPLICATION QUEUES")], [("h2", "RESTART REPLICA")], []],
        ),
        ({}, "nothing in its queue brings it", [[("h2", "RESTART REPLICA")], []]),
    ],
)
def test_why_a_replica_lacks_a_part_and_what_is_tried(
    own: dict[str, object], why: str, rungs: list[list[tuple[str, str]]]
) -> None:
    found = facts(replica(1, holds=True), replica(2, **own))  # type: ignore[arg-type]
    tried: set[tuple[str, str]] = set()
    for rung in rungs:
        judgement = judge(found, tried)
        assert judgement.is_stuck and why in said(judgement)
        assert statements(judgement) == rung
        assert judgement.last_resort == ()
        tried |= {action.key for action in judgement.actions}
    if not rungs[-1]:
        assert any("make its replica anew" in step for step in judge(found, tried).by_hand)


def test_a_holder_that_is_not_counted_is_restarted() -> None:
    judgement = judge(facts(replica(1, holds=True), replica(2, holds=True)))
    assert "r2 (http://h2:8123) has it, and is not counted" in said(judgement)
    assert statements(judgement) == [("h2", "RESTART REPLICA")]


def test_a_dead_holder() -> None:
    found = facts(dead(1, holds=True), replica(2, entries=entry()), replica(3, entries=entry()))
    judgement = judge(replace(found, silent=(("http://h1:8123", "refused"),)))
    assert "only r1 has it, without a session" in said(judgement)
    assert judgement.by_hand == (
        "start the server http://h1:8123, or wake or reconnect it: refused",
    )
    assert judgement.last_resort == ()


def test_too_few_replicas_are_active() -> None:
    found = replace(facts(replica(1), dead(2)), pending=())
    assert judge(found).is_stuck and "error 285" in said(judge(found))
    assert judge(found).by_hand == (
        "start the servers of r2, which the configuration does not name",
    )
    assert not judge(replace(found, wanted=1)).is_stuck


def test_a_read_only_replica_is_restarted_and_one_that_lags_is_named() -> None:
    away = replace(replica(2, is_readonly=True), is_active=False)
    slow = replica(3, delay_seconds=90, queue_size=7, trouble="GET_PART of x: disk full")
    judgement = judge(replace(facts(replica(1), away, slow), pending=()))
    assert not judgement.is_stuck
    assert "r2 (http://h2:8123) answers, but is read-only" in said(judgement)
    assert "is behind: absolute_delay is 90 s, GET_PART of x: disk full" in said(judgement)
    assert statements(judgement) == [("h2", "RESTART REPLICA")]


def test_fetches_that_are_stopped_are_found_before_anything_waits_for_them() -> None:
    stopped = replica(2, trouble=f"GET_PART of x, tried 3 times: {CANCELLED}")
    judgement = judge(replace(facts(replica(1), stopped), pending=()))
    assert not judgement.is_stuck and statements(judgement) == [("h2", "START FETCHES")]


def test_a_lost_part_has_a_last_resort_that_forgets_its_block_first() -> None:
    judgement = judge(facts(replica(1), replica(2)))
    assert judgement.is_stuck and judgement.actions == ()
    commands = [line for line in judgement.last_resort if line.startswith("zkCli.sh")]
    assert commands == [
        f"zkCli.sh -server ZOOKEEPER:2181 delete '{PATH}/blocks/all_1_2'",
        f"zkCli.sh -server ZOOKEEPER:2181 delete '{PATH}/quorum/status'",
    ]
    assert not any("DROP PARTITION" in line for line in judgement.last_resort)


@pytest.mark.parametrize(
    "other",
    [
        replica(2, holds=True),
        dead(2, holds=True),
        replica(2, entries=entry()),
        replica(2, stored=frozenset({PART})),
        replica(2, parts_to_check=1),
        replica(2, log_behind=1),
        replica(2, is_readonly=True),
        replace(replica(2), own=None),
    ],
)
def test_nothing_is_called_lost_that_may_come_back(other: Replica) -> None:
    assert judge(facts(replica(1), other)).last_resort == ()


def test_a_parallel_quorum_holds_nobody_up() -> None:
    found = replace(facts(replica(1), replica(2)), pending=(pending(node=f"parallel/{PART}"),))
    assert "286" not in said(judge(found))
    assert judge(found).last_resort == ()


def test_names_are_quoted() -> None:
    odd = replace(facts(replica(1, holds=True), replica(2)), target=("d`b", "t\\1"))
    assert judge(odd).actions[0].statement == "SYSTEM RESTART REPLICA `d\\`b`.`t\\\\1`"


def test_no_zookeeper_at_all() -> None:
    judgement = judge(replace(facts(), pending=(), unread="nothing can be read"))
    assert judgement.is_stuck and said(judgement) == "nothing can be read"
    assert "fix ZooKeeper" in judgement.by_hand[-1]
