"""Servers that can be struck."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sluice.testbed.local.children import Child
from sluice.testbed.local.running import Broker, Program


@dataclass(frozen=True, slots=True)
class Victim:
    """A server that can be struck.

    :param kill: SIGKILL; harmless when it is dead.
    :param stop: ends it in order.
    :param start: starts it and waits until it answers.
    :param pid: of the process that SIGKILL ends.
    :param serving_pid: of the process that serves, to be paused.
    """

    kill: Callable[[], object]
    stop: Callable[[], object]
    start: Callable[[], object]
    pid: Callable[[], int]
    serving_pid: Callable[[], int]


def victim_program(program: Program) -> Victim:
    """A broker, or the embedded server."""

    def serving_pid() -> int:
        return program.jvm_pid if isinstance(program, Broker) else program.pid

    return Victim(program.kill, program.stop, program.start, lambda: program.pid, serving_pid)


def victim_child(child: Child, start: Callable[[], object]) -> Victim:
    """An installed server."""

    def kill() -> None:
        if child.process is not None:
            child.kill()

    def pid() -> int:
        return child.running.pid

    return Victim(kill, child.stop, start, pid, pid)
