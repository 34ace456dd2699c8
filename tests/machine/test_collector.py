"""Python's garbage collector while a driver's loop runs."""

from __future__ import annotations

import gc

from sluice.machine.collector import relaxed_collector


def test_nothing_stays_frozen_behind_the_loop() -> None:
    before = gc.get_threshold()
    with relaxed_collector():
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold() != before
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_a_loop_that_ends_first_takes_nothing_from_the_others() -> None:
    before = gc.get_threshold()
    first, second = relaxed_collector(), relaxed_collector()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_freeze_count() > 0
    assert gc.get_threshold() != before
    second.__exit__(None, None, None)
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before
