"""Writing to a Pump and pulling from one, over gRPC.

`PumpClient` keeps the original client's promises: a deadline for each call, a Prewrite repeated
every 100 ms until its time is over, a Commit or Rollback repeated every second for ten minutes,
always to the same Pump. It differs in one thing: where the original gives up a Commit silently,
this one says so.

Source: tidb pkg/tidb-binlog/pump_client/client.go; tidb-binlog drainer/pump.go.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec
import structlog
from grpclib.client import Channel
from grpclib.const import Cardinality, Status
from grpclib.exceptions import GRPCError

from binlogd.binlog import BinlogType, Pulled, late_commits_in
from binlogd.errors import Corrupt, MalformedBinlog, MissedCommit, PumpUnavailable, Refused
from binlogd.grpc.channel import NO_ANSWER, LastingChannel, PlainChannel, unary, woken_cleanly
from binlogd.grpc.inbox import Inbox
from binlogd.host.tls import ClientTls
from binlogd.tso import Tso
from binlogd.wire import codec, peek

log = structlog.get_logger(__name__)

_WRITE, _PULL = "/binlog.Pump/WriteBinlog", "/binlog.Pump/PullBinlogs"
_FINAL_TEXTS = ("cluster ID are mismatch", "unexpected EOF", "proto: ")


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """The original's constants."""

    deadline_s: float = 15.0  # of one call
    prewrite_retry_s: float = 15.0
    prewrite_retry_interval_s: float = 0.1
    outcome_retry_s: float = 600.0  # of a Commit or a Rollback
    outcome_retry_interval_s: float = 1.0
    message_bytes_max: int = (1 << 31) - 1


class ClientStatistics(msgspec.Struct, frozen=True):
    """Counters since the client was made."""

    written: int
    retried: int
    given_up: int
    reconnected: int


class PumpClient:
    """One connection to one Pump, made anew when it breaks; any number of writes at once."""

    def __init__(
        self,
        host: str | Path,
        port: int = 0,
        *,
        cluster_id: int,
        limits: ClientLimits | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        """A path instead of a host is that of a unix socket; it has no port."""
        self._host, self._port = host, port
        self._cluster_id = cluster_id
        self._tls = tls
        self._limits = limits or ClientLimits()
        self._channel = self._dial()
        self._users: Counter[Channel] = Counter()
        self._written = self._retried = self._given_up = self._reconnected = 0

    async def __aenter__(self) -> Self:
        """Connects with the first write, not here."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes."""
        self.close()

    def close(self) -> None:
        """Ends the connection and what is in flight on it."""
        self._channel.close()

    async def write(self, payload: bytes) -> None:
        """Returns when the Pump has said that the binlog is durable.

        Raises Refused when it was not taken and never will be, PumpUnavailable when its time is
        over without an answer.
        """
        limits, clock = self._limits, asyncio.get_running_loop().time
        retry_s, interval_s = limits.outcome_retry_s, limits.outcome_retry_interval_s
        if peek.peek(payload).tp == BinlogType.PREWRITE:
            retry_s, interval_s = limits.prewrite_retry_s, limits.prewrite_retry_interval_s
        until_s = clock() + retry_s
        while True:  # until it is durable, refused, or its time is over
            try:
                await self.attempt(payload)
            except PumpUnavailable as error:
                if clock() + interval_s >= until_s:
                    self._given_up += 1
                    raise
                self._retried += 1
                log.info("write_retried", wait_s=interval_s, cause=str(error))
                await asyncio.sleep(interval_s)
            else:
                return

    async def attempt(self, payload: bytes) -> None:
        """Sends a binlog once. Raises as `write`, but an answer that it is not taken now, or none
        at all, is the end here."""
        await self._call(codec.encode_write_request(self._cluster_id, payload))
        self._written += 1

    async def probe(self) -> None:
        """Asks once whether prewrites are taken. Raises PumpUnavailable, Refused."""
        await self._call(codec.encode_write_request(self._cluster_id, b""))

    def statistics(self) -> ClientStatistics:
        """Counters; cheap."""
        return ClientStatistics(self._written, self._retried, self._given_up, self._reconnected)

    async def _call(self, message: bytes) -> None:
        channel = self._channel
        self._users[channel] += 1
        try:
            await self._answered(channel, message)
        finally:
            self._users[channel] -= 1
            if not self._users[channel]:
                del self._users[channel]
                if channel is not self._channel:  # a call that came late may have opened it anew
                    channel.close()

    async def _answered(self, channel: Channel, message: bytes) -> None:
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                errmsg = codec.decode_write_answer(await unary(channel, _WRITE, message))
        except GRPCError as error:
            raise self._meaning(error) from error
        except NO_ANSWER as error:
            self._redial(channel)
            raise PumpUnavailable(self._said(str(error) or type(error).__name__)) from error
        if errmsg:
            raise PumpUnavailable(self._said(errmsg))

    def _meaning(self, error: GRPCError) -> Refused | PumpUnavailable:
        text = error.message or ""
        if error.status is Status.RESOURCE_EXHAUSTED or text.startswith(_FINAL_TEXTS):
            return Refused(self._said(text))
        return PumpUnavailable(self._said(f"{error.status.name}: {text}"))

    def _redial(self, broken: Channel) -> None:
        if self._channel is broken:  # nobody has done so since
            self._channel = self._dial()
            self._reconnected += 1
            broken.close()

    def _dial(self) -> LastingChannel:
        return LastingChannel(self._host, self._port, self._tls)

    def _said(self, what: str) -> str:
        where = self._host if isinstance(self._host, Path) else f"{self._host}:{self._port}"
        return f"pump {where}: {what}"


class RemoteSource:
    """A BinlogSource: what another Pump serves at PullBinlogs."""

    def __init__(  # noqa: PLR0913 - where it is, and who listens
        self,
        name: str,
        host: str,
        port: int,
        *,
        cluster_id: int,
        limits: ClientLimits | None = None,
        tls: ClientTls | None = None,
        observe: Callable[[str, Pulled], None] | None = None,
    ) -> None:
        """`observe` is told the name and each batch before anybody has it, and may refuse it."""
        self._tls, self._observe = tls, observe
        self.name = name
        """For logs and status."""
        self._host, self._port = host, port
        self._cluster_id = cluster_id
        self._limits = limits or ClientLimits()

    async def pull(self, after: Tso) -> AsyncGenerator[Pulled, None]:
        """Binlogs with commit_ts > after, as they arrive; first an empty batch, as soon as the
        Pump has answered, which may have nothing to tell for a long time.

        Raises PumpUnavailable when the stream ends, Corrupt when it makes no sense, MissedCommit
        when a commit came that lies behind what was pulled, and what `observe` raises.
        """
        channel = PlainChannel(self._host, self._port, self._tls)
        try:
            async with aclosing(self._messages(channel, after)) as batches:
                async for messages in batches:
                    binlogs = [codec.decode_pull_answer(message) for message in messages]
                    pulled = Pulled(binlogs or (), binlogs[-1].commit_ts if binlogs else after)
                    if self._observe is not None:
                        self._observe(self.name, pulled)
                    yield pulled
        except MalformedBinlog as error:
            raise Corrupt(self._said(str(error))) from error
        except GRPCError as error:
            said = self._said(f"{error.status.name}: {error.message}")
            if error.status is Status.DATA_LOSS:
                raise MissedCommit(said, late_commits_in(said, self.name)) from error
            raise PumpUnavailable(said) from error
        except NO_ANSWER as error:
            raise PumpUnavailable(self._said(str(error) or type(error).__name__)) from error
        finally:
            channel.close()
        raise PumpUnavailable(self._said("ended the stream"))

    async def _messages(self, channel: Channel, after: Tso) -> AsyncGenerator[list[bytes], None]:
        """None at first, when the Pump has answered; then as many as have come."""
        async with asyncio.timeout(self._limits.deadline_s):
            await channel.__connect__()
        async with channel.request(_PULL, Cardinality.UNARY_STREAM, bytes, bytes) as stream:
            with woken_cleanly():
                await stream.send_request()
                inbox = Inbox(stream, self._limits.message_bytes_max)
                request = codec.encode_pull_request(self._cluster_id, after)
                await stream.send_message(request, end=True)
                await stream.recv_initial_metadata()
            yield []
            while True:  # until the end of the stream
                with woken_cleanly():
                    messages = await inbox.messages()
                if not messages:
                    return
                yield messages

    def _said(self, what: str) -> str:
        return f"pump {self._host}:{self._port}: {what}"
