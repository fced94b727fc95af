"""A way between two parts of a system that is cut, or goes silent, when a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

_CHUNK_BYTES = 1 << 16


class Way:
    """Listens on a port of its own and passes on what comes to `target_port`, both ways."""

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self._is_cut = False
        self._ends: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Way]:
        """Listens while the body runs."""
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = listener.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            self._open.set()
            self._abort()
            listener.close()

    async def cut_for(self, seconds: float) -> None:
        """Every connection is reset, and none is made for so long."""
        self._is_cut = True
        self._abort()
        await asyncio.sleep(seconds)
        self._is_cut = False

    async def silent_for(self, seconds: float) -> None:
        """Connections stay, and nothing goes through them for so long; then they are reset, and
        what was under way is lost."""
        self._open.clear()
        await asyncio.sleep(seconds)
        self._abort()
        self._open.set()

    def _abort(self) -> None:
        for end in list(self._ends):
            end.transport.abort()
        self._ends.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            back, on = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:  # whoever listens there is down
            writer.transport.abort()
            return
        self._ends |= {writer, on}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pass(reader, on))
                group.create_task(self._pass(back, writer))
        except* OSError:
            with suppress(OSError):
                writer.transport.abort()
                on.transport.abort()
        finally:
            self._ends -= {writer, on}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            await self._open.wait()
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError  # the other way ends with this one
