"""The same hostile cases for each delivery: attempts that end before and after every statement,
answers that are lost, attempts that meet, a server that is started again.

A delivery is here what it is to a worker: one attempt at a block, by one function. Another one is
added to `CASES` with a table of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
from _pytest.mark import ParameterSet

from sluice.core.errors import InDoubtError
from sluice.worker.errors import ForgottenError
from tests.support.broken_renames import BreakingServer, run_breaking
from tests.support.delivered import DeliveredTable, Paused
from tests.support.examples import examples

_OLD, _NEW = "clickhouse_18", "embedded_server"
Make = Callable[[str], DeliveredTable]

_STAGED: dict[str, Make] = {
    "staged": DeliveredTable,
    "staged, views": partial(DeliveredTable, has_views=True),
    "staged, summed, no lineage": partial(
        DeliveredTable, engine="SummingMergeTree", has_lineage=False
    ),
}
_BLOCK: Make = partial(DeliveredTable, delivery="block")
_REPLACING: Make = partial(DeliveredTable, delivery="replacing")
#: Server, and the table that is made there.
CASES: dict[str, tuple[str, Make]] = {
    "block": (_NEW, _BLOCK),
    "block, Replicated, 18.16": (_OLD, _BLOCK),
    "replacing": (_NEW, _REPLACING),
    "replacing, 18.16": (_OLD, _REPLACING),
    "staged, 18.16": (_OLD, DeliveredTable),
    **{name: (_NEW, make) for name, make in _STAGED.items()},
}
#: Its statements are those of "staged"; what is compared then, in test_staging_crashes.py.
LONG = "staged, summed, no lineage"
Point = tuple[int, bool]


def params(cases: Mapping[str, object]) -> list[ParameterSet]:
    return [
        pytest.param(case, id=name, marks=[pytest.mark.long] if name == LONG else [])
        for name, case in cases.items()
    ]


@pytest.fixture(params=params(CASES))
def table(request: pytest.FixtureRequest) -> Iterator[DeliveredTable]:
    fixture, make = request.param
    yield from created(make(request.getfixturevalue(fixture).url))


def created(table: DeliveredTable) -> Iterator[DeliveredTable]:
    table.create()
    table.known = table.spec
    yield table
    table.drop()


def points(table: DeliveredTable) -> list[Point]:
    """Before and after each statement of an attempt, of which one is made. With views there are
    more, and three tables that are moved in the same way: every fifth point then. Without lineage
    the statements are the same, and only what is looked for is another: every third one."""
    table.attempt()
    found = [(at, done) for at in range(len(table.server.statements)) for done in (False, True)]
    return found[:: 5 if table.has_views else 1 if table.has_lineage else 3]


def ends(table: DeliveredTable) -> list[Point]:
    """Where an attempt may be killed: before the first statement, and behind each. Before the next
    one is the same, since the dead know nothing of what they read between."""
    table.attempt()
    found = [(0, False), *((at, True) for at in range(len(table.server.statements)))]
    return found[:: 3 if table.has_views else 1]


def test_a_block_is_there_once_however_often_it_is_sent(table: DeliveredTable) -> None:
    for number in (0, 0, 1, 0, 1):
        table.attempt(number)
    table.assert_once(2)


@pytest.mark.slow
def test_an_attempt_that_is_killed_at_any_step_is_finished_by_the_next(
    table: DeliveredTable,
) -> None:
    for number, (at, is_done) in enumerate(ends(table), start=1):
        assert table.killed(at, is_done=is_done, number=number)
        table.attempt(number)
        table.assert_rows(number + 1)


def test_attempts_at_one_block_that_are_killed_one_step_later_each_time(
    table: DeliveredTable,
) -> None:
    for at, is_done in ends(table):
        table.killed(at, is_done=is_done, number=1)
    table.attempt(1)
    table.assert_rows(2)


@pytest.mark.slow
def test_an_answer_that_is_lost_at_any_step(table: DeliveredTable) -> None:
    lost = [point for point in ends(table) if point[1]]
    for number, point in enumerate(lost, start=1):

        def lose(statement: int, is_done: bool, point: Point = point) -> None:
            if (statement, is_done) == point:
                raise InDoubtError("the answer is lost")

        with pytest.raises(InDoubtError):
            table.attempt(number, lose)
        table.attempt(number)
        table.assert_rows(number + 1)


def finished(sleeping: Paused) -> None:
    """It goes on to its end, and may find that others were quicker."""
    error = sleeping.finish()
    assert error is None or isinstance(error, InDoubtError), error


@pytest.mark.slow
def test_an_attempt_that_sleeps_at_any_step_meets_its_repeat(table: DeliveredTable) -> None:
    for number, (at, is_done) in enumerate(points(table), start=1):
        sleeping = Paused(table, at, is_done=is_done, number=number)
        table.attempt(number)
        table.assert_rows(number + 1)
        finished(sleeping)
        table.attempt(number)
        table.assert_rows(number + 1)


@pytest.mark.slow
@pytest.mark.examples
def test_two_attempts_that_sleep_at_any_steps_wake_in_either_order(table: DeliveredTable) -> None:
    """Both go on then, one after the other or at once."""
    dice, all_points = random.Random(7), points(table)
    pairs = [dice.choices(all_points, k=2) for _ in range(examples(24))]
    for number, pair in enumerate(pairs, start=1):
        sleeping = [Paused(table, at, is_done=is_done, number=number) for at, is_done in pair]
        if number % 3 == 0:
            for each in sleeping:
                each.let_go()
        for each in sleeping if number % 2 else reversed(sleeping):
            finished(each)
        table.attempt(number)
        table.assert_rows(number + 1)


@pytest.mark.slow
@pytest.mark.examples
def test_an_attempt_sleeps_while_another_is_killed(table: DeliveredTable) -> None:
    """The other one after its first statement, which may be a claim, or at any: the sleeper goes on
    then, and does not take for moved what is only claimed."""
    dice, all_points = random.Random(11), points(table)
    pairs = [(point, (0, True)) for point in all_points]
    pairs += [(dice.choice(all_points), dice.choice(all_points)) for _ in range(examples(12))]
    for number, (sleeps, dies) in enumerate(pairs, start=1):
        sleeping = Paused(table, sleeps[0], is_done=sleeps[1], number=number)
        table.killed(dies[0], is_done=dies[1], number=number)
        finished(sleeping)
        table.attempt(number)
        table.assert_rows(number + 1)


def test_attempts_at_the_same_time(table: DeliveredTable) -> None:
    for number in range(3):
        at_once = [Paused(table, 0, is_done=False, number=number) for _ in range(4)]
        for each in at_once:
            each.let_go()
        for each in at_once:
            finished(each)
        table.attempt(number)
        table.assert_rows(number + 1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakingServer]:
    with run_breaking(tmp_path_factory.mktemp("steps") / "clickhouse") as server:
        yield server


@pytest.mark.slow
@pytest.mark.parametrize("make", params({**_STAGED, "block": _BLOCK, "replacing": _REPLACING}))
def test_a_server_that_is_killed_after_any_step(server: BreakingServer, make: Make) -> None:
    """One block stands at each step then. A window is not believed any more: such a block is in
    doubt, and looked for (R10)."""
    for table in created(make(server.url)):
        done = [point for point in ends(table) if point[1]]
        for number, (at, is_done) in enumerate(done, start=1):
            assert table.killed(at, is_done=is_done, number=number)
        server.kill()
        server.start()
        if table.delivery == "block":
            with pytest.raises(ForgottenError):
                table.attempt(1)
        else:
            for number in range(1, len(done) + 1):
                table.attempt(number)
        table.assert_rows(len(done) + 1)
