"""`/events`: as many listeners as may, and none that holds up the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from binlogd.serving.routes.events import LISTENERS_MAX, Hub, event
from binlogd.serving.server import Server
from tests.support.pump_world import eventually

LARGE = event("now", b"x" * (1 << 20))


@asynccontextmanager
async def listened(hub: Hub) -> AsyncIterator[str]:
    """The URL of a real server with nothing else."""
    routes = web.Application()
    routes.router.add_get("/events", hub.events)
    server = Server([], routes)
    host, port = await server.start("127.0.0.1", 0)
    try:
        yield f"http://{host}:{port}/events"
    finally:
        hub.close()
        await server.close()


async def until(hub: Hub, listeners: int) -> None:
    await eventually(lambda: hub.listeners == listeners)


async def test_a_listener_hears_the_past_first_and_then_what_is_told() -> None:
    hub = Hub(lambda: event("past", b"[1]"))
    async with listened(hub) as url, aiohttp.ClientSession() as session, session.get(url) as heard:
        assert heard.content_type == "text/event-stream"
        assert heard.headers["Cache-Control"] == "no-store"
        await until(hub, 1)
        hub.publish(event("now", b'{"a":1}'))
        said = b""
        while b'"a"' not in said:
            said += await heard.content.readany()
    assert said == b'retry: 2000\n\nevent: past\ndata: [1]\n\nevent: now\ndata: {"a":1}\n\n'


@asynccontextmanager
async def listening(
    url: str, address: str, count: int
) -> AsyncIterator[list[aiohttp.StreamReader]]:
    """What so many listeners hear who came from an address of this machine, the oldest first."""
    connector = aiohttp.TCPConnector(limit=0, local_addr=(address, 0))
    async with aiohttp.ClientSession(connector=connector) as session, AsyncExitStack() as stack:
        yield [(await stack.enter_async_context(session.get(url))).content for _ in range(count)]


async def hears(heard: aiohttp.StreamReader, what: bytes) -> None:
    said = b""
    while what not in said:
        said += await heard.readany()
        assert said


async def test_a_listener_that_cannot_be_told_the_past_is_answered_so_and_takes_no_place() -> None:
    def opening() -> bytes:
        raise ValueError("nobody thought of this")

    hub = Hub(opening)
    async with listened(hub) as url, aiohttp.ClientSession() as session, session.get(url) as heard:
        assert heard.status == 500
    assert hub.listeners == 0


async def test_one_more_than_may_listen_takes_the_place_of_the_oldest_of_who_has_most() -> None:
    hub = Hub(lambda: event("past", b"[]"))
    async with (
        asyncio.timeout(120),
        listened(hub) as url,
        listening(url, "127.0.0.2", 1) as (page,),
        listening(url, "127.0.0.3", LISTENERS_MAX - 1) as noise,
        listening(url, "127.0.0.4", 1) as (late,),
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await hears(noise[0], b"now")
        hub.publish(event("now", b"{}"))
        for each in (page, late, *noise[1:]):
            await hears(each, b"now")
        assert hub.listeners == LISTENERS_MAX


async def test_where_all_are_of_one_address_the_oldest_makes_room() -> None:
    hub = Hub(lambda: event("past", b"[]"))
    async with listened(hub) as url, listening(url, "127.0.0.2", LISTENERS_MAX + 1) as heard:
        assert hub.listeners == LISTENERS_MAX
        with pytest.raises(aiohttp.ClientPayloadError):
            await hears(heard[0], b"now")
        hub.publish(event("now", b"{}"))
        for each in heard[1:]:
            await hears(each, b"now")


async def test_who_does_not_read_is_let_go_of_and_the_others_hear_everything() -> None:
    hub = Hub(lambda: event("past", b"[]"))
    async with (
        listened(hub) as url,
        aiohttp.ClientSession() as session,
        session.get(url) as good,
        session.get(url),
    ):
        await until(hub, 2)
        heard = told = 0
        async with asyncio.timeout(120):
            while hub.listeners == 2:
                hub.publish(LARGE)
                told += 1
                while heard < told * len(LARGE):
                    heard += len(await good.content.readany())
        hub.publish(event("now", b"goodbye"))
        rest = b""
        while b"goodbye" not in rest:
            rest = rest[-100:] + await good.content.readany()
        assert hub.listeners == 1


async def test_who_leaves_makes_room() -> None:
    hub = Hub(lambda: event("past", b"[]"))
    async with listened(hub) as url, aiohttp.ClientSession() as session:
        async with session.get(url):
            await until(hub, 1)
        async with asyncio.timeout(120):
            while hub.listeners:
                hub.publish(event("now", b"anybody?"))
                await asyncio.sleep(0.01)


async def test_the_end_of_the_process_ends_the_listening() -> None:
    hub = Hub(lambda: event("past", b"[]"))
    async with listened(hub) as url, aiohttp.ClientSession() as session, session.get(url) as heard:
        await until(hub, 1)
        hub.close()
        assert (await heard.content.read()).endswith(b"data: []\n\n")
        async with session.get(url) as late:
            assert late.status == 503
