"""Calls of the fast lane: gathered in a turn of the loop, and served in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from binlogd.grpc.calls import Call
from binlogd.grpc.lane import CallSink, FastLane

PATH = b"/binlog.Pump/WriteBinlog"


class Connection:
    """Counts the answers of its calls."""

    def __init__(self) -> None:
        self.answered = 0

    def acknowledge(self, calls: list[Call]) -> None:
        self.answered += len(calls)


async def test_what_comes_in_one_turn_is_one_batch_and_begins_in_the_next() -> None:
    batches: list[list[bytes]] = []

    async def write(messages: Sequence[bytes]) -> Sequence[None]:
        batches.append(list(messages))
        return [None] * len(messages)

    sink = CallSink(write, lambda: 1 << 20, lambda *_: None, lambda *_: None, 1 << 20, 1.0)
    lane, connections = FastLane({PATH: sink}, 1 << 20), [Connection(), Connection()]
    inlet = lane.methods[PATH].inlet
    for stream, connection in enumerate(connections):
        inlet.add(Call(connection, stream, inlet, []), b"%d" % stream)
        lane.arrived()
    assert batches == []
    await asyncio.sleep(0)
    assert batches == [[b"0", b"1"]]
    assert [each.answered for each in connections] == [1, 1]
