"""Errors travel from worker to driver with everything that they carry."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
from collections.abc import Iterator

import pytest

import sluice
from sluice.core.errors import (
    ConfigurationError,
    InDoubtError,
    OwnerChangedError,
    SluiceError,
    TerminalError,
    TransientError,
)

#: What a worker imports, and whose errors it raises.
FOLDERS = ("core", "config", "kafka", "decode", "clickhouse")


class FullError(TransientError):
    """An error with another constructor and attributes of its own."""

    hint = "Wait."

    def __init__(self, place: str, count: int) -> None:
        super().__init__(f"{place} is full")
        self.place = place
        self.count = count


def test_attributes_and_hints_survive() -> None:
    error = FullError("the window", 3)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is FullError
    assert (str(again), again.hint, again.place, again.count) == (
        "the window is full",
        "Wait.",
        "the window",
        3,
    )
    own = pickle.loads(pickle.dumps(TerminalError("no", "Do this.")))
    assert (str(own), own.hint, own.args) == ("no", "Do this.", ("no",))


def test_a_hint_given_to_one_error_is_not_the_classs() -> None:
    TerminalError("no", "Do this.")
    assert TerminalError("no").hint == SluiceError.hint


def every_error() -> Iterator[type[SluiceError]]:
    for folder in FOLDERS:
        package = importlib.import_module(f"sluice.{folder}")
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.rpartition(".")[2].startswith("_"):  # libraries for ctypes
                importlib.import_module(module.name)
    waiting = [SluiceError]
    while waiting:
        error = waiting.pop()
        waiting += error.__subclasses__()
        if error.__module__.startswith(f"{sluice.__name__}."):
            yield error


KINDS = (TerminalError, TransientError, InDoubtError)


# Some have one name: processes that share the tests know them by their number.
@pytest.mark.parametrize(
    "error", sorted(set(every_error()) - {SluiceError}, key=lambda e: (e.__name__, e.__module__))
)
def test_every_error_is_of_one_kind_and_pickles(error: type[SluiceError]) -> None:
    kinds = sum(issubclass(error, kind) for kind in KINDS)
    assert kinds == 1 or (kinds == 0 and error.__subclasses__())  # a base of several kinds
    made = error.__new__(error)
    Exception.__init__(made, "what happened")
    made.message = "what happened"
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error and str(again) == "what happened" and again.hint


def test_the_kinds_that_have_a_status_of_their_own() -> None:
    assert issubclass(ConfigurationError, TerminalError)
    assert issubclass(OwnerChangedError, TerminalError)
