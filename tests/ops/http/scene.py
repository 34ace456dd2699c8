"""A real HTTP server over loops in a world in memory."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sluice.config import Configuration, HttpConfiguration, load
from sluice.config.clickhouse import CertificatesConfiguration
from sluice.driver.connector import ConnectorRun
from sluice.driver.loop import ConnectorLoop
from sluice.ops.http.server import HttpServer
from sluice.ops.proof import Proof

ALICE = "a" * 20 + "-of-alice"

CONFIGURATION = """\
[pipeline]
name = "{name}"
[[connector]]
name = "dc1"
brokers = "127.0.0.1:1"
topics = ["a"]
[batch]
[clickhouse]
database = "d"
shards = {{ s1 = ["http://127.0.0.1:1"] }}
durability = "single"
[[table]]
name = "t"
topics = ["a"]
"""


def run_of(loop: ConnectorLoop | None, name: str = "dc1", **more: Any) -> ConnectorRun:
    """A connector that runs, or says why it does not."""
    facts = {"doing": "starting", "error": None, "is_ended": False, "status": 0}
    facts |= {"fleet": None, "owner": "", "version": None, **more}
    unread = SimpleNamespace(path=Path("/nowhere/sluice.toml"), pipeline="orders", parkable=())
    facts.setdefault("configuration", unread)
    made = SimpleNamespace(connector=SimpleNamespace(name=name), loop=loop, **facts)
    return cast(ConnectorRun, made)


@dataclass
class Answer:
    """What the server said."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A server on a free port."""

    def __init__(
        self,
        folder: Path,
        runs: Sequence[ConnectorRun],
        tokens: str = f"alice {ALICE}\n",
        name: str = "orders",
        tls: CertificatesConfiguration | None = None,
        more: str = "",
        of: Configuration | None = None,
    ) -> None:
        path = folder / "served.toml"
        path.write_text(CONFIGURATION.format(name=name) + more)
        self.tokens = folder / "tokens"
        self.tokens.write_text(tokens)
        self.configuration: Configuration = of or load(path, {})
        for run in runs:
            run.configuration = self.configuration
        certificates = tls or CertificatesConfiguration()
        where = HttpConfiguration(("127.0.0.1", 0), tokens_file=str(self.tokens), tls=certificates)
        self.proof = Proof(self.configuration)
        self.server = HttpServer(where, self.configuration, runs, self.proof)
        self.port = self.server.port

    def ask(
        self,
        path: str,
        method: str = "GET",
        body: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, answer.read(), dict(answer.getheaders()))
        finally:
            connection.close()

    def decide(self, path: str, said: object, **headers: str) -> Answer:
        """A decision as alice makes it."""
        usual = {"Authorization": f"Bearer {ALICE}", "Content-Type": "application/json"}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        body = said if isinstance(said, str | bytes) else json.dumps(said)
        return self.ask(path, "POST", body, usual | given)
