"""Whole blocks: rows, lineage, defaults, partitions, and messages that are set aside."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sluice.core.errors import TerminalError
from sluice.core.load_spec import Column
from sluice.decode.engine import session as session_module
from sluice.decode.engine.native import read_header
from sluice.decode.messages.buffer import MessageBuffer
from sluice.decode.messages.facts import alone
from sluice.decode.text.decoder import Decoder
from tests.decode.support import FIRST_OFFSET, LINEAGE, LINEAGE_NAMES, decode, fill, rows, table

ID = Column("id", "UInt64")
TEXT = Column("s", "String")


def with_lineage(*columns: Column, **changes: object) -> Decoder:
    return Decoder(table(*columns, *LINEAGE, lineage=LINEAGE_NAMES, **changes))


def test_rows_stay_in_offset_order_with_their_lineage() -> None:
    decoded = decode(with_lineage(ID), [b'{"id":%d}' % (7 * n % 1001) for n in range(1001)])
    expected = [[str(7 * n % 1001), "orders", 3, str(FIRST_OFFSET + 2 * n), 0] for n in range(1001)]
    assert rows(decoded) == expected
    assert decoded.columns == ("id", "_topic", "_partition", "_offset", "_row")
    assert decoded.offsets.tolist() == [FIRST_OFFSET + 2 * n for n in range(1001)]
    assert (decoded.rows, decoded.bad, decoded.clickhouse_partitions) == (1001, (), 1)


def test_lineage_in_the_message_is_not_believed() -> None:
    assert rows(decode(with_lineage(ID), [b'{"id":1,"_offset":5,"_topic":"forged"}'])) == [
        ["1", "orders", 3, str(FIRST_OFFSET), 0]
    ]


def test_lineage_types_of_the_server() -> None:
    columns = (
        Column("_topic", "LowCardinality(String)"),
        Column("_partition", "UInt64"),
        Column("_offset", "Int64"),
    )
    names = tuple(column.name for column in columns)
    decoder = Decoder(table(*columns, ID, lineage=names))
    assert rows(decode(decoder, [b'{"id":1}', b'{"id":2}'])) == [
        ["1", "orders", "3", str(FIRST_OFFSET)],
        ["2", "orders", "3", str(FIRST_OFFSET + 2)],
    ]


@pytest.mark.parametrize(
    "columns",
    [
        (ID, Column("_offset", "String")),
        (ID, Column("_offset", "UInt64", "MATERIALIZED", "1")),
        (ID,),
    ],
)
def test_lineage_that_cannot_be_written_is_refused(columns: tuple[Column, ...]) -> None:
    with pytest.raises(TerminalError, match="_offset") as error:
        Decoder(table(*columns, lineage=("_offset",)))
    assert error.value.hint


def test_offset_that_does_not_fit_is_refused() -> None:
    decoder = Decoder(table(ID, Column("_offset", "UInt8"), lineage=("_offset",)))
    with pytest.raises(TerminalError, match="_offset UInt8 cannot hold 1000"):
        decode(decoder, [b'{"id":1}'])


def test_one_block_however_many_rows() -> None:
    decoded = decode(Decoder(table(Column("id", "UInt32"))), [b'{"id":1}'] * 1_000_000, poll=5000)
    assert decoded.rows == 1_000_000
    columns, count, begin = read_header(memoryview(decoded.native))
    assert (columns, count) == (1, 1_000_000)
    assert len(decoded.native) == begin + len(b"\x02id\x06UInt32") + 4_000_000


def test_no_rows_no_block() -> None:
    decoder = with_lineage(ID, partition_key="id")
    for values in ([], [b"[]", b""]):
        decoded = decode(decoder, values)
        assert (decoded.native, decoded.rows, decoded.clickhouse_partitions) == (b"", 0, 0)
        assert len(decoded.bad) == len(values)


def test_structure_faults_cost_no_neighbour() -> None:
    values = [
        b'{"id":1,"s":"}\\n{"}',
        b'{"id":1}{"id":2,"s":"}',
        b'{"}',
        b"",
        b"[]",
        b'{"id":2,\n"s":"x"}',
        b'{"id":3',
        b'\xef\xbb\xbf{"id":4}',
        b'{"id":5},',
        b"5",
        b'{"id":6,"s":"\xff"}',
        b'{"id":7,"s":"a\nb"}',
    ]
    decoded = decode(Decoder(table(ID, TEXT)), values)
    assert [bad.index for bad in decoded.bad] == [1, 2, 3, 4, 6, 7, 8, 9, 11]
    assert {bad.reason for bad in decoded.bad} == {"not-one-object"}
    assert [bad.offset for bad in decoded.bad[:2]] == [FIRST_OFFSET + 2, FIRST_OFFSET + 4]
    assert decoded.offsets.tolist() == [FIRST_OFFSET, FIRST_OFFSET + 10, FIRST_OFFSET + 20]


@pytest.mark.parametrize("messages", [2, 4])
def test_a_pass_that_makes_another_number_of_rows_than_of_messages_is_none(messages: int) -> None:
    """Whatever the proof of boundaries lets through: the rows would get wrong offsets."""
    decoder = with_lineage(Column("id", "UInt32"))
    with MessageBuffer() as buffer:
        fill(buffer, [b'{"id":%d}' % number for number in range(3)])
        whole = decoder._strict(buffer, 3)
        assert whole is not None and whole.rows == 3
        whole.close()
        assert decoder._strict(buffer, messages) is None


def test_halves_of_messages_never_make_a_row() -> None:
    """Three messages that end outside strings and give three rows, none of them a message's:
    the first row is made of two, and the third message gives two."""
    values = [b'{"id":1,"z":{"q":{}', b'{"b":2}}}', b'{"id":2}{"id":3}']
    decoded = decode(Decoder(table(ID)), [*values, b'{"id":4}'])
    assert rows(decoded) == [["4"]]
    assert [bad.reason for bad in decoded.bad] == ["not-one-object"] * 3


def test_bad_values_say_what_and_where() -> None:
    decoder = Decoder(table(ID, Column("n", "UInt8"), Column("at", "DateTime")))
    decoded = decode(
        decoder,
        [b'{"id":1,"n":300}', b'{"id":null}', b'{"id":3}', b'{"at":"2200-01-01"}', b'{"n":"x"}'],
    )
    facts = [(bad.index, bad.reason, bad.column) for bad in decoded.bad]
    assert facts == [
        (0, "out-of-range", "n"),
        (1, "null-in-column", "id"),
        (3, "out-of-range", "at"),
        (4, "cannot-parse", "n"),
    ]
    assert decoded.bad[0].error == "300 does not fit column n UInt8"
    assert all("/proc/" not in bad.error and len(bad.error) <= 300 for bad in decoded.bad)
    assert rows(decoded) == [["3", 0, "1970-01-01 00:00:00"]]


def test_short_uuid_does_not_swallow_the_next_message() -> None:
    decoder = Decoder(table(Column("u", "UUID"), Column("n", "UInt8")))
    decoded = decode(decoder, [b'{"u":"x"}', b'{"n":1}', b'{"u":"1"}'] * 200)
    assert [row[1] for row in rows(decoded)] == [1] * 200
    assert [bad.index for bad in decoded.bad] == [n for n in range(600) if n % 3 != 1]


def test_unknown_fields() -> None:
    values = [b'{"id":1}', b'{"id":2,"strange":{"a":[1]}}', b'{"strange":1,"id":3}'] * 150
    assert decode(Decoder(table(ID)), values).rows == 450
    decoded = decode(Decoder(table(ID, unknown_fields="refuse")), values)
    assert decoded.rows == 150
    assert {(bad.reason, bad.column) for bad in decoded.bad} == {("unknown-field", "strange")}


def test_absent_fields_take_the_tables_defaults() -> None:
    decoder = Decoder(
        table(
            Column("a", "UInt8"),
            Column("b", "UInt16", "DEFAULT", "a + 1"),
            Column("c", "String", "DEFAULT", "concat('b=', toString(b), ' ', toTypeName(a))"),
            Column("d", "UInt8", "DEFAULT", "a * 2"),
            Column("raw", "String", "EPHEMERAL"),
            Column("e", "UInt64", "DEFAULT", "length(raw)"),
            Column("m", "UInt8", "MATERIALIZED", "a + 100"),
            Column("l", "UInt8", "ALIAS", "a"),
        )
    )
    decoded = decode(decoder, [b'{"a":255,"raw":"xyz"}', b'{"b":7,"m":3}', b'{"a":1,"d":null}'])
    assert decoded.columns == ("a", "b", "c", "d", "e")
    assert rows(decoded) == [
        # 2 * 255 wraps in the server's DEFAULT of a UInt8 column too.
        [255, 256, "b=256 UInt8", 254, "3"],
        [0, 7, "b=7 UInt8", 0, "0"],
    ]
    assert [bad.column for bad in decoded.bad] == ["d"]


def test_default_that_throws_costs_one_message() -> None:
    decoder = Decoder(table(TEXT, Column("n", "UInt8", "DEFAULT", "throwIf(s = 'x') + 1")))
    values = [b'{"s":"%d"}' % (n % 200) for n in range(300)]
    values[41] = b'{"s":"x"}'
    decoded = decode(decoder, values)
    assert [bad.index for bad in decoded.bad] == [41]
    assert decoded.rows == 299


def test_clickhouse_partitions_are_counted_through_dependent_columns() -> None:
    columns = (
        Column("at", "DateTime"),
        Column("day", "Date", "MATERIALIZED", "toDate(at)"),
        Column("month", "UInt32", "ALIAS", "toYYYYMM(day)"),
    )
    values = [b'{"at":"2026-%02d-%02d 01:00:00"}' % (1 + n % 3, 1 + n % 28) for n in range(84)]

    def count(key: str, *more: Column) -> int:
        lineage = ("_partition", "_offset") if more else ()
        decoder = Decoder(table(*columns, *more, partition_key=key, lineage=lineage))
        decoded = decode(decoder, values)
        assert decoded.columns[0] == "at" and decoded.rows == 84
        assert len(rows(decoded)[0]) == 1 + len(more)
        return decoded.clickhouse_partitions

    assert count("") == 1
    assert count("toYYYYMM(at)") == 3
    assert count("(month, toDayOfMonth(day))") == 84
    assert count("tuple()") == 1
    assert count("intDiv(_offset, 84)", *LINEAGE[1:3]) == 3
    assert count("_partition", *LINEAGE[1:3]) == 1


def test_time_zone_is_the_tables() -> None:
    decoder = Decoder(table(Column("at", "DateTime"), time_zone="Asia/Tokyo"))
    value = b'{"at":"2026-01-02 09:00:00"}'
    assert rows(decode(decoder, [value])) == [["2026-01-02 00:00:00"]]


@pytest.mark.parametrize(
    "text",
    [
        table(Column("a", "NoSuchType")),
        table(Column("a", "UInt8", "DEFAULT", "nope(")),
        table(Column("a", "UInt8", "DEFAULT", "no_such_function(1)")),
        table(ID, partition_key="missing_column"),
        table(),
    ],
)
def test_text_that_cannot_be_executed_is_terminal(text: object) -> None:
    with pytest.raises(TerminalError) as error:
        Decoder(text)  # type: ignore[arg-type]
    assert error.value.hint


def test_same_messages_same_bytes_whatever_the_polls() -> None:
    values = [b'{"id":%d,"s":"x%d"}' % (n, n) for n in range(5000)]
    values[17], values[1234] = b'{"id":-1}', b"["
    texts = table(ID, TEXT, *LINEAGE, lineage=LINEAGE_NAMES)
    outcomes = [decode(Decoder(texts), values, poll) for poll in (1, 500, 5000)]
    for other in outcomes[1:]:
        assert (other.native, other.bad) == (outcomes[0].native, outcomes[0].bad)
        assert other.checksum == outcomes[0].checksum
    values[3000] = b'{"id":3000,"s":"x3001"}'
    assert decode(Decoder(texts), values).checksum != outcomes[0].checksum


def test_many_bad_messages_are_affordable() -> None:
    """Two fifths of a block bad, in five ways; a bisection would take minutes."""
    decoder = Decoder(table(ID, Column("n", "UInt8"), Column("at", "DateTime")))
    ways = [b'{"id":1,"n":300}', b'{"n":"x"}', b'{"id":1', b'{"at":"2200-01-01"}', b'{"id":null}']
    values = [b'{"id":%d,"n":1,"at":"2026-01-02 03:04:05"}' % n for n in range(50_000)]
    values[::5], values[1::5] = ways * 2000, ways * 2000
    begin = time.process_time()
    decoded = decode(decoder, values)
    assert time.process_time() - begin < 15
    assert decoded.rows == 30_000
    assert [bad.index for bad in decoded.bad] == [n for n in range(50_000) if n % 5 < 2]
    by_way = {way: {bad.reason for bad in decoded.bad if values[bad.index] == way} for way in ways}
    assert list(by_way.values()) == [
        {"out-of-range"},
        {"cannot-parse"},
        {"not-one-object"},
        {"out-of-range"},
        {"null-in-column"},
    ]


def test_memory_does_not_grow_and_threads_do_not_meet() -> None:
    decoder = with_lineage(ID, TEXT)
    values = [b'{"id":%d,"s":"%d"}' % (n, n) for n in range(20_000)]
    expected = decode(decoder, values).checksum
    seen: list[str] = []

    def work() -> None:
        with MessageBuffer() as buffer:
            for _ in range(5):
                buffer.clear()
                seen.append(decoder.decode(fill(buffer, values), alone("orders", 3)).checksum)

    for _ in range(2):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert seen == [expected] * 20


def test_package_does_not_load_the_engine() -> None:
    program = (
        "import sys, sluice.decode.text.decoder, sluice.decode.messages.buffer;"
        "print('chdb' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_an_engine_that_cannot_give_memory_back_fails_no_range(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def refuse(query: str, _: str) -> None:
        asked.append(query)
        raise session_module.EngineError("Code: 344. SUPPORT_IS_DISABLED")

    session_module.run("SYSTEM JEMALLOC PURGE", "Null")  # the real engine obeys
    monkeypatch.setattr(session_module, "run", refuse)
    session_module.release_memory()
    assert asked == ["SYSTEM JEMALLOC PURGE"]


def test_a_process_stays_below_its_memory() -> None:
    """64 MiB of messages, in a process of its own: 504 and 588 MB were seen, so a worker with
    full ranges is not surely below 600; this bound only holds a doubling."""
    program = "from tests.decode.test_decoder import fill_64_mib; print(fill_64_mib())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 700


def fill_64_mib() -> int:
    """The peak in MB of a process that decodes 64 MiB of the benchmark's messages."""
    columns = "id UInt64,user_id UInt32,at DateTime,amount Float64,country String,note String"
    decoder = with_lineage(*(Column(*text.split(" ")) for text in columns.split(",")))
    with MessageBuffer() as buffer:
        for begin in range(0, 347_500, 500):
            part = [
                b'{"id":%d,"user_id":%d,"at":"2026-01-02 03:04:05","amount":1.5,"country":"DE",'
                b'"note":"%b"}' % (n, n % 9999, b"x" * 100)
                for n in range(begin, begin + 500)
            ]
            buffer.add(part, list(range(begin, begin + 500)))
        assert buffer.bytes > 60 << 20
        assert decoder.decode(buffer, alone("orders", 3)).rows == 347_500
    # Not getrusage, whose peak may be that of the process which forked this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("VmHWM:")[1].split()[0]) // 1000
