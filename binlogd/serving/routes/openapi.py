"""`/openapi.json`: every route, its parameters and its answers, for people and for tools.

Invariant. What is described here is what is routed, method by method: a test holds the two equal,
so that a route cannot be added in one place only. Answers are described by the classes that they
are made as.
Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from binlogd import __version__
from binlogd.serving.answers import REF, LookUp, Reply, Trouble, component_schemas
from binlogd.serving.routes.guard import INSIDE
from binlogd.serving.routes.profiling import GO_ONLY
from binlogd.snapshot.export_queue import ExportJob
from binlogd.status import PARTLY, NodeEntry, Status, Ts
from binlogd.upstream.store import SkipEntry

_Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Answer:
    says: str
    kind: Any
    """A class, or what is made of classes; of text, nothing is said but what kind it is."""
    content: str

    def described(self) -> dict[str, Any]:
        schema = _schema(self.kind)
        return {"description": self.says, "content": {self.content: {"schema": schema}}}


_Answers = dict[int, _Answer]


def _schema(kind: Any) -> _Schema:
    (found,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return found


def _text(says: str, content: str = "text/plain", code: int = 200) -> _Answers:
    return {code: _Answer(says, str, content)}


def _json(says: str, kind: Any, code: int = 200) -> _Answers:
    return {code: _Answer(says, kind, "application/json")}


def _or(troubles: Mapping[int, str]) -> _Answers:
    kind = "application/json"
    return {code: _Answer(says, Trouble, kind) for code, says in troubles.items()}


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path; `query` names parameters by what they say."""

    path: str
    summary: str
    answers: _Answers
    query: Mapping[str, str] = field(default_factory=dict)
    method: str = "get"

    @property
    def is_guarded(self) -> bool:
        """Whether it is an action, as routes/guard.py has it."""
        return self.method != "get" or self.path.startswith(INSIDE)

    def described(self, tag: str) -> dict[str, Any]:
        """As an OpenAPI operation."""
        found: dict[str, Any] = {
            "operationId": f"{self.method} {self.path}",
            "summary": self.summary,
            "tags": [tag],
            "responses": {
                str(code): each.described() for code, each in (self.answers | _FAULT).items()
            },
        }
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": _schema(_PATH[name])}
            for name in _names(self.path)
        ]
        for name, says in self.query.items():
            schema = _schema(_QUERY.get(name, str))
            parameters.append({"name": name, "in": "query", "description": says, "schema": schema})
        if parameters:
            found["parameters"] = parameters
        if self.is_guarded:
            found["security"] = [{"adminToken": []}]
            found["responses"] |= {str(code): each.described() for code, each in _GUARD.items()}
        return found


_PATH: Mapping[str, Any] = {
    "ts": Ts,
    "id": int,
    "node_id": str,
    "action": Literal["pause", "close", "resume"],
    "word": Literal[
        "cluster", "health", "leader", "members", "ping", "status", "stores", "version"
    ],
}
_QUERY: Mapping[str, Any] = {
    "limit": Annotated[int, Meta(ge=1, le=100, extra_json_schema={"default": 20})],
    "row": list[str],
    "seconds": Annotated[float, Meta(gt=0, le=60, extra_json_schema={"default": 10})],
}


def _names(path: str) -> list[str]:
    return [part.partition("}")[0] for part in path.split("{")[1:]]


_EXPORT = _json("How it stands", ExportJob) | _or({404: "There is none of this number"})
_FOUND = _json("What was found; `complete` is false when the time was over before", LookUp) | _or(
    {
        400: "What is asked makes no sense; the message says why",
        429: "Another look-up is going on",
        503: "It cannot be answered; the message says why",
    }
)
_DONE = _json("Done or refused, see `code`", Reply)
_NODES = _json("Registry entries", list[NodeEntry] | None)
_GUARD = _json("The admin token is missing or another", Reply, 401) | _json(
    "Not from there: without a token from this machine only", Reply, 403
)
_FAULT = _json("A fault of binlogd's own; the log has it", Reply, 500)
_NO_EXPORTS = _or({503: "This service does none"})
_JS = _text("JavaScript", "text/javascript")
_SCRIPTS = ("page", "dom", "words", "chart", "lookup", "acting")
_OF_GO = _text("A profile of a Go program, and not here", code=501)
_EVENTS = "`past`: the samples of the last minutes; then `now`, once a second"

_SEEN = (
    Route("/status", "How both halves stand", _json("", Status)),
    Route("/metrics", "Prometheus text", _text("docs/METRICS.md")),
    Route("/pumps", "The registered Pumps", _NODES),
    Route("/drainers", "The registered Drainers", _NODES),
    Route("/commit_ts", "Up to where the downstream has everything", _DONE),
    Route("/skips", "What was skipped by decision", _json("By commit_ts", list[SkipEntry])),
    Route("/debug/binlog/{ts}", "A binlog as text", _text("Text")),
    Route("/openapi.json", "This description", _json("OpenAPI 3.1", dict[str, Any])),
    Route(
        "/ddl/history",
        "The DDL jobs that are known, as TiDB tells them",
        _json("Oldest first", list[dict[str, Any]]),
    ),
    Route(
        "/events",
        "How it stands, once a second (server-sent events)",
        _text(_EVENTS, "text/event-stream") | _text("The process is ending", code=503),
    ),
    Route(
        "/pd/api/v1/{word}",
        "What a PD says of itself, where this node stands in for one",
        _json("As PD says it; nothing for `ping`", Any)
        | _text("Another word, or this node stands in for no PD", code=404),
    ),
    Route("/transactions/{ts}", "A transaction by its commit_ts or start_ts", _FOUND),
    Route(
        "/transactions",
        "Transactions by table and row, or by time",
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
    Route("/exports/{id}", "How an export stands", _EXPORT),
    Route(
        "/exports",
        "Exports that wait and run, and the last that are over",
        _json("Oldest first", list[ExportJob]) | _NO_EXPORTS,
    ),
)
_ACTED = (
    Route(
        "/exports",
        "Asks for a snapshot",
        _json("It waits for its turn", ExportJob, 202)
        | _or({400: "No such moment, or no JSON", 429: "As many wait as may"})
        | _NO_EXPORTS,
        method="post",
    ),
    Route("/exports/{id}", "Ends an export that waits or runs", _EXPORT, method="delete"),
    Route(
        "/skips/{ts}",
        "Passes over a transaction, for good",
        _DONE,
        {"reason": "Why; it is kept"},
        method="put",
    ),
    Route(
        "/state/{node_id}/{action}",
        "Pauses, closes or resumes a half; the work goes on after the answer",
        _DONE,
        method="put",
    ),
    Route(
        "/debug/gc/trigger",
        "Begins to collect garbage",
        _text("trigger gc success, or: gc is working"),
        method="post",
    ),
    Route("/reload", "Reads the configuration again", _DONE, method="post"),
)
_HEALTH = (
    Route("/livez", "The process answers", _text("ok")),
    Route("/readyz", "Prewrites are taken", _text("ok") | _text("Why they are not", code=503)),
)
_PAGE = (
    Route("/", "The page", _text("HTML", "text/html")),
    Route("/page/page.css", "Its looks", _text("CSS", "text/css")),
    Route("/page/icon.svg", "Its icon", _text("SVG", "image/svg+xml")),
    *(Route(f"/page/{name}.js", f"Its script: {name}", _JS) for name in _SCRIPTS),
)
_PROFILES = (
    Route("/debug/pprof/", "Which profiles there are", _text("Text")),
    Route("/debug/pprof/cmdline", "The command line", _text("Words")),
    Route("/debug/pprof/goroutine", "The stack of every task and thread", _text("Text")),
    Route(
        "/debug/pprof/profile",
        "Samples of every thread's stack",
        _text("A stack and a count on a line")
        | _text("Not such a time", code=400)
        | _text("Another is being taken", code=503),
        {"seconds": "For how long"},
    ),
    *(Route(f"/debug/pprof/{name}", "Go's own", _OF_GO) for name in GO_ONLY),
    Route("/debug/metrics", "Go's own", _OF_GO),
)
ROUTES: Mapping[str, Sequence[Route]] = {
    "page": _PAGE,
    "look": _SEEN,
    "health": _HEALTH,
    "act": _ACTED,
    "profile": _PROFILES,
}
"""By what they are for."""


def description() -> dict[str, Any]:
    """The whole, as an OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    kinds: list[Any] = []
    for tag, routes in ROUTES.items():
        for route in routes:
            paths.setdefault(route.path, {})[route.method] = route.described(tag)
            kinds += [each.kind for each in (route.answers | _GUARD).values()]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "binlogd",
            "version": __version__,
            "description": "What one binlogd answers over HTTP/1.1, at the port of its gRPC.",
        },
        "paths": paths,
        "components": {
            "schemas": component_schemas(kinds, PARTLY),
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer"}},
        },
    }


@lru_cache(maxsize=1)
def document() -> bytes:
    """The same as text, made for who asks first: it takes some 25 ms."""
    return msgspec.json.format(msgspec.json.encode(description()), indent=1)
