"""The local store: what is in its files, and what it makes of those that are damaged."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import resource
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sluice.claims import local as local_module
from sluice.claims.local import LocalStore, Segment
from sluice.claims.port import StoreAwayError, StoreRefusedError
from sluice.core.claims import KEY_BYTES, OWNER_BYTES
from tests.claims.claiming import HOUR, NOW, RECORD_BYTES, claim, keys_of, owners_of, segments_of
from tests.support.examples import examples

_FORK = multiprocessing.get_context("fork")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 11 claims at most."""
    monkeypatch.setattr(local_module, "_SLOT_BITS_MIN", 3)
    monkeypatch.setattr(local_module, "_SLOT_BITS_MAX", 4)


class Model(RuleBasedStateMachine):
    """Two that have one store open, and a dict."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.boot = self.folder / "boot_id"
        self.boot.write_text("0")
        self.now, self.owner = NOW, 0
        self.held: dict[int, tuple[int, int]] = {}
        self.stores = [self.opened(), self.opened()]

    def opened(self) -> LocalStore:
        return LocalStore(str(self.folder / "claims"), boot_id=self.boot)

    keys = st.lists(st.integers(0, 30), min_size=1, max_size=12)

    @rule(which=st.integers(0, 1), keys=keys, window=st.integers(0, 2000))
    def claim(self, which: int, keys: list[int], window: int) -> None:
        self.owner += 1
        found = claim(self.stores[which], keys, self.owner, self.now + window, self.now)
        for key in keys:
            if key not in self.held or self.held[key][1] < self.now:
                self.held[key] = (self.owner, self.now + window)
        assert found == [self.held[key][0] for key in keys]

    @rule(which=st.integers(0, 1), keys=keys, back=st.integers(0, 3))
    def release(self, which: int, keys: list[int], back: int) -> None:
        owner = max(self.owner - back, 0)
        self.stores[which].release(keys_of(keys), owners_of([owner] * len(keys)))
        for key in keys:
            if key in self.held and self.held[key][0] == owner:
                del self.held[key]

    @rule(seconds=st.integers(1, 1000))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule(which=st.integers(0, 1))
    def sweep(self, which: int) -> None:
        self.stores[which].sweep(self.now, 1)

    @rule(which=st.integers(0, 1))
    def open_again(self, which: int) -> None:
        self.stores[which].close()

    @rule()
    def boot_again(self) -> None:
        run = self.stores[0].run()
        for store in self.stores:
            store.close()
        self.boot.write_text(str(int(self.boot.read_text()) + 1))
        assert self.stores[1].run() != run

    @invariant()
    def both_know_one_run(self) -> None:
        assert len({store.run() for store in self.stores}) == 1

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                store.close()
            shutil.rmtree(self.folder)


@pytest.mark.examples
@pytest.mark.usefixtures("small")
def test_the_store_is_a_dict_that_several_share() -> None:
    Model.TestCase.settings = settings(
        max_examples=examples(60), stateful_step_count=40, deadline=None
    )
    Model.TestCase().runTest()


@pytest.mark.usefixtures("small")
def test_segments_are_removed_with_their_last_claim(store: LocalStore, directory: Path) -> None:
    other = LocalStore(str(directory), boot_id=directory.parent.parent / "boot_id")
    claim(store, list(range(11)), 1, NOW + 100)
    claim(store, list(range(11, 21)), 2, NOW + 200)
    claim(store, [21], 3, NOW + 150)
    assert claim(other, [0, 11, 21], 4) == [1, 2, 3]
    assert len(segments_of(directory)) == 2
    assert store.sweep(NOW + 100, 60) == 0, "it holds until then"
    first = other._shared.segments[-1]
    assert store.sweep(NOW + 101, 60) == 11
    assert len(segments_of(directory)) == 1
    assert first.used_bytes() <= 4096, "who has it in memory does not keep its room"
    other.keep({"alive": "1"}, other.run())
    assert claim(other, [0, 11, 21], 4, NOW + 999, NOW + 101) == [4, 2, 3]
    assert store.sweep(NOW + 2000, 60) == 12
    assert segments_of(directory) == []
    assert claim(other, [5], 5, NOW + 3000, NOW + 2000) == [5]
    assert claim(store, [5], 6, NOW + 3000, NOW + 2000) == [5]
    other.close()


def test_a_segment_takes_claims_for_a_share_of_its_window(
    store: LocalStore, directory: Path
) -> None:
    claim(store, [1], 1, NOW + HOUR, NOW)
    claim(store, [2], 1, NOW + HOUR, NOW + HOUR // 8)
    assert len(segments_of(directory)) == 1
    claim(store, [3], 1, NOW + HOUR, NOW + HOUR // 8 + 1)
    assert len(segments_of(directory)) == 2
    assert claim(store, [1, 2, 3], 2) == [1, 1, 1]


def test_a_segment_grows_with_its_claims(store: LocalStore, directory: Path) -> None:
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 256, (700_000, KEY_BYTES), np.uint8)
    owners = rng.integers(0, 256, (700_000, OWNER_BYTES), np.uint8)
    for begin in (0, 350_000):
        half = slice(begin, begin + 350_000)
        assert (store.claim(keys[half], owners[half], NOW + HOUR, NOW) == owners[half]).all()
    assert (store.claim(keys, owners[::-1].copy(), NOW + HOUR, NOW) == owners).all()
    assert len(segments_of(directory)) == 1
    facts = store.facts()
    assert facts.keys == 700_000
    assert 52 * 700_000 < facts.used_bytes < 80 * 700_000
    assert facts.max_bytes and facts.max_bytes > facts.used_bytes


def record_at(path: Path, number: int) -> int:
    """Where a record of a segment begins."""
    records_at = struct.unpack_from("<Q", path.read_bytes(), 32)[0]
    return int(records_at) + RECORD_BYTES * number


def overwrite(path: Path, at: int, raw: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(raw)


def test_a_torn_record_is_not_there_and_hides_none(
    store: LocalStore, directory: Path, small: None
) -> None:
    claim(store, [1, 2, 3, 4, 5], 1)
    (path,) = segments_of(directory)
    overwrite(path, record_at(path, 2) + KEY_BYTES, b"garbage")
    assert claim(store, [1, 2, 4, 5], 2) == [1, 1, 1, 1]
    assert claim(store, [3], 2) == [2]
    assert claim(store, [3], 3) == [2]


def test_what_was_written_and_not_counted_is_not_there(store: LocalStore, directory: Path) -> None:
    claim(store, [1], 1)
    (path,) = segments_of(directory)
    overwrite(path, record_at(path, 1), keys_of([2]).tobytes() + b"half of an owner")
    assert claim(store, [2], 2) == [2]
    assert claim(store, [1, 2], 3) == [1, 2]


def test_who_is_killed_while_it_begins_a_segment_leaves_nothing(
    store: LocalStore, directory: Path, boot: Path
) -> None:
    claim(store, [1], 1)
    (directory / "segment-000000000009.new").write_bytes(b"half")
    (directory / "notes" / "alive.new").write_bytes(b"half")
    (directory / "lock").write_bytes((77).to_bytes(8, "little"))
    assert claim(store, [1, 2], 2) == [1, 2]
    other = LocalStore(str(directory), boot_id=boot)
    assert claim(other, [1, 2], 3) == [1, 2]
    assert other.notes() == {}
    other.close()


def test_another_boot_is_another_run_and_keeps_what_is_on_the_disk(
    store: LocalStore, directory: Path, boot: Path
) -> None:
    run = store.run()
    claim(store, [1, 2, 3, 4], 1)
    store.release(keys_of([2, 4]), owners_of([1, 1]))
    claim(store, [4], 2, NOW + 2 * HOUR)
    (path,) = segments_of(directory)
    claim(store, [5, 6], 3, NOW + 3 * HOUR)
    store.close()
    overwrite(path, 4096, os.urandom(4 << 16))  # the index
    overwrite(path, record_at(path, 5), bytes(RECORD_BYTES))  # of 5, that never came to the disk
    overwrite(path, 48, struct.pack("<QQQII", 1, 1, 1, 0, 0))  # the header as it was before
    boot.write_text("second\n")
    assert store.run() not in ("", run)
    assert store.run().endswith("@0")
    assert claim(store, [1, 3, 4, 6], 9) == [1, 1, 2, 3]
    assert claim(store, [2, 5], 9) == [9, 9]
    assert store.sweep(NOW + 3 * HOUR, 60) == 0, "the end of the last claim is known again"
    run = store.run()
    store.close()
    assert store.run() == run


def test_a_copy_of_a_directory_is_another_run(store: LocalStore, directory: Path) -> None:
    run = store.run()
    claim(store, [1], 1)
    store.close()
    copied = shutil.copytree(directory, directory.with_name("copied"))
    copy = LocalStore(str(copied), boot_id=store._shared._boot_id)
    assert copy.run() != run
    assert claim(copy, [1], 2) == [1]
    copy.close()
    assert store.run() == run


def test_a_directory_that_is_removed_begins_anew(store: LocalStore, directory: Path) -> None:
    run = store.run()
    claim(store, [1], 1)
    shutil.rmtree(directory)
    with pytest.raises(StoreAwayError, match="was removed or replaced"):
        claim(store, [1], 2)
    assert store.run() != run
    assert claim(store, [1], 3) == [3]


@pytest.mark.parametrize(
    ("name", "at", "raw", "said"),
    [
        ("life", 0, b"\0\0\0", "life is damaged"),
        ("life", 0, json.dumps({"layout": 2}).encode().ljust(300), "life is of layout 2, not 1"),
        ("segment-000000000001", 0, b"other", "000001 is no file of claims of layout 1"),
        ("segment-000000000001", 8, b"\2", "000001 is no file of claims of layout 1"),
        ("segment-000000000001", 12, b"\3", "000001 is damaged"),
    ],
)
def test_what_is_damaged_is_refused(
    store: LocalStore, directory: Path, name: str, at: int, raw: bytes, said: str
) -> None:
    claim(store, [1], 1)
    store.close()
    overwrite(directory / name, at, raw)
    for _ in range(2):
        with pytest.raises(StoreRefusedError, match=said) as caught:
            store.run()
    assert str(directory) in caught.value.message
    assert "remove it" in caught.value.hint


def test_a_directory_of_others_is_refused(store: LocalStore, directory: Path) -> None:
    directory.mkdir(parents=True)
    (directory / "data").touch()
    with pytest.raises(StoreRefusedError, match="holds data, and no file named life"):
        store.run()
    (directory / "data").unlink()
    claim(store, [1], 1)
    store.close()
    (directory / "life").unlink()
    with pytest.raises(StoreRefusedError, match="no file named life"):
        store.run()
    with pytest.raises(StoreRefusedError, match="Not a directory"):
        LocalStore(str(directory / "lock" / "in"), boot_id=store._shared._boot_id).run()


def test_a_note_is_never_newer_than_the_claims(
    store: LocalStore, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.notes() == {}
    claim(store, [1, 2], 1)
    store.keep({"alive/a.b": "1"}, store.run())
    store.keep({"opened/ä": "run"}, store.run())
    assert [segment.unsynced() for segment in store._shared.segments] == [(2, 2)]
    claim(store, [3], 1)
    assert [segment.unsynced() for segment in store._shared.segments] == [(2, 3)]

    def failed(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "sync", failed)
        with pytest.raises(StoreAwayError, match="Input/output error"):
            store.keep({"alive/a.b": "2"}, store.run())
        assert store.notes()["alive/a.b"] == "1"
        with pytest.raises(StoreAwayError, match="Input/output error"):
            store.release(keys_of([1]), owners_of([1]))
    store.keep({"alive/a.b": "3"}, store.run())
    assert [segment.unsynced() for segment in store._shared.segments] == [(3, 3)]
    store.close()
    assert store.notes() == {"alive/a.b": "3", "opened/ä": "run"}
    store.keep({"opened/ä": ""}, store.run())
    assert store.notes() == {"alive/a.b": "3"}


def _filled(store: LocalStore) -> int:
    """How many claims a store took until its disk was full."""
    for number in range(0, 1_000_000, 10_000):
        try:
            assert claim(store, list(range(number, number + 10_000)), 1) == [1] * 10_000
        except StoreAwayError as error:
            assert "is full" in error.message
            return number
    raise AssertionError("it was never full")


def test_a_file_that_may_not_grow_is_a_full_store(store: LocalStore, directory: Path) -> None:
    def fill() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        os._exit(7 if _filled(store) == 0 else 1)

    child = _FORK.Process(target=fill)
    child.start()
    child.join()
    assert child.exitcode == 7
    assert claim(store, [1], 2) == [2]


def test_a_full_disk_costs_no_claim(store: LocalStore, directory: Path) -> None:
    directory.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("mounts nothing here")
    try:
        taken = _filled(store)
        assert taken >= 40_000
        assert set(claim(store, list(range(taken)), 2)) == {1}
        with pytest.raises(StoreAwayError, match="is full"):
            claim(store, [-1 - number for number in range(20_000)], 2)
        assert store.notes() == {}
        subprocess.run(["mount", "-o", "remount,size=64m", str(directory)], check=True)
        assert set(claim(store, [-1 - number for number in range(20_000)], 2)) == {2}
        assert set(claim(store, list(range(taken)), 2)) == {1}
    finally:
        store.close()
        subprocess.run(["umount", "-l", str(directory)], check=True)
