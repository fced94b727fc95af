"""Pumps as running nodes tell of them: several answers made one, the silent ones passed over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from binlogd.client.directory import AskedPumps, PumpNode
from binlogd.errors import PumpUnavailable
from binlogd.serving.server import Server


def entry(node_id: str, host: str, state: str, update_ts: int, score: int = 0) -> dict[str, Any]:
    return {
        "nodeId": node_id,
        "host": host,
        "state": state,
        "isAlive": False,
        "score": score,
        "label": None,
        "maxCommitTS": 1,
        "updateTS": update_ts,
    }


@asynccontextmanager
async def node(document: Any) -> AsyncIterator[tuple[str, int]]:
    """A node whose `/status` says this; text is sent as it is, as text/plain like a Go Pump's."""

    async def status(_: web.Request) -> web.Response:
        return web.json_response(document, content_type="text/plain")

    application = web.Application()
    application.router.add_get("/status", status)
    server = Server([], application)
    address = await server.start("127.0.0.1", 0)
    yield address
    await server.close()


def said(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"status": {each["nodeId"]: each for each in entries}, "CommitTS": 9, "ErrMsg": ""}


async def test_the_freshest_entry_of_each_pump_counts() -> None:
    one = said(entry("a", "10.0.0.1:8250", "online", 5, 70), entry("b", "[::1]:1", "online", 2))
    other = said(entry("b", "[::1]:1", "closing", 7), entry("c", "host:2", "paused", 1))
    async with node(one) as first, node(other) as second:
        assert await AskedPumps(first, second).pumps() == [
            PumpNode("a", ("10.0.0.1", 8250), "online", 70),
            PumpNode("b", ("::1", 1), "closing", 0),
            PumpNode("c", ("host", 2), "paused", 0),
        ]


async def test_a_node_that_does_not_answer_is_passed_over() -> None:
    async with node(said(entry("a", "10.0.0.1:8250", "online", 5))) as alive:
        (found,) = await AskedPumps(("127.0.0.1", 1), alive).pumps()
        assert found.node_id == "a"


async def test_an_address_of_ipv6_is_one_in_a_url() -> None:
    """Also on a machine that has none itself."""
    with pytest.raises(PumpUnavailable, match=r"\[::1\]:1: Cannot connect"):
        await AskedPumps(("::1", 1)).pumps()


async def test_when_nobody_knows_each_reason_is_told() -> None:
    async with node({"status": None, "CommitTS": 0, "ErrMsg": "etcd is away"}) as lost:
        with pytest.raises(PumpUnavailable, match=r"no pump found: 127.*: etcd is away, 127"):
            await AskedPumps(lost, ("127.0.0.1", 1)).pumps()
    async with node(said()) as empty:
        with pytest.raises(PumpUnavailable, match="nobody was named"):
            await AskedPumps(empty).pumps()


@pytest.mark.parametrize("document", ["no status", {"else": 1}, {"status": {"a": {}}}, [1]])
async def test_what_is_no_status_of_a_pump_is_no_answer(document: Any) -> None:
    async with node(document) as strange:
        with pytest.raises(PumpUnavailable, match="no pump found"):
            await AskedPumps(strange).pumps()


async def test_an_answer_without_end_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlogd.client.directory._ANSWER_BYTES_MAX", 300)
    plain_said = said(entry("a", "10.0.0.1:8250", "online", 5))
    async with node("x" * 400) as endless, node(plain_said) as plain:
        with pytest.raises(PumpUnavailable, match="the answer is larger than 300 bytes"):
            await AskedPumps(endless).pumps()
        assert [each.node_id for each in await AskedPumps(endless, plain).pumps()] == ["a"]
