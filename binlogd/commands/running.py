"""Asking a running binlogd over HTTP: by its address or its unix socket, with TLS and the token."""

from __future__ import annotations

import http.client
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from binlogd.errors import NotRunning, Unavailable
from binlogd.settings.config import WILDCARDS
from binlogd.settings.made_token import token_of_node
from binlogd.settings.quantities import listen_address, shown_address
from binlogd.settings.setup import Setup, http_tls, is_loopback
from binlogd.status import Status

ANSWER_S = 10.0
_ANSWER_BYTES_MAX = 64 << 20
_STARTING = 503


class _Refusal(msgspec.Struct):
    message: str
    code: int


def document_at(setup: Setup, route: str, kind: Any, method: str = "GET") -> Any:
    """The document at `route` of the process that listens at `addr`. Raises NotRunning, also where
    it is none of this kind, and Unavailable from one that waits in its start, or refuses."""
    status, body = asked(setup, method, route)
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        if status == _STARTING:  # it runs, and has its data directory: nobody may act in its place
            said = body.decode(errors="replace").strip()
            raise Unavailable(f"the binlogd that answers is {said}") from error
        with suppress(ValueError):
            refusal = msgspec.json.decode(body, type=_Refusal)
            raise Unavailable(f"the binlogd that answers refuses: {refusal.message}") from error
        raise NotRunning(route, f"an answer {status} that is none of binlogd's") from error


def get_status(setup: Setup) -> Status:
    """How that process stands. Raises as `document_at`, and Unavailable for one of another version
    whose status has not all that this one shows."""
    found = document_at(setup, "/status", dict[str, Any])
    try:
        return msgspec.convert(found, Status)
    except msgspec.ValidationError as error:
        raise Unavailable(
            f"the status of the binlogd that answers cannot be read: {error}",
            todo="ask it with a command of its own version, or by `binlogd status --json`",
        ) from error


def put(setup: Setup, route: str) -> dict[str, Any]:
    """The answer to a request to act. Raises NotRunning."""
    answer: dict[str, Any] = document_at(setup, route, dict[str, Any], "PUT")
    if not answer.keys() >= {"code", "message"}:
        raise NotRunning(route, "an answer that is none of binlogd's")
    return answer


def asked(
    setup: Setup, method: str, route: str, timeout_s: float = ANSWER_S, body: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body of an answer. The unix socket is taken where there is one, unless the
    command line named an address. Raises NotRunning."""
    connection, where = _connection(setup, timeout_s)
    token = admin_token(setup)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        connection.request(method, route, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        raise NotRunning(where + route, _reason(error)) from error
    finally:
        connection.close()


def admin_token(setup: Setup) -> str:
    """That of the configuration, else the one that its node has made, which a node elsewhere is not
    told; "" where neither can be read."""
    if setup.config.security.admin_token:
        return setup.config.security.admin_token
    is_here = not setup.is_elsewhere or is_loopback(_host(setup))
    return token_of_node(setup.data_dir) if is_here else ""


def page_address(setup: Setup) -> str:
    """Where a browser finds the page, without the last slash."""
    _, port = listen_address(setup.config.addr)
    scheme = "https" if setup.config.security.ssl_ca else "http"
    return f"{scheme}://{shown_address((_host(setup), port))}"


def _host(setup: Setup) -> str:
    host, _ = listen_address(setup.config.addr)
    return {"::": "::1"}.get(host, "127.0.0.1") if host in WILDCARDS else host


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _connection(setup: Setup, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
    path = setup.binlog_socket
    if path is not None and path.exists():
        return _UnixConnection(path, timeout_s), f"unix:{path}:"
    host, (_, port) = _host(setup), listen_address(setup.config.addr)
    made = http.client.HTTPConnection(host, port, timeout=timeout_s)
    if (tls := http_tls(setup, host)) is not None:
        made = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=tls)
    return made, page_address(setup)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
