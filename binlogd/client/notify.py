"""Telling a Drainer that a Pump is there: `binlog.Cistern/Notify`.

Source: tidb-binlog pump/node.go, notifyDrainer.
"""

from __future__ import annotations

import asyncio

import structlog
from grpclib.exceptions import GRPCError

from binlogd.errors import DrainerUnavailable
from binlogd.grpc.channel import NO_ANSWER, PlainChannel, unary
from binlogd.host.tls import ClientTls

log = structlog.get_logger(__name__)

_NOTIFY = "/binlog.Cistern/Notify"
_ATTEMPT_S = 3.0
_WAITS_S = (1.0, 2.0)
"""After the first and the second attempt; there is no fourth."""


async def notify(node_id: str, host: str, port: int, *, tls: ClientTls | None = None) -> None:
    """Returns when the Drainer has looked at the registry anew; up to three attempts.

    Raises DrainerUnavailable when it gives no answer, or another one.
    """
    for wait_s in (*_WAITS_S, None):
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                async with PlainChannel(host, port, tls) as channel:
                    await unary(channel, _NOTIFY, b"")
        except (GRPCError, *NO_ANSWER) as error:
            cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            if wait_s is None:
                where = f"{node_id}, {host}:{port}"
                raise DrainerUnavailable(f"notify drainer({where}): {cause}") from error
            log.info("notify_retried", drainer=node_id, wait_s=wait_s, cause=cause)
            await asyncio.sleep(wait_s)
        else:
            return
