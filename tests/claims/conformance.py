"""What every store of claims does. A test of a store subclasses `Conformance`."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.claims.owners import NOBODY, Keys, Owners
from sluice.claims.port import ClaimStore, StoreAwayError
from sluice.core.claims import KEY_BYTES, OWNER_BYTES
from sluice.core.server_runs import is_same_run
from tests.support.examples import examples

#: Opens a store over the same claims again; the first one of a test finds none.
Opens = Callable[[], ClaimStore]

NOW = 1_700_000_000
UNTIL = NOW + 100


def random_lines(count: int, size: int, seed: int) -> Keys:
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def some_keys(count: int, seed: int = 1) -> Keys:
    return random_lines(count, KEY_BYTES, seed)


def some_owners(count: int, seed: int = 2) -> Owners:
    return random_lines(count, OWNER_BYTES, seed)


def told(lines: Owners) -> list[bytes]:
    return [bytes(line) for line in lines]


class Conformance:
    """Tests, for a fixture `opens` (`Opens`) and a `store` that it opened."""

    #: By so many bytes of a key the store tells it from others.
    key_bytes = KEY_BYTES

    @pytest.fixture
    def store(self, opens: Opens) -> ClaimStore:
        return opens()

    def test_a_key_is_claimed_once(self, store: ClaimStore) -> None:
        keys, first, second = some_keys(5000), some_owners(5000), some_owners(5000, 3)
        assert told(store.claim(keys, first, UNTIL, NOW)) == told(first)
        assert told(store.claim(keys, first, UNTIL, NOW)) == told(first)
        assert told(store.claim(keys, second, UNTIL, NOW)) == told(first)

    def test_what_it_gives_back_may_be_written_to(self, store: ClaimStore) -> None:
        keys, owners = some_keys(3), some_owners(3)
        store.claim(keys, owners, UNTIL, NOW)[:] = 0
        assert told(store.claim(keys, owners, UNTIL, NOW)) == told(some_owners(3))

    def test_no_key_at_all(self, store: ClaimStore) -> None:
        assert store.claim(some_keys(0), some_owners(0), UNTIL, NOW).shape == (0, OWNER_BYTES)
        store.release(some_keys(0), some_owners(0))

    def test_some_are_taken_and_some_are_not(self, store: ClaimStore) -> None:
        keys, first, second = some_keys(9000), some_owners(9000), some_owners(9000, 3)
        store.claim(keys[::3].copy(), first[::3].copy(), UNTIL, NOW)
        expected = second.copy()
        expected[::3] = first[::3]
        assert told(store.claim(keys, second, UNTIL, NOW)) == told(expected)

    def test_the_first_of_equal_keys_gets_it(self, store: ClaimStore) -> None:
        keys, owners = some_keys(3000).repeat(4, axis=0), some_owners(12_000)
        order = np.random.default_rng(5).permutation(12_000)
        keys = keys[order]
        expected: dict[bytes, bytes] = {}
        for key, owner in zip(told(keys), told(owners), strict=True):
            expected.setdefault(key, owner)
        found = told(store.claim(keys, owners, UNTIL, NOW))
        assert found == [expected[key] for key in told(keys)]
        # and once they have ended, again the first one
        later = some_owners(12_000, 7)
        expected.clear()
        for key, owner in zip(told(keys), told(later), strict=True):
            expected.setdefault(key, owner)
        found = told(store.claim(keys, later, UNTIL + 200, UNTIL + 1))
        assert found == [expected[key] for key in told(keys)]

    def test_keys_that_differ_little(self, store: ClaimStore) -> None:
        keys = np.zeros((self.key_bytes * 8 + 1, KEY_BYTES), np.uint8)
        for bit in range(self.key_bytes * 8):
            keys[bit, bit // 8] = 1 << bit % 8
        owners = some_owners(len(keys))
        assert told(store.claim(keys, owners, UNTIL, NOW)) == told(owners)
        assert told(store.claim(keys, owners[::-1].copy(), UNTIL, NOW)) == told(owners)

    def test_bytes_that_look_like_text(self, store: ClaimStore) -> None:
        """Numbers, ends of lines and zeros are bytes like others."""
        texts = [b"1234567890123456", b"\r\n" * 8, bytes(16), b"0" * 16, b"-100000000000000"]
        keys = np.array([list(text) for text in texts], np.uint8)
        owners = np.array([list((text * 2)[:OWNER_BYTES]) for text in texts], np.uint8)
        for _ in range(2):
            assert told(store.claim(keys, owners, UNTIL, NOW)) == told(owners)
        assert told(store.claim(some_keys(1), owners[2:3], UNTIL, NOW)) == [NOBODY]
        assert told(store.claim(some_keys(1), owners[:1], UNTIL, NOW)) == [NOBODY]

    def test_rows_and_far_offsets_are_owners_of_their_own(self, store: ClaimStore) -> None:
        keys, owners = some_keys(4000), np.tile(some_owners(1), (4000, 1))
        owners[:, 24:] = 0
        owners[:, 20:22] = np.arange(4000, dtype=">u2").view(np.uint8).reshape(-1, 2)
        owners[1000:2000, 27] = 1  # another row of its message
        owners[2000:3000, 19] += 1  # 2**32 offsets later
        owners[3000:, 24] = 0xFF
        for _ in range(2):
            assert told(store.claim(keys, owners, UNTIL, NOW)) == told(owners)
        others = owners[:, :].copy()
        others[:, 27] ^= 2
        for part in (slice(0, 1000), slice(500, 1500), slice(None)):
            found = store.claim(keys[part].copy(), others[part].copy(), UNTIL, NOW)
            assert told(found) == told(owners[part])
        store.release(keys, others)
        assert told(store.claim(keys, others, UNTIL, NOW)) == told(owners)
        store.release(keys[1500:], owners[1500:])
        expected = np.concatenate((owners[:1500], others[1500:]))
        assert told(store.claim(keys, others, UNTIL, NOW)) == told(expected)

    def test_a_claim_ends(self, store: ClaimStore) -> None:
        keys, first, second = some_keys(3000), some_owners(3000), some_owners(3000, 3)
        store.claim(keys, first, UNTIL, NOW)
        # A duplicate leaves the end where it was
        store.claim(keys, second, UNTIL + 50, NOW + 1)
        assert told(store.claim(keys, second, UNTIL + 100, UNTIL)) == told(first)
        assert told(store.claim(keys, second, UNTIL + 100, UNTIL + 1)) == told(second)
        assert told(store.claim(keys, first, UNTIL + 200, UNTIL + 100)) == told(second)

    def test_only_owners_release(self, store: ClaimStore) -> None:
        keys, first, second = some_keys(4000), some_owners(4000), some_owners(4000, 3)
        store.claim(keys, first, UNTIL, NOW)
        tried = second.copy()
        tried[::2] = first[::2]
        store.release(keys, tried)
        store.release(some_keys(10, 99), some_owners(10))
        expected = first.copy()
        expected[::2] = second[::2]
        assert told(store.claim(keys, second, UNTIL, NOW)) == told(expected)

    def test_two_at_once_never_both_get_a_key(self, opens: Opens) -> None:
        keys, found = some_keys(20_000), {}
        # An object is one thread's: each opens its own
        start = threading.Barrier(3)

        def claim(number: int) -> None:
            mine = opens()
            order = np.random.default_rng(number).permutation(len(keys))
            start.wait()
            holders = mine.claim(keys[order], some_owners(len(keys), number)[order], UNTIL, NOW)
            found[number] = np.empty_like(holders)
            found[number][order] = holders
            mine.close()

        threads = [threading.Thread(target=claim, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (found[0] == found[1]).all() and (found[1] == found[2]).all()
        offered = np.stack([some_owners(len(keys), number) for number in range(3)])
        assert (found[0] == offered).all(axis=2).any(axis=0).all()

    def test_another_object_sees_the_same(self, opens: Opens) -> None:
        one, other = opens(), opens()
        keys, owners = some_keys(10), some_owners(10)
        one.claim(keys, owners, UNTIL, NOW)
        one.keep({"alive/a": "17"}, one.run())
        one.close()
        one.close()
        assert told(other.claim(keys, some_owners(10, 3), UNTIL, NOW)) == told(owners)
        assert other.notes()["alive/a"] == "17"
        assert is_same_run(opens().run(), other.run())

    def test_notes(self, store: ClaimStore) -> None:
        assert store.notes() == {}
        store.keep({"alive/a": "1 two three"}, store.run())
        store.keep({"opened/größe": ""}, store.run())
        store.keep({"opened/b": "r@0"}, store.run())
        store.keep({"alive/a": "2 ä"}, store.run())
        assert store.notes() == {"alive/a": "2 ä", "opened/b": "r@0"}

    def test_no_note_is_written_in_another_run(self, store: ClaimStore) -> None:
        with pytest.raises(StoreAwayError):
            store.keep({"alive/a": "3"}, "another@0")
        assert store.notes().get("alive/a") != "3"

    def test_an_owner_may_claim_for_longer(self, store: ClaimStore) -> None:
        """A range that was planned anew counts from then on; for others it is as it was."""
        keys, owners, others = some_keys(3000), some_owners(3000), some_owners(3000, 9)
        store.claim(keys, owners, NOW + 10, NOW)
        assert told(store.claim(keys, owners, NOW + 50, NOW + 5)) == told(owners)
        assert told(store.claim(keys, owners, NOW + 20, NOW + 5)) == told(owners)
        assert told(store.claim(keys, others, NOW + 99, NOW + 40)) == told(owners)
        assert told(store.claim(keys, others, NOW + 99, NOW + 51)) == told(others)

    def test_a_sweep_drops_what_has_ended(self, store: ClaimStore) -> None:
        ended, held = some_keys(2000), some_keys(1000, 11)
        store.claim(ended, some_owners(2000), NOW - 1, NOW - 10)
        store.claim(held, some_owners(1000), NOW, NOW - 10)
        dropped, calls = 0, 0
        while dropped < 2000 and calls < 100:
            # Each goes on where the one before it stopped
            dropped, calls = dropped + store.sweep(NOW, 0.1), calls + 1
        # Some drop claims by the file, once all in it have ended
        assert dropped in (0, 2000)
        assert told(store.claim(held, some_owners(1000, 3), UNTIL, NOW)) == told(some_owners(1000))
        owners = some_owners(2000, 4)
        assert told(store.claim(ended, owners, UNTIL, NOW)) == told(owners)

    def test_facts(self, store: ClaimStore) -> None:
        store.claim(some_keys(50_000), some_owners(50_000), UNTIL, NOW)
        facts = store.facts()
        assert is_same_run(facts.run, store.run())
        # Not each store counts: some look at a part
        assert facts.keys is None or 25_000 < facts.keys < 75_000

    # One store for all examples: each takes back what it has at its end
    @settings(
        max_examples=examples(60),
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
        ],
    )
    @given(
        st.integers(0, 2**64 - 1),
        st.lists(
            st.tuples(
                st.sampled_from(["claim", "claim", "release"]),
                st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5)), min_size=1, max_size=20),
                st.integers(0, 8),
                st.integers(0, 20),
            ),
            max_size=12,
        ),
    )
    def test_it_does_what_a_dictionary_does(
        self, store: ClaimStore, salt: int, steps: list[tuple[str, list[tuple[int, int]], int, int]]
    ) -> None:
        held: dict[int, tuple[int, int]] = {}
        now = NOW
        for deed, lines, passed, window in steps:
            now += passed
            keys = _numbered([number for number, _ in lines], salt)
            owners = _owned([owner for _, owner in lines])
            if deed == "release":
                store.release(keys, owners)
                for number, owner in lines:
                    if held.get(number, (0, 0))[0] == owner:
                        del held[number]
                continue
            for number, owner in lines:
                before, until = held.get(number, (-1, -1))
                if until < now or (before == owner and until < now + window):
                    held[number] = (owner, now + window)
            expected = _owned([held[number][0] for number, _ in lines])
            assert told(store.claim(keys, owners, now + window, now)) == told(expected)
        store.release(_numbered(list(held), salt), _owned([owner for owner, _ in held.values()]))


def _numbered(numbers: list[int], salt: int) -> Keys:
    """A key for each number: some share the bytes that they begin with."""
    found = np.zeros((len(numbers), KEY_BYTES), np.uint8)
    found[:, 4:12] = np.frombuffer(salt.to_bytes(8, "big"), np.uint8)
    found[:, 0] = np.array(numbers, np.uint8) % 3
    found[:, 12] = numbers
    return found


def _owned(owners: list[int]) -> Owners:
    return np.array(owners, np.uint8)[:, None].repeat(OWNER_BYTES, axis=1)
