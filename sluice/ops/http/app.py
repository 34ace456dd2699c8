"""What the HTTP server answers. Who changes something shows a token, and says why."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice import __version__
from sluice.config import Configuration
from sluice.core.decided import LOG_LEVEL, MAX_INFLIGHT_INSERTS
from sluice.core.errors import ConfigurationError, SluiceError, TransientError
from sluice.driver.connector import ConnectorRun, now_ms
from sluice.driver.loop import ConnectorLoop
from sluice.ops.applying import apply_own_file
from sluice.ops.driver_decisions import DecisionRefusedError, drain, freeze, resume, set_value
from sluice.ops.http.openapi import described
from sluice.ops.http.tokens import Rate, Tokens
from sluice.ops.metrics import LoopCollector
from sluice.ops.partition_metrics import partition_text
from sluice.ops.proof import Proof
from sluice.ops.proof_metrics import ProofCollector
from sluice.ops.running import ConnectorNow, Rates, look_at, why_not_alive, why_not_ready
from sluice.ops.running_metrics import RunningCollector

_logger = logging.getLogger("sluice.http")

#: Looks at the loops are shared: however many ask, one in this time.
LOOK_EVERY_SECONDS = 1.0
BODY_BYTES_MAX = 4096
#: All headers of a request.
HEADER_BYTES_MAX = 16 * 1024
DECISIONS_PER_MINUTE = 30
REFUSALS_PER_MINUTE = 10

_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; "
        b"connect-src 'self'; img-src data:; base-uri 'none'; "
        b"form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}

Decide = Callable[..., list[str]]


@dataclass(frozen=True, slots=True)
class Words:
    """What the body of a decision says besides why, and what it is answered with.

    :param answers: the name of the lines that it is answered with.
    :param may: what may be said, all strings.
    :param value: what has to be said, of any type; "": nothing.
    """

    answers: str
    may: tuple[str, ...] = ()
    value: str = ""

    def read(self, said: object) -> dict[str, Any]:
        """What a person decided, and why.

        :raises RefusedError: something is missing, or is too much.
        """
        needs = {"why", self.value} - {""}
        if not isinstance(said, dict) or not needs <= said.keys() <= needs | {*self.may}:
            may = f", and perhaps {' or '.join(self.may)}" if self.may else ""
            named = " and ".join(sorted(needs, reverse=True))
            raise RefusedError(400, f"the body has to be an object with {named}{may}")
        if not all(isinstance(value, str) for key, value in said.items() if key != self.value):
            raise RefusedError(400, "all values have to be strings")
        given = {"value": said.pop(self.value)} if self.value else {}
        return {**dict.fromkeys(self.may, ""), **said, **given}


_FREEZE = Words("frozen", ("connector", "table", "replica", "data_center"))
_LEVEL = Words("settings", (), "level")
_LIMIT = Words("settings", ("connector",), MAX_INFLIGHT_INSERTS)
_DRAIN = Words("drained")
_APPLY = Words("applied")


class RefusedError(Exception):
    """A request that is not carried out.

    :param status: of HTTP.
    """

    def __init__(self, status: int, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.status, self.answer = status, {"error": what, "hint": hint}


class Looks:
    """The last look at all connectors; any thread may ask."""

    def __init__(self, runs: Sequence[ConnectorRun]) -> None:
        self._runs, self._rates = runs, Rates()
        self._lock = threading.Lock()
        self._at, self._found = 0.0, list[ConnectorNow]()

    def now(self) -> list[ConnectorNow]:
        """How they get on."""
        with self._lock:
            if not self._found or time.monotonic() - self._at >= LOOK_EVERY_SECONDS:
                self._found = [look_at(run, self._rates, now_ms()) for run in self._runs]
                self._at = time.monotonic()
            return self._found


class Decisions:
    """Lets who has a token decide."""

    def __init__(self, configuration: Configuration, tokens: Tokens) -> None:
        self._configuration, self._tokens = configuration, tokens
        self._decisions, self._refusals = Rate(DECISIONS_PER_MINUTE), Rate(REFUSALS_PER_MINUTE)

    async def take(self, request: Request, decide: Decide, words: Words) -> Response:
        """Carry one out."""
        try:
            by = self.authenticated(request.headers)
            said = words.read(_said(request.headers, await _body(request)))
            lines = await run_in_threadpool(self._decide, decide, by, said)
        except RefusedError as refused:
            return JSONResponse(refused.answer, refused.status)
        return JSONResponse({"by": by, words.answers: lines})

    def authenticated(self, headers: Mapping[str, str]) -> str:
        """Who asks.

        :raises RefusedError: nobody who may, or too often.
        """
        _refuse_other_sites(headers)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        try:
            by = self._tokens.name_of(token.strip()) if scheme.lower() == "bearer" else None
        except ConfigurationError as error:
            _logger.error("%s. Try: %s", error, error.hint)
            raise RefusedError(503, "the tokens cannot be read; see the driver's log") from None
        now = time.monotonic()
        if by is None and not self._refusals.allows(now):
            raise RefusedError(429, "too many requests without a token that is known")
        if by is None:
            raise RefusedError(
                401, "a token is missing, or is not known", "Authorization: Bearer TOKEN"
            )
        if not self._decisions.allows(now):
            raise RefusedError(429, f"more than {DECISIONS_PER_MINUTE} decisions in a minute")
        return by

    def _decide(self, decide: Decide, by: str, said: dict[str, Any]) -> list[str]:
        try:
            return decide(self._configuration, by=by, **said)
        except ConfigurationError as error:
            raise RefusedError(404, str(error), error.hint) from None
        except DecisionRefusedError as error:
            raise RefusedError(409, str(error), error.hint) from None
        except SluiceError as error:
            is_known = isinstance(error, TransientError)
            raise RefusedError(503 if is_known else 500, str(error), error.hint) from None


def _refuse_other_sites(headers: Mapping[str, str]) -> None:
    """A page of another site cannot make a browser decide, whatever it knows."""
    origin, host = headers.get("origin"), headers.get("host", "")
    is_own = origin is None or origin.partition("://")[2] == host
    if not is_own or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise RefusedError(403, "a page of another site asks")


async def _body(request: Request) -> bytes:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES_MAX:
            raise RefusedError(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    return body


def _said(headers: Mapping[str, str], body: bytes) -> object:
    """What the body says."""
    if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError(415, "the body is no JSON", "Content-Type: application/json")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise RefusedError(400, "the body is no JSON") from None


class _Headers:
    """Of a request not too many, and of every answer what a browser is to know."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_HEADERS]
            await send(message)

        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADER_BYTES_MAX:
            what = {"error": f"the headers have more than {HEADER_BYTES_MAX} bytes", "hint": ""}
            await JSONResponse(what, 431)(scope, receive, sending)
        else:
            await self._app(scope, receive, sending)


def make_app(
    configuration: Configuration,
    runs: Sequence[ConnectorRun],
    tokens: Tokens,
    hosts: Sequence[str],
    proof: Proof | None = None,
) -> Starlette:
    """The application.

    :param hosts: names that it may be asked by; "*" for any.
    :param proof: None: nothing is said of it.
    """
    looks = Looks(runs)
    decisions = Decisions(configuration, tokens)
    metrics = _metrics(configuration, runs, looks, proof)

    def health(reasons: Callable[[Sequence[ConnectorNow]], list[str]], name: str) -> Response:
        why_not = reasons(looks.now())
        return JSONResponse({name: not why_not, "reasons": why_not}, 503 if why_not else 200)

    def status(request: Request) -> Response:
        now = {"pipeline": configuration.pipeline, "version": __version__, "at_ms": now_ms()}
        told = {
            "connectors": [asdict(each) for each in looks.now()],
            "proof": [asdict(each) for each in (proof.now() if proof is not None else ())],
        }
        return JSONResponse(now | told)

    async def decide_freeze(request: Request) -> Response:
        return await decisions.take(request, freeze, _FREEZE)

    async def decide_resume(request: Request) -> Response:
        return await decisions.take(request, resume, _FREEZE)

    async def decide_level(request: Request) -> Response:
        return await decisions.take(request, partial(set_value, name=LOG_LEVEL), _LEVEL)

    async def decide_limit(request: Request) -> Response:
        return await decisions.take(request, partial(set_value, name=MAX_INFLIGHT_INSERTS), _LIMIT)

    async def decide_apply(request: Request) -> Response:
        return await decisions.take(request, apply_own_file, _APPLY)

    async def decide_drain(request: Request) -> Response:
        return await decisions.take(request, drain, _DRAIN)

    return Starlette(
        routes=[
            *(Route(path, _file(*named)) for path, named in _FILES.items()),
            Route("/metrics", metrics),
            Route("/live", lambda request: health(why_not_alive, "live")),
            Route("/ready", lambda request: health(why_not_ready, "ready")),
            Route("/status", status),
            Route("/openapi.json", lambda request: JSONResponse(described(__version__))),
            Route("/freeze", decide_freeze, methods=["POST"]),
            Route("/resume", decide_resume, methods=["POST"]),
            Route("/log-level", decide_level, methods=["POST"]),
            Route("/limits", decide_limit, methods=["POST"]),
            Route("/apply", decide_apply, methods=["POST"]),
            Route("/drain", decide_drain, methods=["POST"]),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
    )


def _metrics(
    configuration: Configuration, runs: Sequence[ConnectorRun], looks: Looks, proof: Proof | None
) -> Callable[[Request], Response]:
    """What answers with all metrics."""
    registry = CollectorRegistry()
    has_partitions = configuration.http is None or configuration.http.partition_metrics
    registry.register(LoopCollector([partial(_loop_of, run) for run in runs]))
    registry.register(RunningCollector(looks.now, configuration.pipeline))
    registry.register(ProofCollector(proof, configuration.pipeline))
    ProcessCollector(registry=registry)

    def answer(request: Request) -> Response:
        loops = [run.loop for run in runs if has_partitions and run.loop is not None]
        text = generate_latest(registry) + partition_text(loops, now_ms()).encode()
        return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    return answer


def _loop_of(run: ConnectorRun) -> ConnectorLoop | None:
    return run.loop


def _file(name: str, content_type: str) -> Callable[[Request], Response]:
    content = (Path(__file__).parent / name).read_bytes()
    return lambda request: Response(content, media_type=content_type)
