"""Who may act over HTTP, and what every answer says to a browser.

An action is what changes something, or shows the inside of the process (`/debug/`: profiles, the
rows of a binlog) or rows (`/transactions`). With a token, an action needs it, from wherever it
comes. Without one, actions are taken from this machine only: by the unix socket, or from a loopback
address, and not from a page of another site that is open in a browser on this machine, nor through
a proxy.

The originals have no such rule; their binlogctl, which knows no token, works from this machine.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import msgspec
import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Middleware

from binlogd.telemetry import Seldom

log = structlog.get_logger(__name__)

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
INSIDE = ("/debug/", "/transactions")
_REFUSED_CODE = 3
_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")
_NEEDS_TOKEN = (
    "this needs the admin token: send it as `Authorization: Bearer TOKEN`; commands of binlogd take"
    " it from BINLOGD_ADMIN_TOKEN or security.admin-token-file"
)
_NOT_FROM_THERE = (
    "no admin token is configured, so this is taken from the unix socket and from 127.0.0.1 alone;"
    " set security.admin-token to allow it from elsewhere"
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


class Guard:
    """Lets actions pass. `token` is asked at each of them; "" stands for none."""

    def __init__(self, token: Callable[[], str]) -> None:
        self._token = token

    def refusal(self, request: web.Request) -> tuple[int, str] | None:
        """The status and the reason of an answer that refuses; None lets it pass."""
        if request.method in _READS and not request.path.startswith(INSIDE):
            return None
        if _is_of_another_site(request):
            return 403, _ANOTHER_SITE
        token = self._token()
        if not token:
            return None if _is_from_here(request) else (403, _NOT_FROM_THERE)
        scheme, _, given = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        is_right = hmac.compare_digest(
            given.strip().encode(errors="surrogateescape"), token.encode()
        )
        return None if is_right and scheme.lower() == "bearer" else (401, _NEEDS_TOKEN)


def guarding(guard: Guard) -> Middleware:
    """As aiohttp takes it."""
    seldom = Seldom()

    @web.middleware
    async def guarded(request: web.Request, handler: _Handler) -> web.StreamResponse:
        refused = guard.refusal(request)
        if refused is None:
            return await handler(request)
        status, reason = refused
        untold = seldom.due(asyncio.get_running_loop().time())
        if untold is not None:
            log.warning(
                "action_refused",
                method=request.method,
                path=request.path[:200],
                client=request.remote or "",
                status=status,
                others_untold=untold,
            )
        body = msgspec.json.encode({"message": reason, "code": _REFUSED_CODE, "data": None})
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        if status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        return web.Response(status=status, body=body + b"\n", headers=headers)

    return guarded


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Puts the headers on an answer that is about to go out."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers[hdrs.SERVER] = "binlogd"  # aiohttp would tell its version


def _is_from_here(request: web.Request) -> bool:
    """Whether a request was made on this machine, as far as can be told."""
    if request.transport is None or any(name in request.headers for name in _FORWARDED):
        return False
    if request.transport.get_extra_info("socket").family == socket.AF_UNIX:
        return True
    peer = ipaddress.ip_address(request.transport.get_extra_info("peername")[0])
    peer = getattr(peer, "ipv4_mapped", None) or peer
    if not peer.is_loopback:
        return False
    is_browser = hdrs.ORIGIN in request.headers or "Sec-Fetch-Site" in request.headers
    return not is_browser or _is_loopback_name(urlsplit(f"//{request.host}").hostname or "")


def _is_loopback_name(name: str) -> bool:
    """A name that another site cannot have its own address under."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _is_of_another_site(request: web.Request) -> bool:
    """Browsers say where a request comes from; other programs say nothing."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return True
    origin = request.headers.get(hdrs.ORIGIN)
    return origin is not None and urlsplit(origin).netloc != request.host
