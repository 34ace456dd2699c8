"""The OpenAPI document of the HTTP server."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from sluice.ops.http import bodies

_JSON = "application/json"


def described(version: str) -> dict[str, Any]:
    """All paths; `tests/ops/http/test_app.py` holds that they are those which are served."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version},
        "paths": {
            "/": _read("The status page.", "text/html"),
            "/page.css": _read("Of the status page.", "text/css"),
            "/page.js": _read("Of the status page.", "text/javascript"),
            "/deciding.js": _read("Of the status page.", "text/javascript"),
            "/closer.js": _read("Of the status page.", "text/javascript"),
            "/metrics": _read("Metrics for Prometheus.", "text/plain"),
            "/live": _health("Whether the driver should be left running.", "live"),
            "/ready": _health(
                "Whether every connector has partitions, and something of it moves.", "ready"
            ),
            "/status": _read(
                "Of each connector, table entry and troubled partition a verdict with its reason.",
                _JSON,
                _STATUS,
            ),
            "/openapi.json": _read("This document.", _JSON),
            **_decisions(),
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _decisions() -> dict[str, Any]:
    """What needs a token."""
    return {
        "/freeze": _decision(
            "Let a pipeline, a connector or a table entry stand still, or a replica or a data "
            "center get no blocks.",
            "frozen",
            bodies.Frozen,
        ),
        "/resume": _decision(
            "Let go on what was frozen with the same words.", "frozen", bodies.Frozen
        ),
        "/log-level": _decision(
            "Let the driver log so much, also after a restart; null: as at the start.",
            "settings",
            bodies.Level,
        ),
        "/limits": _decision(
            "Let so many ranges be out for a table on a replica, also after a restart; null: "
            "as configured.",
            "settings",
            bodies.Limit,
        ),
        "/apply": _decision("Read the file again, and apply it.", "applied", bodies.Said),
        "/drain": _decision("Settle what is out, and end the driver.", "drained", bodies.Said),
        "/reload": _decision(
            "Look at the tables' columns, at topics and at the replicas now.",
            "reloaded",
            bodies.Said,
        ),
        "/resolve": _decision(
            "Say what became of ranges in doubt.", "done", bodies.Resolved, _PLANNED
        ),
        "/adopt": _decision(
            "Let partitions go on from an offset.", "done", bodies.Adopted, _PLANNED
        ),
        "/rewind": _decision(
            "Load again from an offset or a time.", "done", bodies.Rewound, _PLANNED
        ),
        "/dead-letters/replay": _decision(
            "Put messages back into their topics, each once.",
            "done",
            bodies.Replayed,
            _PLANNED,
        ),
        "/dead-letters/purge": _decision(
            "Delete dead letters for good, from the oldest on.",
            "done",
            bodies.Purged,
            _PLANNED,
        ),
        "/dead-letters": _look(
            "Dead letters: how many of which table and reason, and the newest of them.",
            bodies.DeadLettersQuestion,
        ),
        "/history": _look(
            "The ledger's entries about a partition, or about the range with an offset.",
            bodies.HistoryQuestion,
        ),
    }


_STATUS = {
    "type": "object",
    "required": ["pipeline", "version", "at_ms", "connectors", "proof"],
    "properties": {
        "pipeline": {"type": "string"},
        "version": {"type": "string"},
        "at_ms": {"type": "integer"},
        "connectors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "verdict", "reason", "amounts", "tables", "frozen"],
            },
        },
        "proof": {
            "type": "array",
            "items": {"type": "object", "required": ["what", "verdict", "reason", "problems"]},
        },
    },
}
_PLANNED = (
    "Without confirm nothing is done: the answer has `planned`, what would be done in sentences, "
    "and `confirm`, which does it when it is sent with the same words within ten minutes."
)


def _answer(what: str, content_type: str = _JSON, schema: dict[str, Any] | None = None) -> Any:
    return {"description": what, "content": {content_type: {"schema": schema or {}}}}


def _read(what: str, content_type: str, schema: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"get": {"summary": what, "responses": {"200": _answer(what, content_type, schema)}}}


def _health(what: str, name: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": [name, "reasons"],
        "properties": {
            name: {"type": "boolean"},
            "reasons": {"type": "array", "items": {"type": "string"}},
        },
    }
    found = _read(what, _JSON, schema)
    found["get"]["responses"]["503"] = _answer("No, and why.", _JSON, schema)
    return found


def _look(what: str, question: type[BaseModel]) -> dict[str, Any]:
    words = question.model_json_schema()["properties"]
    found = _read(what, _JSON)
    found["get"] |= {
        "security": [{"token": []}],
        "parameters": [
            {"name": name, "in": "query", "schema": schema} for name, schema in words.items()
        ],
    }
    found["get"]["responses"] |= {status: _answer(why) for status, why in _REFUSED.items()}
    return found


_REFUSED = {
    "400": "It is not said as it has to be.",
    "401": "The token is missing, or is not known.",
    "403": "A page of another site asks.",
    "404": "There is no such connector, topic or table entry.",
    "409": "It does not fit what is decided or confirmed, or something is under way.",
    "413": "The body is too long.",
    "415": "The body is no JSON.",
    "429": "Too often, or somebody else looks now.",
    "503": "Kafka does not answer, or the tokens cannot be read.",
}


def _decision(what: str, answers: str, body: type[BaseModel], planned: str = "") -> dict[str, Any]:
    lines = {"type": "array", "items": {"type": "string"}}
    told = {"planned": lines, "confirm": {"type": "string"}} if planned else {}
    done = {"type": "object", "properties": {"by": {"type": "string"}, answers: lines, **told}}
    return {
        "post": {
            "summary": what,
            "description": planned,
            "security": [{"token": []}],
            "requestBody": {"required": True, "content": {_JSON: {"schema": _schema(body)}}},
            "responses": {
                "200": _answer("What holds now, in words.", _JSON, done),
                **{status: _answer(why) for status, why in _REFUSED.items()},
            },
        }
    }


def _schema(body: type[BaseModel]) -> dict[str, Any]:
    schema = body.model_json_schema()
    # In their order: by a set of names, the page differed from process to process.
    return {name: said for name, said in schema.items() if name not in ("title", "description")}
