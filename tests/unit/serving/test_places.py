"""Who has a place for a connection, and who is let go of for another."""

from __future__ import annotations

import asyncio

import pytest

from binlogd.host.peers import BY_SOCKET
from binlogd.serving.connections import Places, PortConnection

HERE, THERE = "192.0.2.1", "192.0.2.2"


class Transport(asyncio.Transport):
    """Notes how it was ended."""

    ended = ""

    def close(self) -> None:
        self.ended += "closed "

    def abort(self) -> None:
        self.ended += "aborted "


class Connection(PortConnection):
    """One that only says how it stands, and what became of it."""

    transport: Transport

    def __init__(self, client: str, used_s: float = 0.0, *, idle: bool = True) -> None:
        super().__init__(lambda *_: True, lambda _: None, lambda *_: self, 1.0)
        self.client, self.used_s, self.idle = client, used_s, idle
        self.wrote = self.gone = self.left = False
        self.transport = Transport()

    @property
    def is_idle(self) -> bool:
        return self.idle

    @property
    def has_written(self) -> bool:
        return self.wrote

    def let_go(self) -> None:
        self.gone = True

    def leave(self) -> None:
        self.left = True


def taken(places: Places, *connections: Connection) -> list[str]:
    return [places.take(each) for each in connections]


async def test_the_one_that_is_idle_for_the_longest_time_makes_room_strangers_first() -> None:
    places = Places(3, 3)
    writer, old, newer = Connection(HERE, 1.0), Connection(HERE, 2.0), Connection(HERE, 3.0)
    writer.wrote = True
    assert taken(places, writer, old, newer, Connection(THERE, 4.0)) == [""] * 4
    assert (writer.gone, old.gone, newer.gone, len(places)) == (False, True, False, 3)
    places.give_back(old)  # its socket ends after it has lost its place
    assert len(places) == 3


async def test_without_one_that_is_idle_there_is_no_place() -> None:
    places = Places(2, 2)
    busy = [Connection(HERE, idle=False), Connection(THERE, idle=False)]
    assert taken(places, *busy) == ["", ""]
    assert taken(places, Connection(THERE)) == [
        "2 connections are open, and none is idle: security.connections-max"
    ]
    assert len(places) == 2


async def test_an_address_with_all_its_places_takes_none_of_others() -> None:
    places = Places(10, 2)
    other, busy = Connection(THERE), Connection(HERE, idle=False)
    idle = Connection(HERE, 9.0)
    assert taken(places, other, busy, idle, Connection(HERE, idle=False)) == [""] * 4
    assert (other.gone, idle.gone) == (False, True)
    assert taken(places, Connection(HERE)) == [
        "it has 2 connections open, and none is idle: security.connections-per-client-max"
    ]


@pytest.mark.parametrize(("first", "second"), [(HERE, BY_SOCKET), (BY_SOCKET, HERE)])
async def test_the_port_and_the_unix_socket_take_nothing_from_each_other(
    first: str, second: str
) -> None:
    places = Places(2, 2)
    before = [Connection(first), Connection(first)]
    assert taken(places, *before, Connection(second), Connection(second)) == [""] * 4
    assert not any(each.gone for each in before)
    assert taken(places, Connection(second)) == [""]
    assert (len(places), any(each.gone for each in before)) == (4, False)


async def test_who_does_not_leave_in_time_is_closed_and_then_cut_off() -> None:
    places, polite, stays = Places(2, 2), Connection(HERE), Connection(HERE)
    taken(places, polite, stays)
    asyncio.get_running_loop().call_soon(places.give_back, polite)
    await places.vacate(0.01, 0.01)
    assert polite.left
    assert stays.left
    assert (polite.transport.ended, stays.transport.ended) == ("", "closed aborted ")
