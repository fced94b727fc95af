"""A way to MariaDB that dies at a chosen command: the process is gone, the server is not.

Commands are counted over all connections. At the chosen one every connection is cut, either before
the server sees it, or when the server has done it and the answer is on its way. From then on no
connection is made any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from binlogd.drainer.mysql.connection import MySqlServer
from binlogd.errors import DownstreamUnavailable

_HEAD_BYTES = 4
_QUIT = b"\x01"
"""COM_QUIT, which is answered by nothing: who loses the answer is dead behind it."""


class DyingProxy:
    """`commands` were seen so far; with `dies_at` 0 it lives until the end of `running`."""

    def __init__(
        self, target: MySqlServer, *, dies_at: int = 0, is_answer_lost: bool = False
    ) -> None:
        self.commands = 0
        self._target, self._dies_at, self._is_answer_lost = target, dies_at, is_answer_lost
        self.died = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._port = 0

    @property
    def server(self) -> MySqlServer:
        """The target, by this way."""
        return replace(self._target, host="127.0.0.1", port=self._port)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[DyingProxy]:
        """Listens while the body runs."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._cut(*self._writers)
            listener.close()

    async def kills(self, work: Coroutine[Any, Any, object]) -> bool:
        """Does the work by this way, until it is done or the way dies: whether it died."""

        async def watch(worker: asyncio.Task[object]) -> None:
            await self.died.wait()
            worker.cancel()  # the process is gone: it tries nothing again

        try:
            async with asyncio.TaskGroup() as group:
                worker = group.create_task(work)
                watching = group.create_task(watch(worker))
                worker.add_done_callback(lambda _: watching.cancel())
        except* DownstreamUnavailable:
            assert self.died.is_set(), "the server went away, and not the way to it"
        return self.died.is_set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.died.is_set():
            writer.transport.abort()
            return
        back, on = await asyncio.open_connection(self._target.host, self._target.port)
        self._writers |= {writer, on}
        awaits_answer = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._commands(reader, on, awaits_answer))
                group.create_task(self._answers(back, writer, awaits_answer))
        except* (OSError, asyncio.IncompleteReadError):
            self._cut(writer, on)

    async def _commands(
        self, reader: asyncio.StreamReader, on: asyncio.StreamWriter, last: asyncio.Event
    ) -> None:
        while True:  # until a side is cut
            head = await reader.readexactly(_HEAD_BYTES)
            body = await reader.readexactly(int.from_bytes(head[:3], "little"))
            self.commands += head[3] == 0
            if head[3] == 0 and self.commands == self._dies_at:
                if not self._is_answer_lost:
                    self._die()
                    return
                last.set()
            on.write(head + body)
            await on.drain()
            if last.is_set() and body[:1] == _QUIT:
                self._die()
                return

    async def _answers(
        self, back: asyncio.StreamReader, writer: asyncio.StreamWriter, last: asyncio.Event
    ) -> None:
        while answer := await back.read(1 << 16):
            if last.is_set():
                self._die()
                return
            writer.write(answer)
            await writer.drain()
        raise ConnectionResetError

    def _die(self) -> None:
        self.died.set()
        self._cut(*self._writers)

    def _cut(self, *writers: asyncio.StreamWriter) -> None:
        for writer in writers:
            writer.transport.abort()
            self._writers.discard(writer)
