"""The OpenAPI document of the HTTP server."""

from __future__ import annotations

from typing import Any

from sluice.core.decided import LOG_LEVELS, MAX_INFLIGHT_INSERTS, WHY_MAX
from sluice.core.flights import INFLIGHT_INSERTS_LIMIT

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
            "/freeze": _decision(
                "Let a pipeline, a connector or a table entry stand still, or a replica or a data "
                "center get no blocks.",
                "frozen",
                _SUBJECT,
            ),
            "/resume": _decision(
                "Let go on what was frozen with the same words.", "frozen", _SUBJECT
            ),
            "/log-level": _decision(
                "Let the driver log so much, also after a restart; null: as at the start.",
                "settings",
                {"level": {"enum": [*LOG_LEVELS, None]}},
                ("level",),
            ),
            "/limits": _decision(
                "Let so many ranges be out for a table on a replica, also after a restart; null: "
                "as configured.",
                "settings",
                {
                    MAX_INFLIGHT_INSERTS: {
                        "type": ["integer", "null"],
                        "minimum": 1,
                        "maximum": INFLIGHT_INSERTS_LIMIT,
                    },
                    "connector": _TEXT,
                },
                (MAX_INFLIGHT_INSERTS,),
            ),
            "/apply": _decision("Read the file again, and apply it.", "applied", {}),
            "/drain": _decision("Settle what is out, and end the driver.", "drained", {}),
        },
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
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
_TEXT = {"type": "string"}
_SUBJECT = {
    "connector": _TEXT,
    "table": _TEXT | {"description": "name of a table entry"},
    "replica": _TEXT | {"description": "host:port or URL; at most one of this and its neighbours"},
    "data_center": _TEXT | {"description": "name of a data center"},
}


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


def _decision(
    what: str, answers: str, words: dict[str, Any], required: tuple[str, ...] = ()
) -> dict[str, Any]:
    said = {
        "type": "object",
        "required": ["why", *required],
        "additionalProperties": False,
        "properties": {"why": {"type": "string", "maxLength": WHY_MAX}, **words},
    }
    refused = {
        "400": "The body is not as it has to be.",
        "401": "The token is missing, or is not known.",
        "403": "A page of another site asks.",
        "404": "There is no such connector or table entry.",
        "409": "It does not fit what is decided, or is no such value.",
        "413": "The body is too long.",
        "415": "The body is no JSON.",
        "429": "Too often.",
        "503": "Kafka does not answer, or the tokens cannot be read.",
    }
    done = {
        "type": "object",
        "properties": {
            "by": {"type": "string"},
            answers: {"type": "array", "items": {"type": "string"}},
        },
    }
    return {
        "post": {
            "summary": what,
            "security": [{"token": []}],
            "requestBody": {"required": True, "content": {_JSON: {"schema": said}}},
            "responses": {
                "200": _answer("What holds now, in words.", _JSON, done),
                **{status: _answer(why) for status, why in refused.items()},
            },
        }
    }
