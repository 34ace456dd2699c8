"""What somebody may have meant by a name that is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def suggest(key: str, known: Iterable[str]) -> str:
    """The name that is nearest to this one, or all of them."""
    names = sorted(known)
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    if near:
        return f'did you mean "{by_lower[near[0]]}"?'
    return f"known here: {', '.join(names)}"
