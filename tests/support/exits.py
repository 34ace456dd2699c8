"""Worker processes that end themselves (`os._exit`) right behind calls, a few times each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

#: Python runs it at each start; Spark's workers are forked from a process that has.
_AT_START = """
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder


def ending(function, call):
    def ends(*arguments, **more):
        result = call(*arguments, **more)
        for number in range({times}):
            try:
                os.close(os.open({marks!r} + function + str(number), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            os._exit(9)
        return result

    return ends


class Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != {module!r}:
            return None
        spec = PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            for function in {functions!r}:
                setattr(module, function, ending(function, getattr(module, function)))

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
"""


class Exits:
    """What was planted.

    :param module: calls `functions` under these names.
    :param times: so often a process ends behind each.
    """

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        module: str,
        functions: tuple[str, ...],
        times: int,
    ) -> None:
        self._folder = folder / "exits"
        (self._folder / "marks").mkdir(parents=True)
        marks = str(self._folder / "marks" / "exit-")
        text = _AT_START.format(module=module, functions=functions, times=times, marks=marks)
        (self._folder / "sitecustomize.py").write_text(text)
        before = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(filter(None, (str(self._folder), before)))
        monkeypatch.setenv("PYTHONPATH", path)

    @property
    def count(self) -> int:
        """How often a process has ended."""
        return len(list((self._folder / "marks").iterdir()))
