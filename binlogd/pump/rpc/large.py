"""The message of a WriteBinlog that is not taken whole from its connection.

Of what TiDB writes the head tells everything: where the rows begin and end, and what follows. What
is otherwise is gathered in memory.
"""

from __future__ import annotations

from io import BytesIO
from typing import NamedTuple

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.errors import MalformedBinlog
from binlogd.grpc.messages import PIECE_BYTES, BytesStream, gathered, piece
from binlogd.grpc.methods import unreadable
from binlogd.pump.log.spool import Spool
from binlogd.wire import codec
from binlogd.wire.outline import Outline, outline
from binlogd.wire.peek import NO_DDL

_PIECE_BYTES = 1 << 20
SPOOLED_BYTES_HELD = 2 * _PIECE_BYTES
"""What a call takes while it is written to a file."""
SLOWER = 16
"""It may take so many times as long as one that has room for all of itself."""


class LargeWrite(NamedTuple):
    """A request whose payload ends it; `begin` is of the payload."""

    cluster_id: int
    prewrite: Outline
    begin: bytes


def large_write(first: bytes, *, message_bytes: int) -> LargeWrite | None:
    """A WriteBinlogReq by its first bytes; None for what is not as TiDB writes its rows."""
    head = codec.write_request_head(first, message_bytes=message_bytes)
    if head is None:
        return None
    begin = first[head.payload_at :]
    prewrite = outline(begin, NO_DDL, message_bytes - head.payload_at)
    return None if prewrite is None else LargeWrite(head.cluster_id, prewrite, begin)


async def spooled(stream: BytesStream, begun: LargeWrite, spool: Spool) -> bool:
    """Writes the payload to a spool as it comes: whether it ends as was assumed. Raises GRPCError,
    LogFailed or DiskFull."""
    await spool.write(begun.begin)
    last = b""
    while left := begun.prewrite.whole_bytes - spool.payload_bytes:
        part = await piece(stream, min(left, _PIECE_BYTES))
        if not part:
            raise GRPCError(Status.INTERNAL, "unexpected EOF")
        await spool.write(part)
        last = last[-len(NO_DDL) :] + part[-len(NO_DDL) :]
    return last.endswith(NO_DDL)


async def received(
    stream: BytesStream, first: bytes, size_bytes: int
) -> codec.WriteRequest | GRPCError:
    """A WriteBinlogReq of that size, of which `first` is here. Of a large one, only its payload is
    ever held, and once."""
    first = first or await piece(stream, min(size_bytes, PIECE_BYTES))
    if size_bytes > len(first):
        head = codec.write_request_head(first, message_bytes=size_bytes)
        so_far = BytesIO()
        so_far.write(memoryview(first)[0 if head is None else head.payload_at :])
        message = await gathered(stream, so_far, size_bytes - len(first))
        if head is not None:
            return codec.WriteRequest(head.cluster_id, message)
    else:
        message = first
    try:
        return codec.decode_write_request(message)
    except MalformedBinlog as error:
        return unreadable(error)
