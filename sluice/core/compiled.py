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


def address(array: Any) -> ctypes.c_void_p:
    """Where the values of a numpy array are, as long as it lives."""
    assert array.flags.c_contiguous
    return ctypes.c_void_p(array.ctypes.data)


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
