"""How a bug on purpose is written down: as what stands in the place of the real code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Plant = Callable[[], AbstractContextManager[None]]


@contextmanager
def patched(*changes: tuple[Any, str, Any]) -> Iterator[None]:
    """Attributes replaced for a while."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    try:
        for owner, name, value in changes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            setattr(owner, name, value)


class Bugs(dict[str, Plant]):
    """Bugs by name. A function that is decorated is one of its own name, with hyphens, and its
    docstring says what it breaks."""

    def plant(self, function: Plant) -> Plant:
        """The function gives the context in which the bug is there."""
        self[function.__name__.replace("_", "-")] = function
        return function

    def instead_of(self, owner: Any, name: str) -> Callable[[Callable[..., Any]], Plant]:
        """The function stands in the place of this one, which it is given before all arguments."""

        def decorated(function: Callable[..., Any]) -> Plant:
            def plant() -> AbstractContextManager[None]:
                real = getattr(owner, name)

                def stand_in(*parts: Any, **named: Any) -> Any:
                    return function(real, *parts, **named)

                return patched((owner, name, stand_in))

            plant.__name__, plant.__doc__ = function.__name__, function.__doc__
            return self.plant(plant)

        return decorated
