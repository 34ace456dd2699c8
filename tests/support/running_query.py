"""A query that somebody has running on a server, for as long as a test needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sluice.clickhouse.http import Server
from sluice.clickhouse.probe import running_query_ids
from sluice.core.errors import SluiceError
from tests.support.world import wait_for

#: For the query's start and for its end, beside other tests.
_SECONDS = 120.0


@contextmanager
def running_query(server: Server, query_id: str, user: str = "") -> Iterator[None]:
    """It runs under this query id from before the block until it is killed behind it.

    :param server: may see and kill the queries of all users.
    :param user: whose query it is; "": nobody in particular.
    """

    def run() -> None:
        settings = {"query_id": query_id, "max_block_size": "1"}
        with Server(server.url, user) as other, suppress(SluiceError):  # it is killed
            other.query("SELECT sleepEachRow(0.2) FROM system.numbers", {}, settings, 900)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_for(lambda: running_query_ids(server, query_id) == [query_id], _SECONDS, "the query")
        yield
    finally:
        server.execute(f"KILL QUERY WHERE query_id = '{query_id}'")
        thread.join()
    wait_for(lambda: not running_query_ids(server, query_id), _SECONDS, "its end")
