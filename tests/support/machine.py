"""`binlogd serve` as a child process: started, killed without warning, started again, stopped."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp

from binlogd.errors import ConfigError, Unavailable
from binlogd.host.privacy import environment_of_children

_READY_S = 60.0
_STOP_S = 15.0
_POLL_S = 0.1
_LOG_TAIL_CHARS = 3000
_PORTS = range(9_000, 16_000)
"""They lie below those that a system gives to outgoing connections: one of them would have a port
while the process that listens there is being started again."""
_NUMBERS = count(os.getpid() * 37)


def free_port(ports: range = _PORTS) -> int:
    """A port of the loopback address that nobody listens on now, another one each time. Raises
    Unavailable where there is none among `ports`."""
    for _ in ports:
        port = ports[next(_NUMBERS) % len(ports)]
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Unavailable(f"all ports from {ports.start} to {ports.stop - 1} are taken")


class Appliance:
    """One process on a directory of its own, always on the same port."""

    def __init__(
        self, directory: Path, *, history: Path, syncer: str = "", is_apart: bool = False
    ) -> None:
        """`is_apart`: Ctrl-C is for whoever starts it, and for that one alone."""
        directory.mkdir(parents=True)
        self._is_apart = is_apart
        self.host, self.port, self.module = "127.0.0.1", free_port(), "binlogd"
        self.data_dir = directory / "data"
        self.config = directory / "binlogd.toml"
        self._log = directory / "log"
        self.config.write_text(
            f"data-dir = {json.dumps(str(self.data_dir))}\n"
            f'addr = "{self.host}:{self.port}"\n\n'
            f"[upstream]\nschema-history = {json.dumps(str(history))}\n\n"
            f"[pump]\ntimestamp-ahead-max = 1000000000\n"
            f'stop-write-at-available-space = "64 MiB"\n\n{syncer}'
        )
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Starts it and waits until it answers. Raises Unavailable with the end of its log."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                "serve",
                "--config",
                str(self.config),
                stdout=log,
                stderr=log,
                env=environment_of_children(os.environ),
                start_new_session=self._is_apart,
            )
        await self.wait(lambda _: True, timeout_s=_READY_S)

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        return self._running().pid

    async def ended(self) -> int:
        """Waits until the process has ended, whoever ended it; the exit code."""
        return await self._running().wait()

    async def kill(self) -> None:
        """SIGKILL: no chance to finish anything; gone on return."""
        self._running().kill()
        await self.ended()

    async def stop(self) -> int:
        """SIGTERM; the exit code. Raises Unavailable when it does not end in time."""
        self._running().send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(_STOP_S):
                return await self.ended()
        except TimeoutError as error:
            raise Unavailable(f"binlogd did not end within {_STOP_S} s: {self._tail()}") from error

    async def close(self) -> None:
        """Whatever it does, it is gone afterwards."""
        if self._process is not None and self._process.returncode is None:
            await self.kill()

    async def wait(self, condition: Any, *, timeout_s: float) -> dict[str, Any]:
        """The first `/status` for which the condition holds.

        Raises Unavailable when the process ends, reports a Drainer that is stuck, or the time is
        over.
        """
        last: Any = "no answer"
        try:
            async with asyncio.timeout(timeout_s), aiohttp.ClientSession() as session:
                while True:  # ends by the condition, the process or the timeout
                    last = await self._status(session, last)
                    if isinstance(last, dict) and condition(last):
                        return last
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as error:
            raise Unavailable(f"not within {timeout_s} s: {last}; {self._tail()}") from error

    async def _status(self, session: aiohttp.ClientSession, last: Any) -> Any:
        if self._running().returncode is not None:
            raise Unavailable(f"binlogd ended by itself: {self._tail()}")
        try:
            async with session.get(f"http://{self.host}:{self.port}/status") as answer:
                status = await answer.json()
        except aiohttp.ClientError:
            return last
        drainer = status.get("drainer") or {}
        if drainer.get("state") == "stuck":
            raise Unavailable(f"the Drainer is stuck: {drainer.get('error')}")
        return status

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-_LOG_TAIL_CHARS:]

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise ConfigError("binlogd was not started")
        return self._process
