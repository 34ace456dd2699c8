"""Virtual time, and actors that take turns: real blocking code, one deterministic order.

Each actor has a stack of its own, and all of them are in one thread: whoever sleeps looks for the
next event itself and switches only if that event belongs to another actor. So the same seed gives
the same order of everything, and an hour passes in an instant. (With a thread for each actor a
switch went through the kernel: on a busy machine steps took twenty times as long [measured].)
"""

from __future__ import annotations

import heapq
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet

START_MS = 1_800_000_000_000
#: So often it is looked whether a paused process was woken early.
PAUSE_LOOK_MS = 600_000


class KilledError(BaseException):
    """This process was killed. Not an Exception: no code under test may catch it."""


class Process:
    """Something that is killed or paused as a whole, with a wall clock of its own.

    :param skew_ms: how far its wall clock is off.
    """

    def __init__(self, name: str, skew_ms: int = 0) -> None:
        self.name = name
        self.skew_ms = skew_ms
        #: Called after a fault has killed it.
        self.on_kill: Callable[[], None] = lambda: None
        self.paused_until = 0
        self.is_dead = False
        self.actors: dict[Actor, None] = {}


class Actor:
    """What a thread of a process does."""

    def __init__(self, process: Process, run: Callable[[], None]) -> None:
        self.process = process
        self.run = run
        self.wakes_at = 0  # the number of the one event that wakes it; others are stale
        self.stack: _Stack | None = None
        self.is_killed = False
        #: Until when a call may take, for `within`; 0 without a limit.
        self.call_until = 0


class _Stack:
    """Where actors run, one after the other."""

    def __init__(self) -> None:
        #: Goes on here, until somebody switches to another one.
        self.switches: Any = getcurrent()
        self.actor: Actor | None = None


_Event = tuple[int, int, Actor | None, Callable[[], None] | None]


class Scheduler:
    """Events in virtual time."""

    def __init__(self) -> None:
        self.now = START_MS
        self.steps = 0
        self.trace = 0
        self.current: Actor | None = None
        self.failure: BaseException | None = None
        self.on_crash: Callable[[Actor, BaseException], None] = lambda actor, error: None
        #: Asked before each event; True returns to the caller of `run`.
        self.is_over: Callable[[], bool] = lambda: False
        self._events: list[_Event] = []
        self._sequence = 0
        self._main = Actor(Process("main"), lambda: None)
        self._main.stack = _Stack()
        self._idle: list[_Stack] = []
        self._has_ended = False

    # What the world uses

    def step(self, label: str) -> None:
        """Count a step: a place at which a fault may strike."""
        self.steps += 1
        self.trace = zlib.crc32(b"%d" % self.now, zlib.crc32(label.encode(), self.trace))

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Do something later. It must not sleep."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._sequence, None, action))

    def spawn(self, process: Process, run: Callable[[], None]) -> Actor:
        """A new actor of a process."""
        actor = Actor(process, run)
        process.actors[actor] = None
        self._wake_at(actor, 0)
        return actor

    def wake(self, actor: Actor) -> None:
        """End an actor's sleep now, if it still lives."""
        if actor in actor.process.actors:
            self._wake_at(actor, 0)

    def kill(self, process: Process) -> None:
        """End a process: its actors raise KilledError where they are."""
        process.is_dead = True
        process.paused_until = 0
        for actor in list(process.actors):
            actor.is_killed = True
            if actor is not self.current:
                self._wake_at(actor, 0)

    def run(self) -> None:
        """Run until `is_over`, or until nothing is left to happen.

        :raises BaseException: what an event raised: a bug of the simulator.
        """
        following = self._next()
        if following is not self._main:
            self._hand_over(following)
        if self.failure is not None:
            raise self.failure

    def processes(self) -> list[Process]:
        """Processes with an actor that sleeps, each once."""
        sleeping = {event[2].process: None for event in self._events if event[2] is not None}
        return [process for process in sleeping if process.actors]

    def end(self) -> None:
        """End all actors and all stacks."""
        for process in self.processes():
            self.kill(process)
        self.is_over = lambda: False
        self._has_ended = True
        self.failure = None
        self.run()
        for stack in self._idle:
            stack.switches.switch()
        self._idle.clear()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to happen."""
        return not self._events

    # What actors use

    def sleep(self, delay_ms: int) -> None:
        """Let time pass for the running actor, at least until its process is not paused.

        :raises KilledError: its process was killed meanwhile.
        """
        actor = self.current
        assert actor is not None, "an event sleeps"
        if actor.is_killed:
            raise KilledError
        self._wake_at(actor, delay_ms)
        following = self._next()
        if following is actor:
            self.current = actor
        else:
            self._hand_over(following)
        if actor.is_killed:
            raise KilledError

    # Turns

    def _wake_at(self, actor: Actor, delay_ms: int) -> None:
        self._sequence += 1
        actor.wakes_at = self._sequence
        heapq.heappush(self._events, (self.now + delay_ms, self._sequence, actor, None))

    def _next(self) -> Actor:
        """Let events happen until an actor's turn has come; the main one's at the end."""
        self.current = None
        while self._events and not self.is_over():
            at_ms, number, actor, action = heapq.heappop(self._events)
            if actor.wakes_at != number if actor is not None else self._has_ended:
                continue
            self.now = max(self.now, at_ms)
            if actor is None:
                assert action is not None
                self.steps += 1
                try:
                    action()
                except BaseException as error:
                    self.failure = error
                    return self._main
            elif actor.process.paused_until > self.now:
                left_ms = actor.process.paused_until - self.now
                self._wake_at(actor, min(left_ms, PAUSE_LOOK_MS))
            else:
                self.steps += 1
                return actor
        return self._main

    def _hand_over(self, actor: Actor) -> None:
        """Come back when it is the turn of whoever calls this."""
        self.current = actor
        if actor.stack is None:
            actor.stack = self._idle.pop() if self._idle else self._new_stack()
            actor.stack.actor = actor
        actor.stack.switches.switch()

    def _new_stack(self) -> _Stack:
        assert self._main.stack is not None
        stack = _Stack()
        # When it ends, the main one goes on.
        stack.switches = greenlet(partial(self._work, stack), self._main.stack.switches)
        return stack

    def _work(self, stack: _Stack) -> None:
        """What a stack is for: run actors whose turn has come."""
        while (actor := stack.actor) is not None:
            self._run_actor(actor)
            following = self._next()
            if following.stack is None:
                following.stack, stack.actor = stack, following
                self.current = following
            else:
                stack.actor = None
                self._idle.append(stack)
                self._hand_over(following)

    def _run_actor(self, actor: Actor) -> None:
        try:
            actor.run()
        except KilledError:
            pass
        except BaseException as error:
            self.on_crash(actor, error)
        finally:
            del actor.process.actors[actor]
            actor.wakes_at = -1
