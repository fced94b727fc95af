"""`/openapi.json`: every route, its parameters and its answers, for people and for tools.

Invariant. What is described here is what is routed, method by method: a test holds the two equal,
so that a route cannot be added in one place only.
Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from binlogd import __version__
from binlogd.serving.routes.guard import INSIDE

_Schema = Mapping[str, Any]

_TS: _Schema = {
    "type": "integer",
    "minimum": 0,
    "maximum": (1 << 63) - 1,
    "description": "A TSO: milliseconds since 1970 << 18 | counter. It exceeds 2^53.",
}
_TS_TEXT: _Schema = {"type": "string", "pattern": "^[0-9]{0,19}$"}
_TEXT: _Schema = {"type": "string"}
_NUMBER: _Schema = {"type": "number"}
_WHOLE: _Schema = {"type": "integer"}
_FLAG: _Schema = {"type": "boolean"}


def _list(items: _Schema) -> _Schema:
    return {"type": "array", "items": items}


def _or_null(schema: _Schema) -> _Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _object(**properties: _Schema) -> _Schema:
    """Every property is there; there may be others."""
    return {"type": "object", "required": sorted(properties), "properties": properties}


def _ref(name: str) -> _Schema:
    return {"$ref": f"#/components/schemas/{name}"}


_SCHEMAS: Mapping[str, _Schema] = {
    "Node": _object(
        nodeId=_TEXT,
        host=_TEXT,
        state={"enum": ["online", "pausing", "paused", "closing", "offline"]},
        isAlive=_FLAG,
        score=_WHOLE,
        label={"type": "null"},
        maxCommitTS=_TS,
        updateTS=_TS,
    ),
    "Envelope": _object(
        message=_TEXT, code={"enum": [200, 3], "description": "200 done, 3 refused"}, data={}
    ),
    "Error": _object(message=_TEXT),
    "Status": _object(
        status=_or_null({"type": "object", "additionalProperties": _ref("Node")}),
        CommitTS=_TS,
        ErrMsg=_TEXT,
        PumpPos=_or_null({"type": "object", "additionalProperties": _TS}),
        Synced=_FLAG,
        LastTS=_TS,
        state=_TEXT,
        node_id=_TEXT,
        roles=_list({"enum": ["pump", "drainer"]}),
        registry_error=_TEXT,
        open_addr=_TEXT,
        stuck_parts=_list(_object(part=_TEXT, error=_TEXT, count=_WHOLE)),
        cluster_id=_or_null(_WHOLE),
        version=_TEXT,
        max_commit_ts=_TS,
        newest_commit_ts=_TS,
        checkpoint=_object(commit_ts=_TS, consistent=_FLAG),
        lag_s=_or_null(_NUMBER),
        upstream=_object(
            kind={"enum": ["standalone", "tidb", "pd"]},
            parts=_list(_object(name=_TEXT, address=_TEXT, leader=_TEXT, trouble=_TEXT)),
            tso=_or_null(_object(last_ts=_TS, age_s=_or_null(_NUMBER), trouble=_TEXT)),
            tikv=_or_null({"type": "object"}),
        ),
        blocked_by=_TEXT,
        blocked_s=_NUMBER,
        refuses_because=_TEXT,
        late_commits=_WHOLE,
        first_late=_list(_object(shard=_TEXT, start_ts=_TS, commit_ts=_TS)),
        shards=_list(_object(name=_TEXT, max_commit_ts=_TS, open_prewrites=_WHOLE)),
        drainer=_object(
            state=_TEXT,
            node_id=_TEXT,
            node_state=_TEXT,
            error=_TEXT,
            failure=_or_null(_object(kind=_TEXT, told=_TEXT, todo=_TEXT, skip_ts=_TS)),
            sources=_list(
                _object(
                    name=_TEXT,
                    state={"enum": ["online", "paused", "offline"]},
                    resolved_ts=_TS,
                    lag_s=_or_null(_NUMBER),
                    binlogs_waiting=_WHOLE,
                    silent_s=_NUMBER,
                    trouble=_TEXT,
                )
            ),
        ),
        gc=_object(
            holds={"type": "object", "additionalProperties": _TS},
            held_by=_list(_TEXT),
            gc_ts={**_TS, "description": "Binlogs up to here may have been deleted"},
            failed=_TEXT,
        ),
        free_bytes=_WHOLE,
        capacity_bytes=_WHOLE,
        score=_WHOLE,
        close_waits_for=_TEXT,
    ),
    "Skip": _object(commit_ts=_TS, reason=_TEXT),
    "Export": _object(
        id=_WHOLE,
        wish=_object(as_of=_TEXT, format=_TEXT, base=_TEXT),
        state={"enum": ["waiting", "running", "done", "failed", "cancelled"]},
        stage=_TEXT,
        done=_WHOLE,
        total=_WHOLE,
        seconds=_NUMBER,
        message=_TEXT,
        path=_TEXT,
        commit_ts=_TS,
        tables=_WHOLE,
        rows=_WHOLE,
        size_bytes=_WHOLE,
        written={"type": "object", "additionalProperties": _WHOLE},
        is_new=_FLAG,
        built_on=_TEXT,
        left_out=_list(_TEXT),
        exit_code=_WHOLE,
    ),
    "Found": _object(
        transactions=_list(_ref("Transaction")),
        records=_list(
            _object(kind=_TEXT, start_ts=_TS_TEXT, time=_TEXT, place=_TEXT, detail=_TEXT)
        ),
        looked_from=_or_null(_ref("Moment")),
        looked_to=_or_null(_ref("Moment")),
        complete=_FLAG,
    ),
    "Moment": _object(ts=_TS_TEXT, time=_TEXT),
    "Transaction": _object(
        commit_ts=_TS_TEXT,
        start_ts=_TS_TEXT,
        time=_TEXT,
        size_bytes=_WHOLE,
        place=_TEXT,
        note=_TEXT,
        ddl=_or_null(_object(database=_TEXT, sql=_TEXT)),
        rows=_list(_ref("Row")),
        has_more_rows=_FLAG,
    ),
    "Row": _object(
        kind={"enum": ["insert", "update", "delete"]},
        database=_TEXT,
        table=_TEXT,
        columns=_list(
            _object(
                name=_TEXT,
                type=_TEXT,
                key=_FLAG,
                old=_or_null(_TEXT),
                new=_or_null(_TEXT),
                changed=_FLAG,
            )
        ),
    ),
}


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
    200: _json("How it stands", _ref("Export")),
    404: _json("There is none of this number", _ref("Error")),
}
_FOUND = {
    200: _json("What was found; `complete` is false when the time was over before", _ref("Found")),
    400: _json("What is asked makes no sense; the message says why", _ref("Error")),
    429: _json("Another look-up is going on", _ref("Error")),
    503: _json("It cannot be answered; the message says why", _ref("Error")),
}
_ENVELOPE = {200: _json("Done or refused, see `code`", _ref("Envelope"))}
_NODES = {200: _json("Registry entries", _or_null(_list(_ref("Node"))))}
_GUARD = {
    401: _json("The admin token is missing or another", _ref("Envelope")),
    403: _json("Not from there: without a token from this machine only", _ref("Envelope")),
}
_FAULT = {500: _json("A fault of binlogd's own; the log has it", _ref("Envelope"))}
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
    Route("get", "/status", "How both halves stand", "look", {200: _json("", _ref("Status"))}),
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
            202: _json("It waits for its turn", _ref("Export")),
            400: _json("No such moment, or no JSON", _ref("Error")),
            429: _json("As many wait as may", _ref("Error")),
            503: _json("This service does none", _ref("Error")),
        },
    ),
    Route(
        "get",
        "/exports",
        "Exports that wait and run, and the last that are over",
        "look",
        {
            200: _json("Oldest first", _list(_ref("Export"))),
            503: _json("This service does none", _ref("Error")),
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
        {200: _json("By commit_ts", _list(_ref("Skip")))},
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
            "schemas": _SCHEMAS,
            "securitySchemes": {"adminToken": {"type": "http", "scheme": "bearer"}},
        },
    }


def add_description(router: web.UrlDispatcher) -> None:
    """Adds the route."""
    document = msgspec.json.format(msgspec.json.encode(description()), indent=1)

    async def told(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type="application/json", charset="utf-8")

    router.add_get("/openapi.json", told)
