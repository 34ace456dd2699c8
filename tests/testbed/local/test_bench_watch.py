"""Looking at processes while a rate goes on; and orders in other formats."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from sluice.core.errors import ConfigurationError
from sluice.core.load_spec import Column
from sluice.decode.engine.session import run
from sluice.decode.formats import framing_of, make_decoder
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from sluice.decode.messages.memory import memory_file
from sluice.testbed.local.bench_rounds import Held, Watch
from sluice.testbed.local.bench_settings import ORDER_FORMATS, BenchSettings
from sluice.testbed.local.orders import EncodedOrders, Orders, Shape, order_format
from sluice.testbed.local.processes import open_files, usage
from tests.decode.support import table


def test_early_and_late_are_compared_without_the_very_beginning() -> None:
    now, megabytes = 0.0, 0

    def look() -> dict[str, Held]:
        return {"workers": Held(megabytes * 1_000_000, 10 + int(now > 50), 3)}

    watch = Watch(look, seconds=100, clock=lambda: now)
    for tenth in range(1_000):
        now = tenth / 10
        megabytes = 900 if tenth < 50 else 500 + tenth // 100
        watch()
    assert len(watch.seen) == 100  # once a second at most
    growth = watch.growth()["workers"]
    assert growth.early.resident_bytes == 501_000_000
    assert growth.late.resident_bytes == 509_000_000
    assert (growth.early.files, growth.late.files, growth.most_bytes) == (10, 11, 900_000_000)
    assert growth.text == ("501 to 509 MB (at most 900), 10 to 11 files, 3 to 3 processes")


def test_a_short_time_tells_nothing() -> None:
    now = 0.0
    watch = Watch(lambda: {"broker": Held(1, 1, 1)}, seconds=19, clock=lambda: now)
    for second in range(19):
        now = second
        watch()
    assert len(watch.seen) == 19 and watch.growth() == {}


def test_a_role_that_came_later_is_left_out() -> None:
    now = 0.0

    def look() -> dict[str, Held]:
        held = {"broker": Held(1, 1, 1)}
        return held if now < 30 else held | {"workers": Held(1, 1, 1)}

    watch = Watch(look, seconds=60, clock=lambda: now)
    for second in range(60):
        now = second
        watch()
    assert list(watch.growth()) == ["broker"]


def test_memory_and_files_of_a_process_are_seen() -> None:
    mine = usage(os.getpid())
    assert mine is not None and 1 << 20 < mine.resident_bytes <= mine.peak_bytes
    assert open_files(1 << 30) == 0


def test_open_files_of_a_process_are_counted() -> None:
    """Of one in which nobody else opens any, as threads of other tests do here."""
    script = "echo; read word; exec 9</dev/null; echo; read word"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None and shell.stdout is not None
        assert shell.stdout.readline() == b"\n"
        before = open_files(shell.pid)
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == b"\n"
        assert before >= 3 and open_files(shell.pid) == before + 1


@pytest.mark.parametrize("name", ORDER_FORMATS)
def test_orders_in_every_format_are_the_orders(name: str) -> None:
    shape = Shape(12)
    events = next(Orders(3, shape).take(200))
    made = order_format(name, shape)
    messages = events if made.encode is None else made.encode(events)
    columns = [Column(*definition.split()) for definition in shape.definitions]
    text = table(
        *columns,
        format=name,
        options=made.options,
        rows="many" if name == "SQLBatchRequest" else "one",
    )
    with MessageBuffer(framing_of(text)) as buffer:
        buffer.add(messages, range(len(messages)))
        decoded = make_decoder(text).decode(buffer, alone("orders", 0))
    assert decoded.bad == () and decoded.rows == len(events)
    with memory_file(decoded.native) as path:
        rows = run(f"SELECT * FROM file('{path}', Native)", "JSONEachRow").bytes()
    numbers = "SETTINGS output_format_json_quote_64bit_integers = 0"
    with memory_file(b"\n".join(events)) as path:
        structure = ", ".join(shape.definitions)
        wanted = run(
            f"SELECT * FROM file('{path}', JSONEachRow, '{structure}') {numbers}", "JSONEachRow"
        )
    assert [json.loads(row) for row in rows.splitlines()] == [
        json.loads(row) for row in wanted.bytes().splitlines()
    ]


def test_encoded_orders_come_again() -> None:
    encode = order_format("CSV", Shape()).encode
    assert encode is not None
    orders = EncodedOrders(1, Shape(), encode)
    sizes = [len(chunk) for chunk in orders.take(215_000)]
    assert sum(sizes) == 215_000 and max(sizes) == 10_000
    assert [len(chunk) for chunk in orders.take(7)] == [7]


def test_a_format_goes_with_what_it_can() -> None:
    with pytest.raises(ConfigurationError) as caught:
        BenchSettings(format="CSV", bad_share=0.01).check()
    assert "--format CSV with --bad-share" in str(caught.value)
    BenchSettings(format="CSV").check()
