"""Requests by HTTP that end with whoever made them: the door to aiohttp's client."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple, cast

from binlogd.host.silence import cut
from binlogd.host.tls import ClientTls


class _TrustReadLate(ssl.SSLContext):
    """Knows the authorities of this machine from its first handshake on, and is plain then."""

    def wrap_bio(self, *of: Any, **more: Any) -> ssl.SSLObject:
        return self._read().wrap_bio(*of, **more)

    def wrap_socket(self, *of: Any, **more: Any) -> ssl.SSLSocket:
        return self._read().wrap_socket(*of, **more)

    def _read(self) -> ssl.SSLContext:
        self.__class__ = ssl.SSLContext  # type: ignore[assignment]
        self.set_default_verify_paths()
        return self


def _read_late(self: ssl.SSLContext) -> None:
    self.__class__ = _TrustReadLate


@contextmanager
def trust_read_late() -> Iterator[None]:
    """Contexts that are made meanwhile read whom they trust when somebody speaks TLS by them."""
    ssl.SSLContext.set_default_verify_paths = _read_late  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ssl.SSLContext.set_default_verify_paths


with trust_read_late():  # two are made there: 0.2 s, of each start, for its server alone
    import aiohttp

_TEXT_BYTES = 200


class NoAnswer(Exception):
    """Nobody answers, not in time, or more than is taken; the text is the reason."""

    def __init__(self, reason: str, *, is_untrusted: bool = False) -> None:
        """`is_untrusted`: TLS came to nothing."""
        self.is_untrusted = is_untrusted
        super().__init__(reason)


class HttpAnswer(NamedTuple):
    """Of whatever status."""

    status: int
    body: bytes

    @property
    def refusal(self) -> str:
        """The status and the beginning of the body, for an error."""
        text = self.body[:_TEXT_BYTES].decode("utf-8", "replace").strip()
        return f"HTTP {self.status}: {text}"


def basic_login(user: str, password: str) -> dict[str, str]:
    """The header of RFC 7617."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


class HttpSession:
    """Some requests; `http_session` makes one."""

    def __init__(self, asking: aiohttp.ClientSession, tls: ClientTls | None) -> None:
        self._asking, self._tls = asking, tls

    async def ask(self, method: str, url: str, *, bytes_max: int, **request: Any) -> HttpAnswer:
        """`request` as aiohttp takes it. Raises NoAnswer, also for a body above `bytes_max`."""
        # certificates may have changed since the last request
        trusted = self._tls.fresh() if self._tls is not None else True
        body = bytearray()
        try:
            async with self._asking.request(method, url, ssl=trusted, **request) as response:
                async for chunk in response.content.iter_chunked(1 << 20):
                    body += chunk
                    if len(body) > bytes_max:
                        raise NoAnswer(f"the answer is larger than {bytes_max} bytes")
        except (aiohttp.ClientError, TimeoutError) as error:
            is_untrusted = isinstance(error, aiohttp.ClientSSLError | ssl.SSLError)
            reason = str(error) or type(error).__name__
            raise NoAnswer(reason, is_untrusted=is_untrusted) from error
        return HttpAnswer(response.status, bytes(body))


@asynccontextmanager
async def http_session(answer_s: float, tls: ClientTls | None) -> AsyncIterator[HttpSession]:
    """An answer as a whole may take so long. Without `tls`, https trusts what this machine does.

    At the end no connection is left, whatever its server does: aiohttp lets those go that are not
    to be used again, and TLS waits for a goodbye.
    """
    connector = _Connector()
    timeout = aiohttp.ClientTimeout(total=answer_s)
    try:
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as made:
            yield HttpSession(made, tls)
    finally:
        connector.cut()


class _Connector(aiohttp.TCPConnector):
    def __init__(self) -> None:
        super().__init__()
        self._made: list[asyncio.Transport] = []

    async def _create_connection(self, *of: Any) -> Any:
        protocol = await super()._create_connection(*of)
        self._made.append(cast(asyncio.Transport, protocol.transport))
        return protocol

    def cut(self) -> None:
        """Ends all that it has made."""
        for transport in self._made:
            cut(transport)
