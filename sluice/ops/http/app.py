"""What the HTTP server answers. Who changes something shows a token, and says why."""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel, ValidationError
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
from sluice.core.decided import LOG_LEVEL, MAX_INFLIGHT_INSERTS, Value
from sluice.core.errors import ConfigurationError, SluiceError, TransientError
from sluice.driver.connector import ConnectorRun
from sluice.driver.loop import ConnectorLoop
from sluice.driver.redirecting import PartitionBusyError
from sluice.kafka.tail import TooMuchToReadError
from sluice.machine.clock import now_ms
from sluice.ops.applying import apply_own_file
from sluice.ops.dead_letters_purging import NothingToPurgeError
from sluice.ops.driver_decisions import (
    DecisionRefusedError,
    drain,
    freeze,
    reload,
    resume,
    set_value,
)
from sluice.ops.http import bodies, openapi
from sluice.ops.http.bodies import Confirmed, first_wrong
from sluice.ops.http.looking import look_at_dead_letters, look_at_history
from sluice.ops.http.planned import (
    NotConfirmedError,
    Plans,
    plan_partitions,
    plan_purge,
    plan_replay,
    planned_at,
)
from sluice.ops.http.tokens import Rate, Tokens
from sluice.ops.metrics import LoopCollector, ProofCollector, RunningCollector, partition_text
from sluice.ops.parked import ParkedCollector
from sluice.ops.partition_decisions.carrying_out import ChangedSinceError
from sluice.ops.partition_decisions.situation import LeaseRunsError
from sluice.ops.proof import Proof
from sluice.ops.running import ConnectorNow, Rates, look_at, why_not_alive, why_not_ready

_logger = logging.getLogger("sluice.http")

#: Looks at the loops are shared: however many ask, one in this time.
LOOK_EVERY_SECONDS = 1.0
BODY_BYTES_MAX = 4096
#: All headers of a request.
HEADER_BYTES_MAX = 16 * 1024
DECISIONS_PER_MINUTE = 30
LOOKS_PER_MINUTE = 60
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
    "/deciding.js": ("deciding.js", "text/javascript"),
    "/closer.js": ("closer.js", "text/javascript"),
}

#: What programs ask for that know a driver by an address, as the probes of Kubernetes do.
PROBED = frozenset({"/live", "/ready", "/metrics"})

#: A path, what answers, and what the OpenAPI document says of it: by which method, too.
_Served = tuple[str, Callable[..., Any], dict[str, Any]]
Decide = Callable[..., list[str]]
Look = Callable[[Configuration, Any], dict[str, Any]]

#: What is no fault of the driver: it does not fit what is there, or cannot be done now.
_REFUSED = (
    DecisionRefusedError,
    NotConfirmedError,
    PartitionBusyError,
    LeaseRunsError,
    ChangedSinceError,
    NothingToPurgeError,
    TooMuchToReadError,
)


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
    """Lets who has a token decide, and look at what not everybody may see."""

    def __init__(
        self, configuration: Configuration, runs: Sequence[ConnectorRun], tokens: Tokens
    ) -> None:
        self._configuration, self._runs, self._tokens = configuration, runs, tokens
        self._decisions, self._refusals = Rate(DECISIONS_PER_MINUTE), Rate(REFUSALS_PER_MINUTE)
        self._looks = Rate(LOOKS_PER_MINUTE)
        #: Who reads topics does so alone: it costs Kafka and memory.
        self._reads = threading.Lock()

    @property
    def _today(self) -> Configuration:
        """What is loaded now: versions may be applied while the driver runs."""
        return next((run.configuration for run in self._runs), self._configuration)

    async def take(
        self, request: Request, decide: Decide, body: type[BaseModel], answers: str
    ) -> Response:
        """Carry one out that needs no confirmation.

        :param answers: the name of the lines that it is answered with.
        """

        def do(by: str, said: BaseModel) -> dict[str, Any]:
            return {"by": by, answers: decide(self._today, by=by, **said.model_dump())}

        return await self._answer(request, body, do)

    async def take_planned(self, request: Request, plans: Plans, body: type[BaseModel]) -> Response:
        """Tell what would be done, or do it if that was confirmed."""
        about = request.url.path

        def do(by: str, said: BaseModel) -> dict[str, Any]:
            assert isinstance(said, Confirmed)
            at_ms = planned_at(said.confirm)
            plan = plans(self._today, self._runs, by, said, at_ms)
            words = said.model_dump_json(exclude={"why", "confirm"})
            confirmation = plan.confirmation(f"{about} {words}", at_ms)
            if not said.confirm:
                return {"by": by, "planned": plan.steps, "confirm": confirmation}
            if not hmac.compare_digest(said.confirm.encode(), confirmation.encode()):
                raise NotConfirmedError("what would be done is not what was confirmed")
            return {"by": by, "done": plan.carry_out()}

        return await self._answer(request, body, self._alone(do))

    async def look(
        self,
        request: Request,
        look: Look,
        question: type[BaseModel],
    ) -> Response:
        """Read something; it changes nothing."""

        def do(by: str, asked: BaseModel) -> dict[str, Any]:
            return look(self._today, asked)

        return await self._answer(request, question, self._alone(do))

    def _alone(self, do: Callable[[str, BaseModel], dict[str, Any]]) -> Any:
        def do_alone(by: str, said: BaseModel) -> dict[str, Any]:
            if not self._reads.acquire(blocking=False):
                raise RefusedError(429, "somebody else looks or decides now", "Ask again soon.")
            try:
                return do(by, said)
            finally:
                self._reads.release()

        return do_alone

    async def _answer(
        self,
        request: Request,
        body: type[BaseModel],
        do: Callable[[str, BaseModel], dict[str, Any]],
    ) -> Response:
        is_look = request.method == "GET"
        try:
            by = self._authenticated(request.headers, self._looks if is_look else self._decisions)
            said: object = dict(request.query_params)
            if not is_look:
                said = _said(request.headers, await _body(request))
            try:
                found = body.model_validate(said)
            except ValidationError as error:
                raise RefusedError(400, first_wrong(error), "See /openapi.json.") from None
            answer = await run_in_threadpool(_carried_out, do, by, found)
        except RefusedError as refused:
            return JSONResponse(refused.answer, refused.status)
        return JSONResponse(answer)

    def _authenticated(self, headers: Mapping[str, str], rate: Rate) -> str:
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
        if not rate.allows(now):
            raise RefusedError(429, f"more than {rate.per_minute} requests of this kind a minute")
        return by


def _carried_out(
    do: Callable[[str, BaseModel], dict[str, Any]], by: str, said: BaseModel
) -> dict[str, Any]:
    try:
        return do(by, said)
    except ConfigurationError as error:
        raise RefusedError(404, str(error), error.hint) from None
    except _REFUSED as error:
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


class _Hosts:
    """Answers by some names only; see `make_app`."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], probed_by: Sequence[str]) -> None:
        self._others = _only_by(app, hosts)
        self._probed = _only_by(app, probed_by)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = self._probed if scope["path"] in PROBED else self._others
        await asked(scope, receive, send)


def _only_by(app: ASGIApp, hosts: Sequence[str]) -> ASGIApp:
    return TrustedHostMiddleware(app, allowed_hosts=list(hosts), www_redirect=False)


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
    probed_by: Sequence[str] = ("*",),
) -> Starlette:
    """The application.

    :param hosts: names that it may be asked by; "*" for any. `probed_by`: for `PROBED` instead.
    :param proof: None: nothing is said of it.
    """
    looks = Looks(runs)
    decisions = Decisions(configuration, runs, tokens)
    metrics = _metrics(configuration, runs, looks, proof)

    def health(
        reasons: Callable[[Sequence[ConnectorNow]], list[str]], name: str, request: Request
    ) -> Response:
        why_not = reasons(looks.now())
        return JSONResponse({name: not why_not, "reasons": why_not}, 503 if why_not else 200)

    def status(request: Request) -> Response:
        now = {"pipeline": configuration.pipeline, "version": __version__, "at_ms": now_ms()}
        told = {
            "connectors": [asdict(each) for each in looks.now()],
            "proof": [asdict(each) for each in (proof.now() if proof is not None else ())],
        }
        return JSONResponse(now | told)

    def document(request: Request) -> Response:
        paths = {path: said for path, _, said in served}
        return JSONResponse(openapi.described(__version__, paths))

    served: list[_Served] = [
        *((path, _file(*named), openapi.read(path, named[1])) for path, named in _FILES.items()),
        ("/metrics", metrics, openapi.read("/metrics", "text/plain")),
        ("/live", partial(health, why_not_alive, "live"), openapi.health("/live", "live")),
        ("/ready", partial(health, why_not_ready, "ready"), openapi.health("/ready", "ready")),
        ("/status", status, openapi.read("/status", schema=openapi.STATUS)),
        ("/openapi.json", document, openapi.read("/openapi.json")),
        *_with_token(decisions, configuration),
    ]
    return Starlette(
        routes=[
            Route(path, answer, methods=[method.upper() for method in said])
            for path, answer, said in served
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(_Hosts, hosts=hosts, probed_by=probed_by),
        ],
    )


def _with_token(decisions: Decisions, own: Configuration) -> Iterator[_Served]:
    """Everything that needs a token.

    :param own: of the driver's own file.
    """

    def set_level(configuration: Configuration, *, level: Value, by: str, why: str) -> list[str]:
        return set_value(configuration, name=LOG_LEVEL, value=level, by=by, why=why)

    def set_limit(
        configuration: Configuration, *, max_inflight_inserts: Value, **said: Any
    ) -> list[str]:
        value = max_inflight_inserts
        return set_value(configuration, name=MAX_INFLIGHT_INSERTS, value=value, **said)

    at_once: tuple[tuple[str, Decide, type[BaseModel], str], ...] = (
        ("/freeze", freeze, bodies.Frozen, "frozen"),
        ("/resume", resume, bodies.Frozen, "frozen"),
        ("/log-level", set_level, bodies.Level, "settings"),
        ("/limits", set_limit, bodies.Limit, "settings"),
        ("/apply", lambda _, **said: apply_own_file(own, **said), bodies.Said, "applied"),
        ("/drain", drain, bodies.Said, "drained"),
        ("/reload", reload, bodies.Said, "reloaded"),
    )
    for path, decide, body, answers in at_once:
        take = partial(decisions.take, decide=decide, body=body, answers=answers)
        yield path, take, openapi.decision(path, body, answers)
    planned: tuple[tuple[str, Plans, type[BaseModel]], ...] = (
        ("/resolve", plan_partitions, bodies.Resolved),
        ("/adopt", plan_partitions, bodies.Adopted),
        ("/rewind", plan_partitions, bodies.Rewound),
        ("/dead-letters/replay", plan_replay, bodies.Replayed),
        ("/dead-letters/purge", plan_purge, bodies.Purged),
    )
    for path, plans, body in planned:
        take = partial(decisions.take_planned, plans=plans, body=body)
        yield path, take, openapi.decision(path, body, is_planned=True)
    looks: tuple[tuple[str, Look, type[BaseModel]], ...] = (
        ("/dead-letters", look_at_dead_letters, bodies.DeadLettersQuestion),
        ("/history", look_at_history, bodies.HistoryQuestion),
    )
    for path, look, question in looks:
        asked = partial(decisions.look, look=look, question=question)
        yield path, asked, openapi.look(path, question)


def _metrics(
    configuration: Configuration, runs: Sequence[ConnectorRun], looks: Looks, proof: Proof | None
) -> Callable[[Request], Response]:
    """What answers with all metrics."""
    registry = CollectorRegistry()
    has_partitions = configuration.http is None or configuration.http.partition_metrics
    registry.register(LoopCollector([partial(_loop_of, run) for run in runs]))
    registry.register(RunningCollector(looks.now, configuration.pipeline))
    registry.register(ProofCollector(proof, configuration.pipeline))
    registry.register(ParkedCollector(runs))
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
