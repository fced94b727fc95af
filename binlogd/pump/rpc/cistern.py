"""`binlog.Cistern`: where a Pump that starts tells the Drainers of itself.

Source: tidb-binlog pump/server.go, which answers the other methods with nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from grpclib.const import Cardinality, Handler

from binlogd.errors import BinlogdError
from binlogd.grpc.messages import BytesStream, read_message, send_empty
from binlogd.pump.rpc.refusals import refusal

_MESSAGE_BYTES_MAX = 64 << 10


class CisternService:
    """Notify, and the original's empty stubs."""

    def __init__(self, on_notify: Callable[[], Awaitable[None]]) -> None:
        """`on_notify` looks at the registry anew; the Pump hears of it when that fails."""
        self._on_notify = on_notify

    def __mapping__(self) -> dict[str, Handler]:
        """The methods, for grpclib's server with a `BytesCodec`."""
        return {
            "/binlog.Cistern/Notify": Handler(self._notify, Cardinality.UNARY_UNARY, bytes, bytes),
            "/binlog.Cistern/DumpDDLJobs": Handler(
                self._answer_empty, Cardinality.UNARY_UNARY, bytes, bytes
            ),
            "/binlog.Cistern/DumpBinlog": Handler(
                self._answer_nothing, Cardinality.UNARY_STREAM, bytes, bytes
            ),
        }

    async def _notify(self, stream: BytesStream) -> None:
        await read_message(stream, _MESSAGE_BYTES_MAX)
        try:
            await self._on_notify()
        except BinlogdError as error:
            raise refusal(error) from error
        await send_empty(stream)

    async def _answer_empty(self, stream: BytesStream) -> None:
        await read_message(stream, _MESSAGE_BYTES_MAX)
        await send_empty(stream)

    async def _answer_nothing(self, stream: BytesStream) -> None:
        await read_message(stream, _MESSAGE_BYTES_MAX)
