"""The HTTP routes of both halves on one address, and the originals' words for what they share.

Where Pump and Drainer have a route of the same name, one document has the keys of both (/status),
or the node id in the path says which half is meant (/state). docs/HTTP.md has every shape.

Source: tidb-binlog pump/server.go, drainer/server.go, pkg/util/http.go.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler

from binlogd.errors import BinlogdError, ConfigError, Refused
from binlogd.serving.answers import LookUp, Question, Reply, Trouble
from binlogd.serving.finder import LIMIT_MAX
from binlogd.serving.routes.events import Hub
from binlogd.serving.routes.guard import Guard, add_headers, guarding
from binlogd.serving.routes.profiling import add_profiling
from binlogd.settings.quantities import first_ts, last_ts
from binlogd.status import NodeEntry, Status, document
from binlogd.tso import MAX_TS
from binlogd.upstream.store import SkipEntry

if TYPE_CHECKING:
    from binlogd.snapshot.export_queue import ExportJob, ExportQueue

_BODY_BYTES_MAX = 64 << 10


class Operations(Protocol):
    """What an operator can see and do over HTTP."""

    async def status(self) -> Status:
        """What is said at /status."""

    def metrics(self) -> bytes:
        """What is said at /metrics, as Prometheus text."""

    def unready(self) -> str:
        """Why no prewrite is taken now; empty if all is well."""

    async def nodes(self, kind: str) -> Sequence[NodeEntry]:
        """The registered "pumps" or "drainers". Raises UpstreamUnavailable."""

    async def change_state(self, node_id: str, action: str) -> Reply:
        """Begins to pause, close or resume; returns as soon as that is decided."""

    def applied_ts(self) -> Reply:
        """What is said at /commit_ts."""

    async def binlog_text(self, ts: int) -> str:
        """The binlog of a timestamp in words. Raises Corrupt or Unavailable."""

    def reload(self) -> Reply:
        """Reads the configuration again, and takes from it what can change while it runs."""

    async def find(self, question: Question) -> LookUp:
        """Transactions of the log. Raises Refused, Unavailable."""

    async def ddl_history(self) -> Sequence[bytes]:
        """The JSON of every DDL job that is known. Raises UpstreamUnavailable."""

    def trigger_gc(self) -> bool:
        """Begins to collect garbage; False if that is going on already."""

    async def skip(self, commit_ts: int, reason: str) -> Reply:
        """Passes over a transaction from now on. Raises UpstreamUnavailable."""

    def route_failed(self, route: str, error: Exception) -> BinlogdError:
        """Takes note of a fault that nobody foresaw; what to say of it."""

    def decided_skips(self) -> Sequence[SkipEntry]:
        """What was skipped so far."""


def application(
    operations: Operations,
    guard: Guard,
    hub: Hub,
    queue: ExportQueue | None = None,
    pd: Callable[[], Mapping[str, Any]] | None = None,
) -> web.Application:
    """Everything that is answered over HTTP/1.1; `hub` is who listens to events, `queue` who
    exports and `pd` what is said in the place of a PD, where somebody stands in for one."""
    routes = web.Application(
        middlewares=[_never_in_silence(operations), _in_the_originals_words, guarding(guard)],
        client_max_size=_BODY_BYTES_MAX,
    )
    routes.on_response_prepare.append(add_headers)
    _add_health(routes.router, operations)
    _add_looking(routes.router, operations)
    _add_acting(routes.router, operations)
    add_profiling(routes.router)
    add_lookup(routes.router, operations.find)
    add_exports(routes.router, queue)
    add_pd(routes.router, pd)
    add_page(routes.router)
    routes.router.add_get("/openapi.json", _description)
    routes.router.add_get("/events", hub.events)
    return routes


async def _description(_: web.Request) -> web.Response:
    from binlogd.serving.routes.openapi import document  # for who asks first, not at each start

    return web.Response(body=document(), content_type="application/json", charset="utf-8")


def _never_in_silence(operations: Operations) -> Any:
    """What no route answers for is noted for operators, and answered: receiving goes on."""

    @web.middleware
    async def answered(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except (web.HTTPException, ConnectionError):
            raise
        except web.RequestPayloadError as error:
            return _json(Trouble(f"the body cannot be read: {' '.join(str(error).split())}"), 400)
        except BinlogdError as error:
            return _json(Reply.refused(error), 503, indent=2)
        except Exception as error:  # noqa: BLE001 - whoever asks and operators hear it
            resource = request.match_info.route.resource
            name = resource.canonical if resource is not None else "unknown"
            failure = operations.route_failed(f"{request.method} {name}", error)
            return _json(Reply.refused(failure), 500, indent=2)

    return answered


def _add_health(router: web.UrlDispatcher, operations: Operations) -> None:
    async def status(_: web.Request) -> web.Response:
        return _json(document(await operations.status()))

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=operations.metrics(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def alive(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def ready(_: web.Request) -> web.Response:
        reason = operations.unready()
        return web.Response(text=f"{reason or 'ok'}\n", status=503 if reason else 200)

    router.add_get("/status", status)
    router.add_get("/metrics", metrics)
    router.add_get("/livez", alive)
    router.add_get("/readyz", ready)


def _add_looking(router: web.UrlDispatcher, operations: Operations) -> None:
    async def nodes(request: web.Request) -> web.Response:
        try:
            return _json(await operations.nodes(request.path.strip("/")) or None)
        except BinlogdError as error:
            return web.Response(text=f"can't provide service: {error}\n")

    async def commit_ts(_: web.Request) -> web.Response:
        return _reply(operations.applied_ts())

    async def binlog(request: web.Request) -> web.Response:
        ts = request.match_info["ts"]
        number = _whole_number(ts)
        if number is None:
            return web.Response(text=f"invalid parameter ts: {ts}\n")
        try:
            return web.Response(text=await operations.binlog_text(number))
        except BinlogdError as error:
            return web.Response(text=f"fail read binlog by ts: {ts}: {error}\n")

    async def ddl_history(_: web.Request) -> web.Response:
        jobs = await operations.ddl_history()
        return web.Response(body=b"[" + b",".join(jobs) + b"]\n", content_type="application/json")

    router.add_get("/ddl/history", ddl_history)
    router.add_get("/pumps", nodes)
    router.add_get("/drainers", nodes)
    router.add_get("/commit_ts", commit_ts)
    router.add_get("/debug/binlog/{ts}", binlog)


def _add_acting(router: web.UrlDispatcher, operations: Operations) -> None:
    async def change_state(request: web.Request) -> web.Response:
        asked = request.match_info
        return _reply(await operations.change_state(asked["node_id"], asked["action"]))

    async def reload(_: web.Request) -> web.Response:
        return _reply(operations.reload())

    async def trigger_gc(_: web.Request) -> web.Response:
        began = operations.trigger_gc()
        return web.Response(text="trigger gc success\n" if began else "gc is working\n")

    async def skip(request: web.Request) -> web.Response:
        ts, reason = request.match_info["ts"], request.query.get("reason", "")
        number = _whole_number(ts)
        if not number:
            return _reply(Reply.refused(f"invalid parameter ts: {ts}"))
        try:
            return _reply(await operations.skip(number, reason))
        except BinlogdError as error:
            return _reply(Reply.refused(error))

    async def skips(_: web.Request) -> web.Response:
        return _json(operations.decided_skips())

    router.add_get("/skips", skips)
    router.add_put("/skips/{ts}", skip)
    router.add_put("/state/{node_id}/{action}", change_state)
    router.add_post("/debug/gc/trigger", trigger_gc)
    router.add_post("/reload", reload)


@web.middleware
async def _in_the_originals_words(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPNotFound:
        return web.Response(status=404, text="404 page not found\n")
    except web.HTTPMethodNotAllowed as error:
        return web.Response(status=405, headers={"Allow": ", ".join(sorted(error.allowed_methods))})


def _whole_number(text: str, at_most: int = MAX_TS) -> int | None:
    """One in decimal digits, of which Python would refuse thousands with an error."""
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(at_most))):
        return None
    number = int(text)
    return number if number <= at_most else None


def _reply(reply: Reply) -> web.Response:
    return _json(reply, indent=2)


def _json(content: Any, status: int = 200, *, indent: int = 0) -> web.Response:
    text = msgspec.json.encode(content)
    if indent:
        text = msgspec.json.format(text, indent=indent)
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    return web.Response(body=text + b"\n", status=status, headers=headers)


def _trouble(error: Exception) -> web.Response:
    """What is asked makes no sense, too many ask at once, or it cannot be answered now."""
    is_wrong = isinstance(error, ConfigError | ValueError)
    return _json(
        Trouble(str(error)), 400 if is_wrong else 429 if isinstance(error, Refused) else 503
    )


# --- /exports: exports that this service does itself, asked for, looked at and cancelled ----------

_OFF = (
    "this service does no exports: set export.dir, or run `binlogd export` beside it; it needs the"
    " extra `spark` and a Java runtime"
)
_ID_MAX = 10**15 - 1


def add_exports(router: web.UrlDispatcher, queue: ExportQueue | None) -> None:
    """Adds the routes; without a queue they say what to do."""

    async def ask(request: web.Request) -> web.Response:
        if queue is None:
            return _json(Trouble(_OFF), 503)
        from binlogd.snapshot.export_queue import AskedExport  # is there where the queue is

        try:
            asked = msgspec.json.decode(await request.read() or b"{}", type=AskedExport)
            return _json(queue.ask(asked), 202)
        except (msgspec.DecodeError, UnicodeDecodeError, ConfigError, Refused) as error:
            return _trouble(error)

    async def every(_: web.Request) -> web.Response:
        return _json(Trouble(_OFF), 503) if queue is None else _json(queue.jobs())

    async def one(request: web.Request) -> web.Response:
        number = _number(request)
        found = next((each for each in queue.jobs() if each.id == number), None) if queue else None
        return _found(found)

    async def cancel(request: web.Request) -> web.Response:
        return _found(queue.cancel(_number(request)) if queue is not None else None)

    router.add_post("/exports", ask)
    router.add_get("/exports", every)
    router.add_get("/exports/{id}", one)
    router.add_delete("/exports/{id}", cancel)


def _number(request: web.Request) -> int:
    return _whole_number(request.match_info["id"], _ID_MAX) or 0


def _found(job: ExportJob | None) -> web.Response:
    return _json(Trouble("no such export"), 404) if job is None else _json(job)


# --- /transactions: what somebody looks for in the log, as a readable change ---------------------

TEXT_CHARS_MAX = 4_096
_LIMIT = 20
_PARAMETERS = {"table", "row", "from", "to", "limit"}

_LOOK_S = 0.1
"""Between two looks whether somebody waits for the answer."""

Find = Callable[[Question], Awaitable[LookUp]]


def add_lookup(router: web.UrlDispatcher, find: Find) -> None:
    """Adds the routes."""

    def answering(question: Callable[[web.Request], Question]) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            try:
                found = _json(await _while_awaited(request, find(question(request))))
            except BinlogdError as error:
                found = _trouble(error)
            found.headers["Cache-Control"] = "no-store"
            return found

        return answer

    router.add_get("/transactions/{ts}", answering(_of_timestamp))
    router.add_get("/transactions", answering(_of_query))


async def _while_awaited(request: web.Request, looking: Awaitable[LookUp]) -> LookUp:
    """Ends a look-up that nobody waits for any more: its place is the next one's."""
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look() -> None:
        nonlocal timer
        if request.transport is None or request.transport.is_closing():
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(_LOOK_S, look)

    try:
        async with asyncio.timeout(None) as limit:
            timer = loop.call_later(_LOOK_S, look)
            return await looking
    except TimeoutError:
        raise Refused("who asked has gone") from None
    finally:
        timer.cancel()


def _of_timestamp(request: web.Request) -> Question:
    ts = _whole_number(request.match_info["ts"])
    if not ts:
        raise ConfigError("a timestamp is a whole number like 412518831548007863")
    return Question(ts=ts)


def _of_query(request: web.Request) -> Question:
    query = request.query
    unknown = sorted(set(query) - _PARAMETERS)
    if unknown:
        raise ConfigError(
            f"unknown: {', '.join(unknown)}; there are {', '.join(sorted(_PARAMETERS))}"
        )
    if len(request.query_string) > TEXT_CHARS_MAX:
        raise ConfigError(f"the question is longer than {TEXT_CHARS_MAX} characters")
    for name in query:
        if name != "row" and len(query.getall(name)) > 1:
            raise ConfigError(f"{name}: stands there twice")
    start = first_ts(query["from"], "from") if query.get("from") else 0
    stop = last_ts(query["to"], "to") if query.get("to") else MAX_TS
    if start > stop:
        raise ConfigError("from lies behind to")
    row = _row(query.getall("row", []))
    if row and not query.get("table"):
        raise ConfigError("row needs a table: table=shop.orders&row=id=42")
    return Question(
        table=query.get("table", ""), row=row, start=start, stop=stop, limit=_limit(query)
    )


def _limit(query: Mapping[str, str]) -> int:
    limit = _whole_number(query.get("limit", str(_LIMIT))) or 0
    if not 1 <= limit <= LIMIT_MAX:
        raise ConfigError(f"limit: expected a number from 1 to {LIMIT_MAX}")
    return limit


def _row(conditions: Sequence[str]) -> dict[str, str]:
    row: dict[str, str] = {}
    for text in conditions:
        column, equals, value = map(str.strip, text.partition("="))
        if not equals or not column:
            raise ConfigError(f"row {text!r}: expected COLUMN=VALUE, as in id=42")
        if column.lower() in map(str.lower, row):
            raise ConfigError(f"row: {column} stands there twice: a row has one value of it")
        row[column] = value
    return row


def add_pd(router: web.UrlDispatcher, said: Callable[[], Mapping[str, Any]] | None) -> None:
    """The words under `/pd/api/v1/`; `said` is what the PD says of itself by them. Without one none
    of them is known."""

    async def pd_word(request: web.Request) -> web.Response:
        word = request.match_info["word"]
        if said is None:
            raise web.HTTPNotFound
        if word == "ping":
            return web.Response()
        documents = said()
        if word not in documents:
            known = ", ".join(sorted([*documents, "ping"]))
            reason = f"binlogd stands in for PD: {word} is not here; known: {known}\n"
            return web.Response(status=404, text=reason)
        return _json(documents[word], indent=2)

    router.add_get("/pd/api/v1/{word}", pd_word)


# --- /: the page, and the files that it is made of -----------------------------------------------

_PAGE_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
}
"""What is not said on every answer (guard.py)."""
_FIRST_FILE = "index.html"


def add_page(router: web.UrlDispatcher) -> None:
    """Adds the routes: one for each file, out of the package itself.

    The browser is told to load nothing from elsewhere and to run nothing that is written into a
    page (Content-Security-Policy), so that a table's name or a row's value stays text whatever it
    holds.
    """
    for file in files("binlogd").joinpath("serving/page").iterdir():
        extension = file.name[file.name.rfind(".") :]
        if extension in _PAGE_TYPES:
            path = "/" if file.name == _FIRST_FILE else f"/page/{file.name}"
            router.add_get(path, _File(file.read_bytes(), _PAGE_TYPES[extension]).answer)


class _File:
    """One file, which a browser that has it need not fetch again."""

    def __init__(self, content: bytes, content_type: str) -> None:
        self._content, self._type = content, content_type
        self._tag = hashlib.sha256(content).hexdigest()[:20]

    async def answer(self, request: web.Request) -> web.Response:
        """The file with its ETag; 304 without a body to whoever names that."""
        known = request.if_none_match or ()
        is_known = any(each.value == self._tag for each in known)
        answer = web.Response(
            status=304 if is_known else 200,
            body=None if is_known else self._content,
            headers=_PAGE_HEADERS,
        )
        if not is_known:
            answer.content_type, answer.charset = self._type, "utf-8"
        answer.etag = self._tag
        return answer
