"""What a buffer keeps of the messages, and that its memory is reused."""

from __future__ import annotations

import gc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from sluice.core.errors import TerminalError
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.views import subset, without
from sluice.machine.compiled import library
from tests.decode.support import FIRST_OFFSET, fill


def without_end(buffer: MessageBuffer) -> bytes:
    """What the engine reads, but for the newlines behind it."""
    return Path(buffer.path).read_bytes().rstrip(b"\n")


def test_messages_come_back_as_they_were() -> None:
    values = [b'{"a":1}', b"", b'{"a":\n2}', b"[", b'{"a":"' + b"x" * 100_000 + b'"}', b"{}"]
    with fill(MessageBuffer(), values, poll=2) as buffer:
        assert buffer.messages == 6
        assert buffer.bytes == sum(map(len, values))
        assert list(buffer.iterate(np.arange(6))) == values
        assert buffer.offsets.tolist() == [FIRST_OFFSET + 2 * index for index in range(6)]
        assert list(buffer.iterate(np.array([1, 4, 5]))) == [values[1], values[4], values[5]]
        assert buffer.faults == [1, 3]


def test_messages_are_hidden_from_the_engine_for_a_while() -> None:
    values = [b"[%d]" % n if n % 7 == 3 else b'{"a":%d}' % n for n in range(1000)]
    bad = [n for n in range(1000) if n % 7 == 3]
    with fill(MessageBuffer(), values, poll=10) as buffer:
        assert buffer.faults == bad
        before = Path(buffer.path).read_bytes()
        with without(buffer, np.array(bad)):
            text = Path(buffer.path).read_bytes()
            assert [line.strip() for line in text.split(b"\n") if line.strip()] == [
                value for n, value in enumerate(values) if n % 7 != 3
            ]
        assert Path(buffer.path).read_bytes() == before
        assert list(buffer.iterate(np.arange(1000))) == values


def test_any_number_of_messages_may_be_at_fault_at_once() -> None:
    """The system writes 1,024 parts at once, and a reader may deliver 16,384 messages."""
    values = [b'{"a":' if n % 2 else b"{}" for n in range(3000)]
    with MessageBuffer() as buffer:
        buffer.add(values, range(3000))
        assert buffer.faults == list(range(1, 3000, 2))
        assert list(buffer.iterate(np.arange(3000))) == values


def test_subset_is_a_buffer_of_its_own() -> None:
    with fill(MessageBuffer(), [b"%d" % n for n in range(2000)]) as buffer:
        indices = np.array([0, 3, 1999])
        with subset(buffer, indices) as part:
            assert list(part.iterate(np.arange(3))) == [b"0", b"3", b"1999"]
            assert part.offsets.tolist() == (FIRST_OFFSET + 2 * indices).tolist()


def test_clear_forgets_messages() -> None:
    with MessageBuffer() as buffer:
        fill(buffer, [b"[", b'{"a":' + b"9" * 80 + b"}", b"{}"] * 100)
        assert buffer.faults and buffer.long_digits
        buffer.clear()
        assert (buffer.messages, buffer.bytes, buffer.faults, buffer.long_digits) == (0, 0, [], [])
        fill(buffer, [b"{}"])
        assert without_end(buffer) == b"{}"


def test_nothing_of_the_range_before_is_read_whatever_its_size() -> None:
    """Also where the file has by chance the size that the next range will have with its end."""
    for more in range(500, 530):
        with MessageBuffer() as buffer:
            fill(buffer, [b'{"a":"%s"}' % (b"x" * (more - 9))] * 2)
            buffer.clear()
            fill(buffer, [b"{}" + b" " * (more - 3)])
            assert without_end(buffer).strip() == b"{}"


def test_closing_gives_the_file_back() -> None:
    def open_buffers() -> int:
        """Not of all files: threads of other tests open some."""
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found += str(link.readlink()).startswith("/memfd:sluice-messages")
        return found

    gc.collect()
    before = open_buffers()
    with fill(MessageBuffer(), [b"{}"]) as buffer:
        assert open_buffers() == before + 1
        buffer.close()
        assert open_buffers() == before
    for _ in range(50):
        with fill(MessageBuffer(), [b"{}"]):
            pass
    MessageBuffer()
    assert open_buffers() == before


@pytest.mark.parametrize("digits", [61, 70, 200])
@pytest.mark.parametrize("shift", range(0, 40, 3))
def test_long_digits_are_found_at_every_position(digits: int, shift: int) -> None:
    value = b'{"%b":%b,"b":"x"}' % (b"k" * (1 + shift), b"7" * digits)
    other = b'{"a":"2026-01-02 03:04:05","b":1234567890123456789012345678901}'
    with fill(MessageBuffer(), [other] * 7 + [value] + [other] * 5) as buffer:
        assert buffer.long_digits == [7]


def test_identifiers_are_not_long_digits() -> None:
    value = b'{"a":"' + b"1" * 60 + b'"}'
    with fill(MessageBuffer(), [value] * 50) as buffer:
        assert buffer.long_digits == []


def test_a_missing_compiled_part_is_told() -> None:
    with pytest.raises(TerminalError) as caught:
        library(__file__, "_absent")
    assert "_absent is missing: it was not built" in str(caught.value)
    assert "C compiler" in caught.value.hint
