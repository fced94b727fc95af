"""Between binlogd and a real server: connections that fail at the moment a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


class Fate:
    """What happens to a statement."""

    PASS, LOSE_ANSWER, CUT_BEFORE, FREEZE = range(4)


class MySqlProxy:
    """`decide` is asked for each statement of each connection."""

    def __init__(self, port: int, decide: Callable[[bytes], int]) -> None:
        self._port, self._decide = port, decide
        self.port = 0
        self.frozen = asyncio.Event()
        self._clients: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MySqlProxy]:
        """Listens while the body runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    def switch(self, port: int) -> None:
        """Another server from now on: connections end, new ones go there."""
        self._port = port
        for client in self._clients:
            client.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            await self._between(reader, writer)
        finally:
            self._clients.discard(writer)

    async def _between(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        answering = asyncio.Event()
        answering.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._answers(there, writer, answering))
                await self._statements(reader, back, there, answering)
                raise ConnectionResetError
        except* (OSError, asyncio.IncompleteReadError):
            back.close()
            writer.close()

    async def _statements(
        self,
        reader: asyncio.StreamReader,
        back: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        answering: asyncio.Event,
    ) -> None:
        while True:  # until either side closes, or the statement's fate is to end it
            header = await reader.readexactly(4)
            body = await reader.readexactly(int.from_bytes(header[:3], "little"))
            is_statement = header[3] == 0 and body[:1] == b"\x03"
            fate = self._decide(body[1:]) if is_statement else Fate.PASS
            if fate == Fate.CUT_BEFORE:
                return
            if fate in (Fate.LOSE_ANSWER, Fate.FREEZE):
                answering.clear()
            back.write(header + body)
            await back.drain()
            if fate == Fate.LOSE_ANSWER:
                await asyncio.sleep(0.2)  # the server has done it by then, or waits for a lock
                return
            if fate == Fate.FREEZE:
                self.frozen.set()
                await reader.readexactly(1)
                return

    async def _answers(
        self, there: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: asyncio.Event
    ) -> None:
        while data := await there.read(1 << 16):
            if not answering.is_set():
                continue
            writer.write(data)
            await writer.drain()
        if not answering.is_set():  # frozen: the client must not notice
            await asyncio.Event().wait()
        raise ConnectionResetError
