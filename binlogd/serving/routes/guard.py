"""Who may act over HTTP, and what every answer says to a browser.

An action is what changes something, or shows the inside of the process (`/debug/`: profiles, the
rows of a binlog) or rows (`/transactions`). With a token, an action needs it, from wherever it
comes. Without one, actions are taken from this machine only: by the unix socket, from a loopback
address or from the very address that was asked, and not from a page of another site that is open in
a browser on this machine, nor through a proxy.

The originals have no such rule; their binlogctl, which knows no token, works from this machine, and
from where `operators.py` says.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from binlogd.host.tls import common_names
from binlogd.settings.operators import Address, Operators, address
from binlogd.telemetry.logs import Seldom

log = structlog.get_logger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
INSIDE = ("/debug/", "/transactions")
_STATES = "/state/"
_REFUSED_CODE = 3
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via")
_NEEDS_TOKEN = (
    "this needs the admin token: send it as `Authorization: Bearer TOKEN`; commands of binlogd take"
    " it from BINLOGD_ADMIN_TOKEN or security.admin-token-file"
)
_NOT_FROM_THERE = (
    "no admin token is configured, so this is taken from the unix socket and from 127.0.0.1 alone;"
    " set security.admin-token to allow it from elsewhere"
)
_NOT_BY_PROXY = (
    "the request came through a proxy, whose address says nothing of who asks; it needs the admin"
    " token (security.admin-token)"
)
_ANOTHER_SITE = "the request comes from a page of another site"
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """Of an action: the status and the reason of the answer, and for this node's operator the
    setting that would have let it through."""

    status: int
    reason: str
    way_past: str = "security.admin-token"


class Guard:
    """Lets actions pass. Token and operators are asked for at each of them; "" stands for none."""

    def __init__(
        self, token: Callable[[], str], operators: Callable[[], Operators] = Operators
    ) -> None:
        self._token = token
        self._operators = operators

    def refusal(self, request: web.Request) -> Refusal | None:
        """None lets a request pass."""
        if request.method in _READS and not request.path.startswith(INSIDE):
            return None
        if _is_of_another_site(request):
            return Refusal(403, _ANOTHER_SITE)
        is_direct = _is_direct(request)
        if is_direct and self._is_of_an_operator(request):
            return None
        token = self._token()
        if not token:
            if is_direct and _is_from_here(request):
                return None
            return _told(403, _NOT_FROM_THERE if is_direct else _NOT_BY_PROXY, request)
        scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        is_right = hmac.compare_digest(
            given.strip().encode(errors="surrogateescape"), token.encode()
        )
        return (
            None if is_right and scheme.lower() == "bearer" else _told(401, _NEEDS_TOKEN, request)
        )

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


def guarding(guard: Guard) -> Middleware:
    """As aiohttp takes it."""
    seldom = Seldom()

    @web.middleware
    async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
        refused = guard.refusal(request)
        if refused is None:
            return await handler(request)
        untold = seldom.due(asyncio.get_running_loop().time())
        if untold is not None:
            log.warning(
                "action_refused",
                method=request.method,
                path=request.path[:200],
                client=request.remote or "",
                status=refused.status,
                cause=refused.reason,
                setting=refused.way_past,
                others_untold=untold,
            )
        document = {"message": refused.reason, "code": _REFUSED_CODE, "data": None}
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        if refused.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        body = msgspec.json.encode(document) + b"\n"
        return web.Response(status=refused.status, body=body, headers=headers)

    return guarded


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Puts the headers on an answer that is about to go out."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers[hdrs.SERVER] = "binlogd"  # aiohttp would tell its version


def _told(status: int, reason: str, request: web.Request) -> Refusal:
    """With the setting that is for binlogctl, where it would have let the request through."""
    peer = _peer(request)
    has_tried = hdrs.AUTHORIZATION in request.headers
    if peer is None or has_tried or not _is_direct(request) or not _is_binlogctl_like(request):
        return Refusal(status, reason)
    setting = f'security.operators-from = ["{peer}"]'
    return Refusal(
        status,
        f"{reason}. The original's binlogctl sends none: {setting} lets {peer} change states",
        f"{setting}, or security.admin-token and binlogd ctl",
    )


def _is_binlogctl_like(request: web.Request) -> bool:
    """What the original's binlogctl asks, and no browser: at a PUT those say where it is from."""
    return (
        request.method == "PUT"
        and request.path.startswith(_STATES)
        and not _is_of_a_browser(request)
    )


def _is_of_a_browser(request: web.Request) -> bool:
    return any(name in request.headers for name in (hdrs.ORIGIN, "Sec-Fetch-Site"))


def _is_direct(request: web.Request) -> bool:
    """Whether no proxy says that it passes a request on."""
    return not any(name in request.headers for name in _FORWARDED)


def _is_from_here(request: web.Request) -> bool:
    """Whether a direct request was made on this machine, as far as can be told."""
    if request.transport is None:
        return False
    if request.transport.get_extra_info("socket").family == socket.AF_UNIX:
        return True
    peer = _peer(request)
    if peer is None:
        return False
    if not peer.is_loopback:
        # to an address of its own a machine speaks from that address
        own = address(request.transport.get_extra_info("sockname")[0])
        return peer == own and not _is_of_a_browser(request)
    return not _is_of_a_browser(request) or _is_loopback_name(
        urlsplit(f"//{request.host}").hostname or ""
    )


def _peer(request: web.Request) -> Address | None:
    """The address at the other end; None by the unix socket, and of a connection that is gone."""
    transport = request.transport
    if transport is None or transport.get_extra_info("socket").family == socket.AF_UNIX:
        return None
    name = transport.get_extra_info("peername")
    return address(name[0]) if name else None


def _is_loopback_name(name: str) -> bool:
    """A name that another site cannot have its own address under."""
    if name == "localhost":
        return True
    try:
        return address(name).is_loopback
    except ValueError:
        return False


def _is_of_another_site(request: web.Request) -> bool:
    """Browsers say where a request comes from; other programs say nothing."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and urlsplit(origin).netloc != request.host
