"""The local store, shared by processes that are killed in the middle of it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import struct
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from sluice.claims import local as local_module
from sluice.claims.local import LocalStore
from sluice.claims.port import StoreAwayError
from sluice.core.claims import KEY_BYTES, OWNER_BYTES
from tests.claims.claiming import HOUR, NOW, claim, segments_of

_FORK = multiprocessing.get_context("fork")


def _claimer(directory: str, answers: Path, seed: int) -> None:
    """Claims drawn keys until it is killed, and writes down what each call answered."""
    draw = np.random.default_rng(seed)
    local_module._SLOT_BITS_MIN, local_module._SLOT_BITS_MAX = 10, 13
    store = LocalStore(directory)
    with answers.open("ab", buffering=0) as file:
        for call in range(1_000_000):
            keys = np.zeros((5_000, KEY_BYTES), np.uint8)
            keys[:, 6:8] = draw.integers(0, 256, (5_000, 2))
            owners = np.zeros((5_000, OWNER_BYTES), np.uint8)
            owners[:, :24] = np.frombuffer(struct.pack(">QQQ", seed, os.getpid(), call), np.uint8)
            owners[:, 24:] = np.arange(5_000, dtype=">u4").view(np.uint8).reshape(-1, 4)
            found = store.claim(keys, owners, NOW + HOUR, NOW)
            file.write(np.hstack([keys, found]).tobytes())
            if call % 3 == 0:
                store.keep({f"alive/{seed}": str(call)}, store.run())


def _owners_by_key(answers: list[Path]) -> dict[bytes, set[bytes]]:
    size, found = KEY_BYTES + OWNER_BYTES, defaultdict(set)
    for path in answers:
        raw = path.read_bytes()
        for at in range(0, len(raw) - size + 1, size):
            found[raw[at : at + KEY_BYTES]].add(raw[at + KEY_BYTES : at + size])
    return found


class Claimer:
    """A process that claims, and the file of its answers, whose last line may be cut."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.answers = folder / f"answers-{seed}"
        self.answers.touch()
        arguments = (str(folder / "claims"), self.answers, seed)
        self.process = _FORK.Process(target=_claimer, args=arguments)
        self.process.start()

    def await_answer(self) -> None:
        size, end = self.answers.stat().st_size, time.monotonic() + 120
        while self.answers.stat().st_size == size:
            assert self.process.is_alive() and time.monotonic() < end
            time.sleep(0.001)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def test_claims_outlive_processes_that_are_killed(tmp_path: Path) -> None:
    """Each key has one owner in all answers, before and after; the others go on."""
    directory, seed_of_all = tmp_path / "claims", random.SystemRandom().randrange(1 << 32)
    print(f"drawn by seed {seed_of_all}")
    draw = random.Random(seed_of_all)
    claimers = [Claimer(tmp_path, seed) for seed in range(4)]
    try:
        for seed in range(100, 130):
            which = draw.randrange(1, 4)
            claimers[which].await_answer()
            time.sleep(draw.uniform(0, 0.03))
            claimers[which].kill()
            claimers[which] = Claimer(tmp_path, seed)
        claimers[0].await_answer()
    finally:
        for claimer in claimers:
            claimer.kill()
    claimed = _owners_by_key(list(tmp_path.glob("answers-*")))
    assert len(claimed) > 40_000  # of 65,536 that are drawn
    assert {key: owners for key, owners in claimed.items() if len(owners) != 1} == {}
    store = LocalStore(str(directory))
    keys = np.frombuffer(b"".join(claimed), np.uint8).reshape(-1, KEY_BYTES)
    found = store.claim(keys, np.zeros((len(keys), OWNER_BYTES), np.uint8), NOW + HOUR, NOW)
    assert [line.tobytes() for line in found] == [next(iter(o)) for o in claimed.values()]
    assert len(segments_of(directory)) > 5
    store.close()


def test_who_holds_the_lock_for_long_is_named(store: LocalStore, boot: Path) -> None:
    """Also a child of the process, which has the same open file."""
    store.run()

    def wait() -> None:
        store._shared.lock_seconds = 0.2
        try:
            store.run()
        except StoreAwayError as error:
            os._exit(7 if "another process has held" in error.message else 1)
        os._exit(0)

    with store._shared.locked():
        child = _FORK.Process(target=wait)
        child.start()
        child.join()
    assert child.exitcode == 7
    child = _FORK.Process(target=wait)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_process_that_was_killed_frees_the_lock(store: LocalStore) -> None:
    def hold() -> None:
        with store._shared.locked():
            os.kill(os.getpid(), signal.SIGKILL)

    child = _FORK.Process(target=hold)
    child.start()
    child.join()
    assert claim(store, [1], 1) == [1]
