"""Compiled parts, called through ctypes.

They are no Python modules: they know nothing of Python, and other threads run while they work.
Everything that is installed has them; a build from source needs a C compiler (setup.py).
"""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

from sluice.core.errors import TerminalError


class Library:
    """A compiled library whose functions take pointers and numbers of 64 bits, and give such a
    number or nothing. It is loaded when it is called first.

    :param beside: a file of its folder.
    """

    def __init__(self, beside: str, name: str) -> None:
        self._beside, self._name = beside, name
        self._functions: dict[str, Any] = {}

    def call(self, function: str, *values: Any) -> int:
        """What a function gives; of one that gives nothing, some number.

        :param function: its name without `sluice_`.
        :param values: bytes and contiguous arrays of numpy are given as pointers, None as none;
            what is of ctypes as it is.
        :raises TerminalError: as `library`.
        """
        found = self._functions.get(function)
        if found is None:
            found = getattr(library(self._beside, self._name), f"sluice_{function}")
            found.restype = ctypes.c_int64
            self._functions[function] = found
        result: int = found(*map(_argument, values))
        return result


def _argument(value: Any) -> Any:
    if isinstance(value, int):
        return ctypes.c_int64(value)
    found = getattr(value, "ctypes", None)
    if found is None:
        return value
    assert value.flags.c_contiguous
    return ctypes.c_void_p(found.data)


def library(beside: str, name: str) -> ctypes.CDLL:
    """The compiled library of this name.

    :param beside: a file of its folder.
    :raises TerminalError: it was not built, or does not fit this machine.
    """
    why = "it was not built"
    for suffix in EXTENSION_SUFFIXES:
        path = Path(beside).with_name(f"{name}{suffix}")
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError as error:
                why = str(error)
    raise TerminalError(
        f"the compiled part {name} is missing: {why}",
        "Install sluice anew on this machine; from source that needs a C compiler, and in a "
        "checkout `python setup.py build_ext --inplace`.",
    )
