"""`/openapi.json`: every route, its parameters and its answers, for people and for tools.

Invariant. What is described here is what is routed, method by method: a test holds the two equal,
so that a route cannot be added in one place only. Answers are described by the classes that they
are made as.
Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from binlogd import __version__
from binlogd.serving.answers import LookUp, Reply, Trouble, component_schemas
from binlogd.serving.routes.guard import INSIDE
from binlogd.snapshot.desk import Ticket
from binlogd.status import PARTLY, Entry, Status
from binlogd.tso import MAX_TS
from binlogd.upstream.store import Skip

_Schema = Mapping[str, Any]

_TS: _Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": MAX_TS,
    "description": "A TSO: milliseconds since 1970 << 18 | counter. It exceeds 2^53.",
}
_TEXT: _Schema = {"type": "string"}
_WHOLE: _Schema = {"type": "integer"}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _ref(kind: type) -> _Schema:
    """Of one of the classes whose schemas are in the document."""
    assert kind in _KINDS, f"{kind.__name__} is not described"
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


_KINDS = (Status, Entry, Reply, Trouble, Skip, Ticket, LookUp)


@dataclass(frozen=True, slots=True)
class _Answer:
    says: str
    content: str = "text/plain"
    schema: _Schema = field(default_factory=lambda: _TEXT)

    def described(self) -> dict[str, Any]:
        if not self.content:
            return {"description": self.says}
        return {"description": self.says, "content": {self.content: {"schema": self.schema}}}


def _json(says: str, schema: _Schema) -> _Answer:
    return _Answer(says, "application/json", schema)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; `query` names parameters by what they say."""

    method: str
    path: str
    summary: str
    tag: str
    answers: dict[int, _Answer]
    query: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_guarded(self) -> bool:
        """Whether it is an action, as routes/guard.py has it."""
        return self.method != "get" or self.path.startswith(INSIDE)

    def described(self) -> dict[str, Any]:
        """As an OpenAPI operation."""
        found: dict[str, Any] = {
            "operationId": f"{self.method} {self.path}",
            "summary": self.summary,
            "tags": [self.tag],
            "responses": {
                str(code): each.described() for code, each in (self.answers | _FAULT).items()
            },
        }
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _PATH[name]}
            for name in _names(self.path)
        ]
        parameters += [
            {"name": name, "in": "query", "description": says, "schema": _QUERY.get(name, _TEXT)}
            for name, says in self.query.items()
        ]
        if parameters:
            found["parameters"] = parameters
        if self.is_guarded:
            found["security"] = [{"adminToken": []}]
            found["responses"] |= {str(code): each.described() for code, each in _GUARD.items()}
        return found


_PATH: Mapping[str, _Schema] = {
    "ts": _TS,
    "id": _WHOLE,
    "node_id": _TEXT,
    "action": {"enum": ["pause", "close", "resume"]},
    "word": {
        "enum": ["cluster", "health", "leader", "members", "ping", "status", "stores", "version"]
    },
}
_QUERY: Mapping[str, _Schema] = {
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "row": _list(_TEXT),
    "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 60, "default": 10},
}


def _names(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


_EXPORT = {
    200: _json("How it stands", _ref(Ticket)),
    404: _json("There is none of this number", _ref(Trouble)),
}
_FOUND = {
    200: _json("What was found; `complete` is false when the time was over before", _ref(LookUp)),
    400: _json("What is asked makes no sense; the message says why", _ref(Trouble)),
    429: _json("Another look-up is going on", _ref(Trouble)),
    503: _json("It cannot be answered; the message says why", _ref(Trouble)),
}
_ENVELOPE = {200: _json("Done or refused, see `code`", _ref(Reply))}
_NODES = {200: _json("Registry entries", {"anyOf": [_list(_ref(Entry)), {"type": "null"}]})}
_GUARD = {
    401: _json("The admin token is missing or another", _ref(Reply)),
    403: _json("Not from there: without a token from this machine only", _ref(Reply)),
}
_FAULT = {500: _json("A fault of binlogd's own; the log has it", _ref(Reply))}
_GO = {501: _Answer("A profile of a Go program, and not here")}

ROUTES: tuple[Route, ...] = (
    Route("get", "/", "The page", "page", {200: _Answer("HTML", "text/html")}),
    Route("get", "/page/page.css", "Its looks", "page", {200: _Answer("CSS", "text/css")}),
    Route("get", "/page/icon.svg", "Its icon", "page", {200: _Answer("SVG", "image/svg+xml")}),
    *(
        Route(
            "get",
            f"/page/{name}.js",
            f"Its script: {name}",
            "page",
            {200: _Answer("JavaScript", "text/javascript")},
        )
        for name in ("page", "dom", "words", "chart", "lookup", "acting")
    ),
    Route(
        "get",
        "/events",
        "How it stands, once a second (server-sent events)",
        "look",
        {
            200: _Answer(
                "`past`: the samples of the last minutes; then `now`, once a second",
                "text/event-stream",
            ),
            503: _Answer("The process is ending"),
        },
    ),
    Route(
        "get",
        "/openapi.json",
        "This description",
        "look",
        {200: _json("OpenAPI 3.1", {"type": "object"})},
    ),
    Route(
        "get",
        "/pd/api/v1/{word}",
        "What a PD says of itself, where this node stands in for one",
        "look",
        {
            200: _json("As PD says it; nothing for `ping`", {}),
            404: _Answer("Another word, or this node stands in for no PD"),
        },
    ),
    Route("get", "/livez", "The process answers", "health", {200: _Answer("ok")}),
    Route(
        "get",
        "/readyz",
        "Prewrites are taken",
        "health",
        {200: _Answer("ok"), 503: _Answer("Why they are not")},
    ),
    Route("get", "/status", "How both halves stand", "look", {200: _json("", _ref(Status))}),
    Route("get", "/metrics", "Prometheus text", "look", {200: _Answer("docs/METRICS.md")}),
    Route("get", "/pumps", "The registered Pumps", "look", _NODES),
    Route("get", "/drainers", "The registered Drainers", "look", _NODES),
    Route(
        "get",
        "/ddl/history",
        "The DDL jobs that are known, as TiDB tells them",
        "look",
        {200: _json("Oldest first", _list({"type": "object"}))},
    ),
    Route("get", "/commit_ts", "Up to where the downstream has everything", "look", _ENVELOPE),
    Route(
        "get", "/transactions/{ts}", "A transaction by its commit_ts or start_ts", "look", _FOUND
    ),
    Route(
        "get",
        "/transactions",
        "Transactions by table and row, or by time",
        "look",
        _FOUND,
        {
            "table": "DB, DB.TABLE or DB.~expression; the newest come first",
            "row": "COLUMN=VALUE, before or after the change; may be repeated",
            "from": "A TSO or a time in ISO 8601 (UTC without zone); without a table the first"
            " transactions behind it",
            "to": "A TSO or a time, included",
            "limit": "How many at most",
        },
    ),
    Route(
        "post",
        "/exports",
        "Asks for a snapshot",
        "act",
        {
            202: _json("It waits for its turn", _ref(Ticket)),
            400: _json("No such moment, or no JSON", _ref(Trouble)),
            429: _json("As many wait as may", _ref(Trouble)),
            503: _json("This service does none", _ref(Trouble)),
        },
    ),
    Route(
        "get",
        "/exports",
        "Exports that wait and run, and the last that are over",
        "look",
        {
            200: _json("Oldest first", _list(_ref(Ticket))),
            503: _json("This service does none", _ref(Trouble)),
        },
    ),
    Route("get", "/exports/{id}", "How an export stands", "look", _EXPORT),
    Route("delete", "/exports/{id}", "Ends an export that waits or runs", "act", _EXPORT),
    Route("get", "/debug/binlog/{ts}", "A binlog as text", "look", {200: _Answer("Text")}),
    Route(
        "get",
        "/skips",
        "What was skipped by decision",
        "look",
        {200: _json("By commit_ts", _list(_ref(Skip)))},
    ),
    Route(
        "put",
        "/skips/{ts}",
        "Passes over a transaction, for good",
        "act",
        _ENVELOPE,
        {"reason": "Why; it is kept"},
    ),
    Route(
        "put",
        "/state/{node_id}/{action}",
        "Pauses, closes or resumes a half; the work goes on after the answer",
        "act",
        _ENVELOPE,
    ),
    Route(
        "post",
        "/debug/gc/trigger",
        "Begins to collect garbage",
        "act",
        {200: _Answer("trigger gc success, or: gc is working")},
    ),
    Route("post", "/reload", "Reads the configuration again", "act", _ENVELOPE),
    Route("get", "/debug/pprof/", "Which profiles there are", "profile", {200: _Answer("Text")}),
    Route("get", "/debug/pprof/cmdline", "The command line", "profile", {200: _Answer("Words")}),
    Route(
        "get",
        "/debug/pprof/goroutine",
        "The stack of every task and thread",
        "profile",
        {200: _Answer("Text")},
    ),
    Route(
        "get",
        "/debug/pprof/profile",
        "Samples of every thread's stack",
        "profile",
        {
            200: _Answer("A stack and a count on a line"),
            400: _Answer("Not such a time"),
            503: _Answer("Another is being taken"),
        },
        {"seconds": "For how long"},
    ),
    *(
        Route("get", f"/debug/pprof/{name}", "Go's own", "profile", _GO)
        for name in ("allocs", "block", "heap", "mutex", "symbol", "threadcreate", "trace")
    ),
    Route("get", "/debug/metrics", "Go's own", "profile", _GO),
)


def description() -> dict[str, Any]:
    """The whole, as an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method] = route.described()
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "binlogd",
            "version": __version__,
            "description": "What one binlogd answers over HTTP/1.1, at the port of its gRPC.",
        },
        "paths": paths,
        "components": {
            "schemas": component_schemas(_KINDS, PARTLY),
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer"}},
        },
    }


def add_description(router: web.UrlDispatcher) -> None:
    """Adds the route."""
    document = msgspec.json.format(msgspec.json.encode(description()), indent=1)

    async def told(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type="application/json", charset="utf-8")

    router.add_get("/openapi.json", told)
