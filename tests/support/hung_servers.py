"""Servers that hang, and what their clients leave open."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@contextmanager
def hung_after(talk: Callable[[socket.socket], socket.socket]) -> Iterator[tuple[str, int]]:
    """A server that reads and answers nothing more when the talk is over."""
    is_over = threading.Event()

    def serve() -> None:
        accepted, _ = listening.accept()
        with talk(accepted):
            is_over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            is_over.set()
            thread.join()


def left_open_by(
    coroutine: Coroutine[Any, Any, None], loop: Callable[[], asyncio.AbstractEventLoop]
) -> list[str]:
    """What nobody has closed when its loop is over."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ResourceWarning)
        gc.collect()
        before = len(told)
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(coroutine)
        gc.collect()
        return [str(each.message) for each in told[before:]]
