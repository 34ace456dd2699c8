"""The embedded server speaks ClickHouse's HTTP protocol: raw requests, answers and errors."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from sluice.testbed.local.embedded.body import Allowance, Body
from sluice.testbed.local.embedded.errors import QueryError
from sluice.testbed.local.running import ClickHouse
from tests.support.world import wait_for
from tests.testbed.local.http_client import Client

TABLE = (
    "CREATE TABLE t (a UInt64, s String, w String DEFAULT concat('w', s)) ENGINE = MergeTree"
    " ORDER BY a SETTINGS non_replicated_deduplication_window = 100"
)


@pytest.fixture
def table(client: Client, database: str) -> str:
    client.rows(TABLE, database=database)
    return f"{database}.t"


@pytest.mark.parametrize("path", ["/", "/ping", "/replicas_status"])
def test_fixed_pages_answer_ok(client: Client, path: str) -> None:
    assert client.send("GET", path).text == "Ok.\n"
    head = client.send("HEAD", path)
    assert (head.status, head.body, head.headers["Content-Length"]) == (200, b"", "4")


def test_unknown_page_is_404(client: Client) -> None:
    assert client.send("GET", "/nosuch").status == 404


def test_query_may_stand_in_url_in_body_or_in_both(client: Client) -> None:
    assert client.send("GET", "/?query=SELECT%201").text == "1\n"
    assert client.send("POST", "/", b"SELECT 2").text == "2\n"
    assert client.send("POST", "/?query=SELECT%20", b"3").text == "3\n"


def test_formats_and_headers(client: Client) -> None:
    plain = client.query("SELECT 1 AS x", query_id="my-id")
    assert plain.headers["X-ClickHouse-Format"] == "TabSeparated"
    assert plain.headers["X-ClickHouse-Query-Id"] == "my-id"
    assert plain.headers["X-ClickHouse-Timezone"]
    assert plain.headers["X-ClickHouse-Server-Display-Name"]
    assert json.loads(plain.headers["X-ClickHouse-Summary"])["read_rows"] == "1"
    named = client.query("SELECT 1 AS x FORMAT JSONEachRow SETTINGS max_threads = 1")
    assert (named.text, named.headers["X-ClickHouse-Format"]) == ('{"x":1}\n', "JSONEachRow")
    assert client.query("SELECT 1 AS x", default_format="CSVWithNames").text == '"x"\n1\n'


def test_settings_hold_for_their_request_only(client: Client) -> None:
    ask = "SELECT getSetting('max_block_size'), getSetting('log_comment')"
    quoted = "it's \\ a 'comment'"
    answer = client.rows(ask + " FORMAT TSVRaw", max_block_size="77", log_comment=quoted)
    assert answer == f"77\t{quoted}"
    assert client.rows(ask) == "65409\t"
    for _ in range(2):  # in a session too
        assert client.rows(ask, session_id="s1", max_block_size="78") == "78\t"
        assert client.rows(ask, session_id="s1") == "65409\t"


def test_sessions_keep_what_statements_set(client: Client) -> None:
    client.rows("SET max_block_size = 99", session_id="s2")
    client.rows("CREATE TEMPORARY TABLE mine (a UInt8)", session_id="s2")
    assert client.rows("SELECT getSetting('max_block_size')", session_id="s2") == "99"
    assert client.rows("SELECT count() FROM mine", session_id="s2") == "0"
    assert client.query("SELECT count() FROM mine").status == 404
    assert client.query("SELECT 1", session_id="nosuch", session_check="1").status == 404


def test_query_parameters_and_database(client: Client, table: str, database: str) -> None:
    client.rows("INSERT INTO t (a, s) VALUES (1, 'it''s')", database=database)
    assert client.rows("SELECT a FROM t WHERE s = {s:String}", database=database, param_s="it's")
    header = {"X-ClickHouse-Database": database}
    assert client.send("POST", "/", b"SELECT count() FROM t", header).text == "1\n"


@pytest.mark.parametrize(
    ("query", "keys", "code", "status"),
    [
        ("SELECT 1", {"nosuch": "1"}, 115, 404),
        ("SELECT 1", {"bad name": "1"}, 115, 404),
        ("SELECT 1", {"database": "nosuch"}, 81, 404),
        ("SELEC", {}, 62, 400),
        ("", {}, 62, 400),
        ("SELECT 1; SELECT 2", {}, 62, 400),
        ("SELECT nosuch", {}, 47, 404),
        ("SELECT * FROM nosuch", {}, 60, 404),
        ("SELECT 1 FORMAT Nosuch", {}, 73, 404),
        ("SELECT {x:UInt8}", {"param_x": "no"}, 457, 400),
        ("INSERT INTO nosuch FORMAT Native", {}, 60, 404),
        ("SELECT throwIf(number = 1000000) FROM numbers(2000000)", {}, 395, 500),
        ("SELECT 1", {"compress": "1"}, 48, 501),
    ],
)
def test_errors_carry_code_and_status(
    client: Client, query: str, keys: dict[str, str], code: int, status: int
) -> None:
    answer = client.query(query, **keys)
    assert answer.headers["X-ClickHouse-Exception-Code"] == str(code)
    assert answer.status == status
    assert answer.text.startswith(f"Code: {code}. DB::Exception: ")
    assert answer.text.count("DB::Exception") == 1
    assert "(version 26." in answer.text
    assert client.rows("SELECT 1") == "1"  # the connection goes on


def test_get_does_not_write(client: Client, table: str) -> None:
    answer = client.send("GET", f"/?query=INSERT%20INTO%20{table}%20(a)%20VALUES%20(1)")
    assert (answer.status, answer.headers["X-ClickHouse-Exception-Code"]) == (500, "164")
    assert client.send("GET", f"/?query=DROP%20TABLE%20{table}").status == 500
    assert client.rows(f"SELECT count() FROM {table}") == "0"


@pytest.mark.parametrize(
    ("url", "body"),
    [
        ("INSERT INTO {t} (s, a) FORMAT JSONEachRow", b'{"a":1,"s":"x"}\n{"s":"y","a":2}'),
        ("INSERT INTO {t} FORMAT JSONEachRow", b'{"a":1,"s":"x"}\n{"a":2,"s":"y"}\n'),
        ("INSERT INTO {t} (a, s) FORMAT TSV", b"1\tx\n2\ty\n"),
        ("INSERT INTO {t} (a, s) VALUES", b"(1, 'x'), (2, 'y')"),
        ("INSERT INTO {t} (a, s) VALUES (1, 'x'),", b"(2, 'y')"),
        ("INSERT INTO {t} (a, s) VALUES (1, 'x'), (2, 'y')", b""),
        ("INSERT INTO {t} (a, s)", b" VALUES (1, 'x'), (2, 'y')"),
        ("", b"INSERT INTO {t} (a, s) FORMAT CSV\n1,x\n2,y\n"),
        ("INSERT INTO {t} (a, s) SETTINGS max_threads = 1 FORMAT CSV", b"1,x\n2,y\n"),
        (
            "INSERT INTO {t} (a, s) SELECT a, s FROM input('a UInt8, s String') FORMAT CSV",
            b"1,x\n2,y",
        ),
        ("INSERT INTO {t} (a, s) SELECT number + 1, ['x', 'y'][number + 1] FROM numbers(2)", b""),
    ],
)
def test_inserts(client: Client, table: str, url: str, body: bytes) -> None:
    answer = client.query(url.replace("{t}", table), body.replace(b"{t}", table.encode()))
    assert answer.status == 200, answer.text
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["written_rows"] == "2"
    assert client.rows(f"SELECT a, s, w FROM {table} ORDER BY a") == "1\tx\twx\n2\ty\twy"


def test_native_columns_go_by_name(client: Client, table: str) -> None:
    data = client.query("SELECT 'x' AS s, toUInt64(7) AS a FORMAT Native").body
    assert client.query(f"INSERT INTO {table} (a, s) FORMAT Native", data).status == 200
    assert client.rows(f"SELECT a, s, w FROM {table}") == "7\tx\twx"


@pytest.mark.parametrize("chunked", [True, False])
@pytest.mark.parametrize("in_body", [True, False])
def test_gzip_and_chunked_bodies(client: Client, table: str, chunked: bool, in_body: bool) -> None:
    statement = f"INSERT INTO {table} (a, s) FORMAT TSV"
    rows = b"".join(b"%d\tx\n" % number for number in range(50_000))
    packed = gzip.compress((statement.encode() + b"\n" if in_body else b"") + rows)
    pieces: Iterator[bytes] = (packed[at : at + 7000] for at in range(0, len(packed), 7000))
    headers = {"Content-Encoding": "gzip"}
    if chunked:
        headers["Transfer-Encoding"] = "chunked"
    path = "/" if in_body else f"/?query={statement.replace(' ', '%20')}"
    answer = client.send("POST", path, pieces if chunked else packed, headers, chunked=chunked)
    assert answer.status == 200, answer.text
    assert client.rows(f"SELECT count(), uniqExact(a) FROM {table}") == "50000\t50000"


def test_answers_are_packed_on_request(client: Client) -> None:
    path = "/?query=SELECT%20number%20FROM%20numbers(1000)"
    accept = {"Accept-Encoding": "gzip"}
    plain = client.send("GET", path, headers=accept)
    assert "Content-Encoding" not in plain.headers
    packed = client.send("GET", path + "&enable_http_compression=1", headers=accept)
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO {t} (a, s) FORMAT Native",
        "INSERT INTO {t} (a, s) SELECT * FROM input('a UInt64, s String') FORMAT Native",
    ],
)
def test_a_body_is_one_block_and_a_token_is_stored_once(
    client: Client, table: str, statement: str
) -> None:
    count = 2_000_000
    select = f"SELECT number AS a, 'x' AS s FROM numbers({count}) FORMAT Native"
    data = client.query(select, max_block_size="10000000", max_threads="1").body
    for _ in range(2):
        token = {"insert_deduplication_token": "token-1"}
        assert client.query(statement.replace("{t}", table), data, **token).status == 200
    name = table.partition(".")[0]
    parts = f"SELECT rows FROM system.parts WHERE database = '{name}' AND active"
    assert client.rows(parts) == str(count)
    client.query(statement.replace("{t}", table), data, insert_deduplication_token="token-2")
    assert client.rows(f"SELECT count() FROM {table}") == str(2 * count)


def test_many_text_rows_are_one_block_too(client: Client, table: str) -> None:
    rows = b"".join(b'{"a":%d,"s":"x"}\n' % number for number in range(300_000))
    assert client.query(f"INSERT INTO {table} FORMAT JSONEachRow", rows).status == 200
    name = table.partition(".")[0]
    assert client.rows(f"SELECT rows FROM system.parts WHERE database = '{name}'") == "300000"


def test_a_broken_block_stores_nothing(client: Client, table: str) -> None:
    answer = client.query(f"INSERT INTO {table} (a, s) FORMAT TSV", b"1\tx\nno\ty\n")
    assert answer.status == 400
    assert answer.headers["X-ClickHouse-Exception-Code"] == "27"
    assert client.rows(f"SELECT count() FROM {table}") == "0"


def test_a_client_that_leaves_inside_the_body_stores_nothing(
    server: ClickHouse, client: Client, table: str
) -> None:
    assert server.port is not None
    leaving = Client(server.port).connection
    leaving.putrequest("POST", f"/?query=INSERT%20INTO%20{table}%20(a,s)%20FORMAT%20TSV")
    leaving.putheader("Content-Length", "1000")
    leaving.endheaders(b"1\tx\n2\ty\n")
    # The server's last word, so that it has done with the connection whatever it did.
    assert leaving.sock is not None
    leaving.sock.shutdown(socket.SHUT_WR)
    while leaving.sock.recv(4096):
        pass
    leaving.close()
    assert client.rows(f"SELECT count() FROM {table}") == "0"


def test_slow_reads_do_not_hold_up_inserts(server: ClickHouse, client: Client, table: str) -> None:
    assert server.port is not None
    slow = Client(server.port)
    query = "SELECT sleepEachRow(1) FROM numbers(120) SETTINGS max_block_size = 1"
    query_id = f"slow-{table}"
    thread = threading.Thread(target=slow.query, args=(query,), kwargs={"query_id": query_id})
    thread.start()
    processes = "SELECT query FROM system.processes WHERE query_id = {id:String}"
    wait_for(lambda: client.rows(processes, param_id=query_id) != "", 30, "the slow query's start")
    assert client.query(f"INSERT INTO {table} (a) VALUES (1)").status == 200
    assert thread.is_alive()
    client.rows(f"KILL QUERY WHERE query_id = '{query_id}'")
    thread.join()
    wait_for(lambda: client.rows(processes, param_id=query_id) == "", 30, "the slow query's end")


def test_kill_query_knows_the_clients_id(server: ClickHouse, client: Client) -> None:
    assert server.port is not None
    slow = Client(server.port)
    with ThreadPoolExecutor(1) as pool:
        query = "SELECT sleepEachRow(1) FROM numbers(120) SETTINGS max_block_size = 1"
        answer = pool.submit(slow.query, query, query_id="kill-me")
        ids = "SELECT query_id FROM system.processes"
        wait_for(lambda: "kill-me" in client.rows(ids), 30, "the start of the slow query")
        assert "kill-me" not in client.rows("KILL QUERY WHERE query_id = 'someone-else'")
        client.rows("KILL QUERY WHERE query_id = 'kill-me'")
        assert answer.result().headers["X-ClickHouse-Exception-Code"] == "394"


@pytest.mark.slow
def test_concurrent_inserts_all_arrive(server: ClickHouse, client: Client, table: str) -> None:
    assert server.port is not None
    port = server.port

    def load(worker: int) -> None:
        own = Client(port)
        for number in range(20):
            row = b"%d\tx\n" % (worker * 100 + number)
            token = f"{worker}-{number}"
            for _ in range(2):
                answer = own.query(
                    f"INSERT INTO {table} (a, s) FORMAT TSV", row, insert_deduplication_token=token
                )
                assert answer.status == 200, answer.text

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(load, range(8)))
    assert client.rows(f"SELECT count(), uniqExact(a) FROM {table}") == "160\t160"


@pytest.mark.slow
def test_memory_stays_flat_over_many_inserts(
    server: ClickHouse, client: Client, table: str
) -> None:
    def load(count: int) -> None:
        for _ in range(count):
            client.query(f"INSERT INTO {table} (a, s) FORMAT TSV", b"1\tx\n" * 100)

    load(100)
    before_bytes = _resident_bytes(server.pid)
    load(400)
    assert _resident_bytes(server.pid) - before_bytes < 100 << 20


def test_too_many_requests_are_refused_and_the_connection_goes_on(
    server: ClickHouse, client: Client
) -> None:
    port = server.port
    assert port is not None
    assert client.rows("SELECT 1") == "1"  # the first one waits until the engine is in memory
    others: list[http.client.HTTPConnection] = []

    def is_full() -> bool:
        # A request runs from its headers on: each waits for the rest of its body, however slow we
        # are. The question takes a place, too, and one of the others may be refused for it.
        for _ in range(1 if others else 64):
            others.append(Client(port).connection)
            others[-1].putrequest("POST", "/?query=SELECT")
            others[-1].putheader("Content-Length", "2")
            others[-1].endheaders(b" ")
        return client.query("SELECT 1").status == 503

    wait_for(is_full, 25, "as many requests as may run")
    refused = client.query("INSERT INTO nosuch FORMAT TSV", b"x" * 10_000_000)
    assert (refused.status, refused.headers["X-ClickHouse-Exception-Code"]) == (503, "202")
    for other in others:
        other.send(b"1")
    answers = [other.getresponse() for other in others]
    assert Counter(answer.status for answer in answers)[200] == 64
    assert {answer.read() for answer in answers if answer.status == 200} == {b"1\n"}
    assert client.rows("SELECT 1") == "1"


def test_bodies_have_a_common_limit() -> None:
    allowance = Allowance(100)
    with closing(Body(allowance)) as first:
        first.write(b"x" * 60)
        with closing(Body(allowance)) as second, pytest.raises(QueryError) as told:
            second.write(b"x" * 60)
        assert told.value.status == 503
    assert allowance.bytes_used == 0


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("query", ["SELECT version()", "SELECT timezone()"])
def test_the_engine_says_what_it_is(client: Client, query: str) -> None:
    assert client.rows(query)


@pytest.mark.parametrize(
    "table_name", ["settings", "parts", "columns", "tables", "merge_tree_settings", "processes"]
)
def test_system_tables_answer(client: Client, table_name: str) -> None:
    assert int(client.rows(f"SELECT count() FROM system.{table_name}")) >= 0
