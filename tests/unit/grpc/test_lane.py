"""Calls of the fast lane: gathered in a turn of the loop, and served in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from grpclib.exceptions import GRPCError

from binlogd.grpc.calls import Call
from binlogd.grpc.lane import Answered, CallSink, FastLane, Outcomes

PATH = b"/binlog.Pump/WriteBinlog"


class Connection:
    """Counts the answers of its calls."""

    def __init__(self) -> None:
        self.answered = 0
        self.refused: list[str | None] = []

    def acknowledge(self, calls: list[Call]) -> None:
        self.answered += len(calls)

    def refuse(self, call: Call, error: GRPCError) -> None:
        self.refused.append(error.message)


def lane_of(
    write_now: Callable[[Sequence[bytes], Answered], bool],
    write: Callable[[Sequence[bytes]], Awaitable[Outcomes]],
) -> FastLane:
    sink = CallSink(
        write_now=write_now,
        write=write,
        room=lambda: 1 << 20,
        take=lambda *_: None,
        give=lambda *_: None,
        message_bytes_max=1 << 20,
        patience_s=1.0,
    )
    return FastLane({PATH: sink}, 1 << 20)


def arrives(lane: FastLane, connection: Connection, stream: int) -> None:
    inlet = lane.inlets[PATH]
    inlet.add(Call(connection, stream, inlet, []), b"%d" % stream)
    lane.arrived()


async def nobody(messages: Sequence[bytes]) -> Outcomes:
    raise AssertionError("it was taken already")


async def test_what_comes_in_one_turn_is_one_batch_and_begins_in_the_next() -> None:
    batches: list[list[bytes]] = []

    def write_now(messages: Sequence[bytes], answered: Answered) -> bool:
        batches.append(list(messages))
        answered([None] * len(messages))
        return True

    lane, connections = lane_of(write_now, nobody), [Connection(), Connection()]
    for stream, connection in enumerate(connections):
        arrives(lane, connection, stream)
    assert batches == []
    await asyncio.sleep(0)
    assert batches == [[b"0", b"1"]]
    assert [each.answered for each in connections] == [1, 1]


async def test_what_comes_while_a_batch_is_under_way_is_the_next_one() -> None:
    batches: list[tuple[list[bytes], Answered]] = []

    def write_now(messages: Sequence[bytes], answered: Answered) -> bool:
        batches.append((list(messages), answered))
        return True

    lane, connection = lane_of(write_now, nobody), Connection()
    for stream in range(3):
        arrives(lane, connection, stream)
        await asyncio.sleep(0)
    assert [messages for messages, _ in batches] == [[b"0"]]
    batches[0][1]([None])
    assert connection.answered == 1
    arrives(lane, connection, 3)
    await asyncio.sleep(0)
    assert [messages for messages, _ in batches] == [[b"0"], [b"1", b"2", b"3"]]


async def test_what_has_to_wait_goes_the_other_way_and_is_answered_as_well() -> None:
    batches: list[list[bytes]] = []

    async def write(messages: Sequence[bytes]) -> Outcomes:
        batches.append(list(messages))
        return [None] * len(messages)

    lane, connection = lane_of(lambda *_: False, write), Connection()
    for stream in range(2):
        arrives(lane, connection, stream)
        for _ in range(3):  # one for the batch, one for the task, one for its answer
            await asyncio.sleep(0)
    assert batches == [[b"0"], [b"1"]]


async def test_a_sink_that_breaks_is_an_error_of_its_calls_and_of_no_others() -> None:
    broken = [True, False]

    def write_now(messages: Sequence[bytes], answered: Answered) -> bool:
        if broken.pop(0):
            raise ValueError("broken")
        answered([None] * len(messages))
        return True

    lane, connection = lane_of(write_now, nobody), Connection()
    for stream in range(2):
        arrives(lane, connection, stream)
        await asyncio.sleep(0)
    assert connection.refused == ["Internal Server Error"]
    assert connection.answered == 1
