"""A TiDB's status port: HTTP and JSON, of bounded size and time.

Source: TiDB docs/tidb_http_api.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import aiohttp

from binlogd.errors import UpstreamUnavailable
from binlogd.host.tls import ClientTls
from binlogd.upstream.http import certificates, session

ANSWER_S = 10.0
ANSWER_BYTES_MAX = 64 << 20
_TEXT_BYTES = 200


class StatusPort:
    """The routes of one TiDB. With `tls` they are asked for by https."""

    def __init__(self, address: tuple[str, int], tls: ClientTls | None = None) -> None:
        self._host, self._port = address
        self.tls = tls
        """None for plain HTTP."""

    def __str__(self) -> str:
        return f"{self._host}:{self._port}"

    def url(self, path: str) -> str:
        """The address of a route."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self.tls else 'http'}://{host}:{self._port}{path}"

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """The body of an answer. Raises UpstreamUnavailable, also for an answer that is an error:
        another TiDB may know better."""
        try:
            async with (
                session(ANSWER_S) as asking,
                asking.get(
                    self.url(path), params=dict(query or {}), ssl=certificates(self.tls)
                ) as answer,
            ):
                body = bytearray()
                async for chunk in answer.content.iter_chunked(1 << 16):
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        raise self._error(path, f"more than {ANSWER_BYTES_MAX} bytes of answer")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._error(path, str(error) or type(error).__name__) from error
        if answer.status != 200:
            text = bytes(body[:_TEXT_BYTES]).decode("utf-8", "replace").strip()
            raise self._error(path, f"HTTP {answer.status}: {text}")
        return bytes(body)

    def _error(self, path: str, reason: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"tidb {self}{path}: {reason}")
