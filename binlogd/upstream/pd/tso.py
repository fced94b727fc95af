"""Timestamps out of PD's stream: one request for all who wait, in the order in which they came.

Invariant. What is handed out is strictly increasing. A PD whose time has gone back (a backup was
put in its place, or a clock was set back while its own record of the time was lost) gives
timestamps that binlogs have carried already; they are refused, and said, until its time has passed
what it said before.
Source: PD client/client.go, processTSORequests; client/tso_dispatcher.go.
"""

from __future__ import annotations

import asyncio

import structlog
from grpclib.client import Stream, StreamStreamMethod

from binlogd.errors import UpstreamUnavailable
from binlogd.grpc.channel import woken_cleanly
from binlogd.grpc.methods import understood
from binlogd.status import TsoStatus
from binlogd.tso import LOGICAL_BITS, NO_TS, Tso, physical_ms
from binlogd.upstream.pd.client import PdClient
from binlogd.upstream.pd.leader import Way
from binlogd.wire.generated import pdpb

log = structlog.get_logger(__name__)

BATCH_MAX = 10_000
"""Timestamps of one request. Source: PD client's maxMergeTSORequests."""
OBSERVED_AHEAD_MS = 5_000
"""How far the binlogs may be ahead of PD: a TiDB that keeps its data itself takes its time from the
clock of its machine."""
_DC = "global"


class PdTso:
    """A time source of one PD; asked for nothing on the way of a binlog."""

    def __init__(self, client: PdClient) -> None:
        self._client, self._limits = client, client.limits
        self._turn = asyncio.Lock()
        self._waiting: list[asyncio.Future[Tso]] = []
        self._stream: Stream[bytes, bytes] | None = None
        self._way: Way | None = None
        self._last, self._observed = NO_TS, NO_TS
        self._answered_at_s = 0.0
        self._asked = self._slow = self._errors = self._went_back = 0
        self._trouble = ""

    async def next(self) -> Tso:
        """Unique, and above all before it. Raises UpstreamUnavailable."""
        waiter: asyncio.Future[Tso] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with self._turn:  # who comes first asks for all who came meanwhile
                if not waiter.done():
                    await self._ask_for_all()
        finally:
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()  # it was told, if only to somebody who is gone
        return waiter.result()

    def observe(self, ts: Tso) -> None:
        """Takes note of a start_ts or commit_ts: PD has told it, and goes on above it."""
        self._observed = max(self._observed, ts)

    async def run(self) -> None:
        """Looks at the time now and then, so that a step of it is known; until cancelled."""
        while True:  # until cancelled
            try:
                await self.next()
            except UpstreamUnavailable as error:
                log.debug("tso_unavailable", cause=str(error))  # told by whoever needs one
            await asyncio.sleep(self._limits.tso_every_s)

    async def close(self) -> None:
        """Ends the stream."""
        await self._hang_up()

    def statistics(self) -> TsoStatus:
        """How it stands."""
        return TsoStatus(
            last_ts=self._last,
            age_s=asyncio.get_running_loop().time() - self._answered_at_s if self._last else None,
            requests=self._asked,
            slow=self._slow,
            errors=self._errors,
            went_back=self._went_back,
            trouble=self._trouble,
        )

    async def _ask_for_all(self) -> None:
        waiters = [each for each in self._waiting if not each.done()][:BATCH_MAX]
        floor = max(self._last, Tso(self._observed - (OBSERVED_AHEAD_MS << LOGICAL_BITS)))
        try:
            first, step = await self._answer(len(waiters), floor)
        except UpstreamUnavailable as error:
            self._errors += 1
            self._trouble = str(error)
            self._waiting = [each for each in self._waiting if each not in waiters]
            for each in waiters:
                if not each.done():
                    each.set_exception(UpstreamUnavailable(str(error)))
            return
        self._trouble = ""
        self._answered_at_s = asyncio.get_running_loop().time()
        self._last = Tso(first + (len(waiters) - 1) * step)
        for number, each in enumerate(waiters):
            if not each.done():
                each.set_result(Tso(first + number * step))
        self._waiting = [each for each in self._waiting if not each.done()]

    async def _answer(self, count: int, floor: Tso) -> tuple[Tso, int]:
        async def ask(way: Way) -> pdpb.TsoResponse:
            """One exchange on the stream, within `tso_call_s`; one that fails ends the stream."""
            try:
                async with asyncio.timeout(self._limits.tso_call_s):
                    with woken_cleanly():
                        return await self._exchange(way, count)
            except BaseException as error:
                # also when cancelled: the answer would be taken for the next one
                await self._hang_up(error)
                raise

        response = await self._client.asked("Tso", ask, self._limits.tso_s)
        self._asked += 1
        return self._checked(response, count, floor)

    async def _exchange(self, way: Way, count: int) -> pdpb.TsoResponse:
        if self._way is not way or self._stream is None:
            await self._hang_up()
            method = StreamStreamMethod[bytes, bytes](way.channel, "/pdpb.PD/Tso", bytes, bytes)
            self._stream = await method.open(metadata=way.metadata).__aenter__()
            self._way = way
        request = pdpb.TsoRequest(header=self._client.header(), count=count, dc_location=_DC)
        clock = asyncio.get_running_loop().time
        began = clock()
        await self._stream.send_message(bytes(request))
        raw = await self._stream.recv_message()
        self._note_time(clock() - began)
        if raw is None:
            await self._stream.recv_trailing_metadata()  # raises the status, unless it is OK
            raise ConnectionError("it has ended the stream of timestamps")
        response = understood(pdpb.TsoResponse(), raw)
        self._client.check("Tso", response.header)
        if response.count != count:
            raise ConnectionError(f"it gave {response.count} timestamps for {count}")
        return response

    def _note_time(self, took_s: float) -> None:
        if took_s > self._limits.slow_tso_s:
            self._slow += 1
            log.warning("tso_slow", took_ms=round(took_s * 1000, 1))

    def _checked(self, response: pdpb.TsoResponse, count: int, floor: Tso) -> tuple[Tso, int]:
        """The first of `count` timestamps, and what lies between two of them."""
        last = response.timestamp
        step = 1 << last.suffix_bits
        first = Tso((last.physical << LOGICAL_BITS) + last.logical - (count - 1) * step)
        if first > floor:
            return first, step
        self._went_back += 1
        behind_s = (physical_ms(floor) - physical_ms(first)) / 1000
        log.error("tso_went_back", told=first, before=floor, behind_s=behind_s)
        raise UpstreamUnavailable(
            f"PD's time went back: it tells {first}, {behind_s:g} s before {floor}, which it (or a"
            " binlog) has told already; nothing is taken from it until its time has passed that."
            " Was it made anew, or its clock set back?"
        )

    async def _hang_up(self, cause: BaseException | None = None) -> None:
        """Ends the stream. Raises GRPCError where PD has reset it, with what PD said before: a
        member that does not lead does so, and the stream knows no more than that it was reset."""
        stream, self._stream, self._way = self._stream, None, None
        if stream is not None:  # leaving it in good order would wait for PD to say goodbye
            ended = cause or asyncio.CancelledError()
            await stream.__aexit__(type(ended), ended, None)
