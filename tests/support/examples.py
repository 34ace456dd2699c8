"""How many examples a test tries that draws them: one setting for all such tests."""

from __future__ import annotations

from hypothesis import settings

#: Of a profile that tries all of them; see tests/conftest.py.
ALL = 100


def examples(count: int) -> int:
    """So many in `make test-long`; in `make test` as many fewer as the profile says.

    Who draws without Hypothesis has the mark `examples`, so that `make test-long` knows of it.
    """
    return max(3, count * settings().max_examples // ALL)
