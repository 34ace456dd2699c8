"""The OpenAPI document of the HTTP server: what it says of a path, of each kind of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

_JSON = "application/json"


def described(version: str, paths: Mapping[str, Any]) -> dict[str, Any]:
    """The document.

    :param paths: of each path what `read`, `health`, `look` or `decision` says.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sluice", "version": version},
        "paths": paths,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


_WHAT = {
    "/": "The status page.",
    "/page.css": "Of the status page.",
    "/page.js": "Of the status page.",
    "/deciding.js": "Of the status page.",
    "/closer.js": "Of the status page.",
    "/metrics": "Metrics for Prometheus.",
    "/live": "Whether the driver should be left running.",
    "/ready": "Whether every connector has partitions, and something of it moves.",
    "/status": "Of each connector, table entry and troubled partition a verdict with its reason.",
    "/openapi.json": "This document.",
    "/freeze": "Let a pipeline, a connector or a table entry stand still, or a replica or a data "
    "center get no blocks.",
    "/resume": "Let go on what was frozen with the same words.",
    "/log-level": "Let the driver log so much, also after a restart; null: as at the start.",
    "/limits": "Let so many ranges be out for a table on a replica, also after a restart; null: "
    "as configured.",
    "/apply": "Read the file again, and apply it.",
    "/drain": "Settle what is out, and end the driver.",
    "/reload": "Look at the tables' columns, at topics and at the replicas now.",
    "/resolve": "Say what became of ranges in doubt.",
    "/adopt": "Let partitions go on from an offset.",
    "/rewind": "Load again from an offset or a time.",
    "/dead-letters/replay": "Put messages back into their topics, each once.",
    "/dead-letters/purge": "Delete dead letters for good, from the oldest on.",
    "/dead-letters": "Dead letters: how many of which table and reason, and the newest of them.",
    "/history": "The ledger's entries about a partition, or about the range with an offset.",
}
#: Of `/status`.
STATUS = {
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


def read(
    path: str, content_type: str = _JSON, schema: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What anybody may read."""
    what = _WHAT[path]
    return {"get": {"summary": what, "responses": {"200": _answer(what, content_type, schema)}}}


def health(path: str, name: str) -> dict[str, Any]:
    """Whether it is so by this name, and why not."""
    schema = {
        "type": "object",
        "required": [name, "reasons"],
        "properties": {
            name: {"type": "boolean"},
            "reasons": {"type": "array", "items": {"type": "string"}},
        },
    }
    found = read(path, schema=schema)
    found["get"]["responses"]["503"] = _answer("No, and why.", _JSON, schema)
    return found


def look(path: str, question: type[BaseModel]) -> dict[str, Any]:
    """What is read with a token."""
    words = question.model_json_schema()["properties"]
    found = read(path)
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


def decision(
    path: str, body: type[BaseModel], answers: str = "done", *, is_planned: bool = False
) -> dict[str, Any]:
    """What is changed with a token.

    :param answers: the name of the lines that it is answered with.
    :param is_planned: it is told before it is done.
    """
    lines = {"type": "array", "items": {"type": "string"}}
    told = {"planned": lines, "confirm": {"type": "string"}} if is_planned else {}
    done = {"type": "object", "properties": {"by": {"type": "string"}, answers: lines, **told}}
    return {
        "post": {
            "summary": _WHAT[path],
            "description": _PLANNED if is_planned else "",
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
