"""A TiDB's status port: HTTP and JSON, of bounded size and time.

Source: TiDB docs/tidb_http_api.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from binlogd.errors import UpstreamUnavailable
from binlogd.host.http import NoAnswer, http_session
from binlogd.host.tls import ClientTls

ANSWER_S = 10.0
ANSWER_BYTES_MAX = 64 << 20


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
        url, params = self.url(path), dict(query or {})
        try:
            async with http_session(ANSWER_S, self.tls) as asking:
                answer = await asking.ask("GET", url, bytes_max=ANSWER_BYTES_MAX, params=params)
        except NoAnswer as error:
            raise self._error(path, str(error)) from error
        if answer.status != 200:
            raise self._error(path, answer.refusal)
        return answer.body

    def _error(self, path: str, reason: str) -> UpstreamUnavailable:
        return UpstreamUnavailable(f"tidb {self}{path}: {reason}")
