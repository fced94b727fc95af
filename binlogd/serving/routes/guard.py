"""Who may act over HTTP, and what every answer says to a browser.

An action is what changes something, or shows the inside of the process (`/debug/`: profiles, the
rows of a binlog) or rows (`/transactions`). It needs the admin token, from wherever it comes: the
node's address says nothing of who asks, since browsers, proxies and the networks of containers
speak from this machine for anybody. A node that is given no token has made one
(`settings/made_token.py`), which the commands of its owner read.

Looking needs no token, but the node's own name: a page of another site whose name was bound anew to
this address is of one site with it, says nothing of itself at a GET, and could read all.

The originals have no such rule; their binlogctl, which knows no token, works from where
`operators.py` says.
"""

from __future__ import annotations

import hmac
import logging
import re
import socket
from collections.abc import Callable, Set
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import HttpVersion11, hdrs, web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from binlogd.host.peers import address
from binlogd.host.tls import common_names
from binlogd.serving.answers import Reply
from binlogd.settings.operators import Address, Operators
from binlogd.telemetry.logs import Seldom

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
INSIDE = ("/debug/", "/transactions")
_STATES = "/state/"
_UNNAMED = frozenset({"/livez", "/readyz"})
"""Asked by whatever probes a node, which may call it anything; they tell no secret."""
_FORWARDED = frozenset({"forwarded", "x-real-ip", "via"})
_NEEDS_TOKEN = (
    "this needs the admin token: send it as `Authorization: Bearer TOKEN`. It is the one of"
    " security.admin-token, else the node's own, which is in the file admin-token of its data-dir;"
    " commands of binlogd take it from BINLOGD_ADMIN_TOKEN, the configuration, or that file"
)
_NOT_BY_PROXY = "the request came through a proxy, whose address says nothing of who asks; "
_ANOTHER_SITE = "the request comes from a page of another site"
_ANOTHER_NAME = (
    "Host: {host!r} is no name of this node, so this may be a page of another site; ask by address,"
    " or name it in security.host-names"
)
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/@ ]+))(?::[0-9]*)?")
_PRIVATE = (".localhost", ".local", ".internal", ".svc")
"""Ends of names that no site of the internet has."""
_GO = "Go-http-client/"
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
"""On every answer, unless a route says something else."""
# The header Server, also of answers to what cannot be read, which no hook sees: it tells versions.
vars(web_response)["SERVER_SOFTWARE"] = "binlogd"


class ActionRefusal(msgspec.Struct, frozen=True):
    """Of an action: the status and the reason of the answer, and for this node's operator the
    setting that would have let it through."""

    status: int
    reason: str
    way_past: str = "security.admin-token"


class Guard:
    """Lets actions pass. Token, operators and the node's names are asked for at each of them."""

    def __init__(
        self,
        token: Callable[[], str],
        operators: Callable[[], Operators] = Operators,
        names: Callable[[], Set[str]] = frozenset,
    ) -> None:
        self._token = token
        self._operators = operators
        self._names = names

    def refusal(self, request: web.Request) -> ActionRefusal | None:
        """None lets a request pass."""
        if request.path not in _UNNAMED and not self._is_by_name(request):
            host = request.headers.get(hdrs.HOST, "")[:100]
            return ActionRefusal(403, _ANOTHER_NAME.format(host=host), "security.host-names")
        if request.method in _READS and not request.path.startswith(INSIDE):
            return None
        if _is_of_another_site(request):
            return ActionRefusal(403, _ANOTHER_SITE)
        is_direct = _is_direct(request)
        if is_direct and self._is_of_an_operator(request):
            return None
        token = self._token()
        scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        is_right = bool(token) and hmac.compare_digest(
            given.strip().encode(errors="surrogateescape"), token.encode()
        )
        if is_right and scheme.lower() == "bearer":
            return None
        return _token_needed("" if is_direct else _NOT_BY_PROXY, request)

    def _is_by_name(self, request: web.Request) -> bool:
        """Whether it is asked for this node, and not for a site whose name leads here. With TLS the
        certificate says so, and a unix socket has no name."""
        transport = request.transport
        if transport is None or request.secure:
            return True
        if transport.get_extra_info("socket").family == socket.AF_UNIX:
            return True
        given = request.headers.getall(hdrs.HOST, [])
        return len(given) == 1 and is_own_name(given[0], self._names())

    def _is_of_an_operator(self, request: web.Request) -> bool:
        if request.transport is None:
            return False
        operators = self._operators()
        if operators.may_act(common_names(request.transport.get_extra_info("peercert"))):
            return True
        peer = _peer(request)
        return (
            peer is not None and _is_binlogctl_like(request) and operators.may_change_states(peer)
        )


def is_own_name(host: str, names: Set[str]) -> bool:
    """Whether a `Host` can be none but this node: an address, a name that no site of the internet
    can have, or one of `names`."""
    match = _HOST.fullmatch(host)
    name = (match[1] or match[2]).lower().rstrip(".") if match else ""
    try:
        address(name)
    except ValueError:
        return bool(name) and ("." not in name or name.endswith(_PRIVATE) or name in names)
    return True


def guarding(guard: Guard) -> Middleware:
    """As aiohttp takes it."""
    seldom = Seldom()

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        """What the handler answers, or why it was not asked, in the form of the original."""
        refused = guard.refusal(request)
        if refused is None:
            return await handler(request)
        seldom.warn(
            "action_refused",
            method=request.method,
            path=request.path[:200],
            client=request.remote or "",
            status=refused.status,
            cause=refused.reason,
            setting=refused.way_past,
        )
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        if refused.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        status = refused.status
        if _is_gos_binlogctl(request):  # prints "success" at any answer that Go has no error for:
            way_past = f"refused:set-{refused.way_past}"  # Go quotes what leads nowhere
            status, headers[hdrs.LOCATION] = 307, quote(way_past, safe=":-.,/()[]=")
        body = msgspec.json.encode(Reply.refused(refused.reason)) + b"\n"
        return web.Response(status=status, body=body, headers=headers)

    return guarded


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Puts the headers on an answer that is about to go out."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def _token_needed(reason: str, request: web.Request) -> ActionRefusal:
    """With the setting that is for binlogctl, where it would have let the request through."""
    peer = _peer(request)
    has_tried = hdrs.AUTHORIZATION in request.headers
    if peer is None or has_tried or not _is_direct(request) or not _is_binlogctl_like(request):
        return ActionRefusal(401, reason + _NEEDS_TOKEN)
    setting = f'security.operators-from = ["{peer}"]'
    return ActionRefusal(
        401,
        f"{_NEEDS_TOKEN}. The original's binlogctl sends none: {setting} lets {peer} change states",
        f"{setting}, or binlogd ctl",
    )


def _is_gos_binlogctl(request: web.Request) -> bool:
    has_tried = hdrs.AUTHORIZATION in request.headers
    agent = request.headers.get(hdrs.USER_AGENT, "")
    return _is_binlogctl_like(request) and agent.startswith(_GO) and not has_tried


def _is_binlogctl_like(request: web.Request) -> bool:
    """What the original's binlogctl asks, and no browser: at a PUT those say where it is from."""
    return (
        request.method == "PUT"
        and request.path.startswith(_STATES)
        and not any(name in request.headers for name in (hdrs.ORIGIN, "Sec-Fetch-Site"))
    )


def _is_direct(request: web.Request) -> bool:
    """Whether no proxy says that it passes a request on, as nginx does by its HTTP/1.0 alone."""
    return request.version >= HttpVersion11 and not any(
        name in _FORWARDED or name.startswith("x-forwarded-")
        for name in map(str.lower, request.headers)
    )


def _peer(request: web.Request) -> Address | None:
    """The address at the other end; None by the unix socket, and of a connection that is gone."""
    transport = request.transport
    if transport is None or transport.get_extra_info("socket").family == socket.AF_UNIX:
        return None
    name = transport.get_extra_info("peername")
    return address(name[0]) if name else None


def _is_of_another_site(request: web.Request) -> bool:
    """Browsers say where a request comes from; other programs say nothing."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and origin.partition("://")[2] != request.host


class HttpLog(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's log; a request that it cannot read is no fault of ours, and anybody's to send. What
    it quotes of one stays untold: that may be the token."""

    def __init__(self) -> None:
        super().__init__(logging.getLogger("aiohttp.server"))
        self._unreadable = Seldom()

    def exception(self, msg: object, *given: object, **how: Any) -> None:
        """A line now and then for what cannot be read, none for who has gone, a traceback for the
        rest."""
        error = how.get("exc_info")
        if isinstance(error, HttpProcessingError):
            why = " ".join(error.message.partition("\n\n")[0].split())
            self._unreadable.warn("request_not_understood", cause=why[:200])
        elif not isinstance(error, ConnectionError):
            super().exception(msg, *given, **how)
