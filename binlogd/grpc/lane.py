"""Calls of all connections of the fast lane, gathered and served together.

A call costs little beside what a batch costs: a round of the log, a thread, wake-ups. So what has
come of all connections in one turn of the loop is one batch, and what comes while a batch is under
way is the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import structlog
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from binlogd.grpc.calls import Call, Gathered, Inlet, by_owner
from binlogd.grpc.prefix import MESSAGE_PREFIX_BYTES
from binlogd.telemetry.faults import unforeseen

log = structlog.get_logger(__name__)

_BATCH_BYTES_MAX = 4 << 20
_BATCH_CALLS = 64  # enough that a batch costs little beside its calls
_BATCHES_MAX = 16  # of one method, under way at once


Outcomes = Sequence[GRPCError | None]
"""One for each message; None is OK with an empty answer."""

Answered = Callable[[Outcomes], None]
"""Told once what became of a batch. It raises nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class CallSink:
    """The batch-shaped side of a method.

    `write_now` tells the outcomes in the turn of the loop in which they are known: what waits for a
    future hears of them a turn later. It says False where something has to be waited for first,
    and has done nothing then: that is for `write`. Neither waits for anything that the same
    connections must bring. A message above `message_bytes_max` bytes, or above what there is `room`
    for, is not for it: the method by itself has the words, or the patience. `take` hears of bytes
    that have come or are announced and of how many messages became whole, `give` of what was
    answered. Who takes more than `patience_s` seconds for what it has announced is for the method
    by itself, too.
    """

    write_now: Callable[[Sequence[bytes], Answered], bool]
    write: Callable[[Sequence[bytes]], Awaitable[Outcomes]]
    room: Callable[[], int]
    take: Callable[[int, int], None]
    give: Callable[[int, int], None]
    message_bytes_max: int
    patience_s: float


class Caller(Protocol):
    """The connection of a call."""

    def acknowledge(self, calls: list[Call]) -> None:
        """Answers OK."""

    def refuse(self, call: Call, error: GRPCError) -> None:
        """Answers with an error."""

    def abort(self) -> None:
        """Ends the connection."""

    def hand_over(self, call: Call) -> bool:
        """Gives a call whose message does not come to grpclib; False if that has to wait."""

    def let_go_of_headers(self, call: Call) -> None:
        """Its message is here, or somebody else has it."""


class Method:
    """A method that takes many calls at once: those that wait, and who works on them.

    What comes while a batch is under way gathers for the next, so that there is one for each round
    of the log and not one for each turn of the loop. Enough for a batch of its own does not wait.
    """

    def __init__(self, sink: CallSink, message_bytes_max: int) -> None:
        self.sink = sink
        most = min(message_bytes_max, sink.message_bytes_max)
        self.inlet = Inlet(MESSAGE_PREFIX_BYTES + most)
        self._under_way = 0
        self._is_gathering = False  # the last one begun takes what comes until it is served
        self._tasks: set[asyncio.Task[None]] = set()

    def arrived(self) -> None:
        """Tells the sink what has come, and sees to it that it is served."""
        inlet = self.inlet
        if inlet.uncounted_calls:
            self.sink.take(inlet.uncounted, inlet.uncounted_calls)
            inlet.uncounted = inlet.uncounted_calls = 0
        waiting = len(inlet.calls)
        if not waiting or self._under_way >= _BATCHES_MAX:
            return
        if inlet.size >= _BATCH_BYTES_MAX:
            self._begin(inlet.drain())
        elif not self._is_gathering and (not self._under_way or waiting >= _BATCH_CALLS):
            self._is_gathering = True
            self._begin(None)

    def _begin(self, gathered: Gathered | None) -> None:
        self._under_way += 1
        asyncio.get_running_loop().call_soon(self._serve, gathered)

    def _serve(self, gathered: Gathered | None) -> None:
        """Without `gathered`, all that has come by now, a turn after the first of it."""
        if gathered is None:
            self._is_gathering = False
            gathered = self.inlet.drain()
        try:
            is_taken = self.sink.write_now(gathered.messages, partial(self._answered, gathered))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
            self._answered(gathered, _broken(gathered, error))
            return
        if not is_taken:
            task = asyncio.get_running_loop().create_task(self._serve_later(gathered))
            self._tasks.add(task)  # a protocol's callbacks have no task whose group could own it
            task.add_done_callback(self._tasks.discard)

    async def _serve_later(self, gathered: Gathered) -> None:
        outcomes: Outcomes
        try:
            outcomes = await self.sink.write(gathered.messages)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is logged
            outcomes = _broken(gathered, error)
        self._answered(gathered, outcomes)

    def _answered(self, gathered: Gathered, outcomes: Outcomes) -> None:
        """Answers, and begins what has gathered meanwhile."""
        try:
            self.sink.give(gathered.size, len(gathered.messages))
            self._tell(gathered.calls, outcomes)
        except Exception as error:  # noqa: BLE001 - who waits for an answer is told by its deadline
            unforeseen("the fast lane", error)
        self._under_way -= 1
        if self.inlet.calls and not self._is_gathering:
            self._is_gathering = True
            self._begin(None)

    def _tell(self, calls: list[Call], outcomes: Outcomes) -> None:
        failed: list[tuple[Call, GRPCError]] = []
        if any(outcomes):
            pairs = list(zip(calls, outcomes, strict=True))
            failed = [(call, error) for call, error in pairs if error is not None]
            calls = [call for call, error in pairs if error is None]
        for owner, mine in by_owner(calls):
            self._answer(owner, partial(cast(Caller, owner).acknowledge, mine))
        for call, error in failed:
            owner = cast(Caller, call.owner)
            self._answer(owner, partial(owner.refuse, call, error))

    def _answer(self, owner: Any, say: Callable[[], None]) -> None:
        """A fault in one connection ends it, so that its peer asks again, and none beside it."""
        try:
            say()
        except Exception as error:  # noqa: BLE001 - the other connections wait for theirs
            unforeseen("an answer of the fast lane", error)
            cast(Caller, owner).abort()


def _broken(gathered: Gathered, error: Exception) -> Outcomes:
    """As grpclib answers for a handler that breaks, in the same words."""
    log.error("sink_failed", messages=len(gathered.messages), exc_info=error)
    return [GRPCError(Status.UNKNOWN, "Internal Server Error")] * len(gathered.messages)


class FastLane:
    """The methods that calls of all connections are gathered for. A message above
    `message_bytes_max` is grpclib's."""

    def __init__(self, sinks: Mapping[bytes, CallSink], message_bytes_max: int) -> None:
        self._each = [Method(sink, message_bytes_max) for sink in sinks.values()]
        self.inlets = {path: each.inlet for path, each in zip(sinks, self._each, strict=True)}
        """Where the calls of each path go."""
        self.values: dict[bytes, bytes] = {}
        """Of headers, for the decoders of all connections: clients repeat deadlines."""
        self._begun: dict[Call, float] = {}  # calls whose message is not whole, the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def method(self, call: Call) -> Method:
        """Whose call it is."""
        return next(method for method in self._each if method.inlet is call.inlet)

    def look_for_room(self) -> None:
        """Asks how much may be taken, before something is."""
        for method in self._each:
            method.inlet.room = method.sink.room()

    def arrived(self) -> None:
        """Calls have been taken: they are served when what has come with them in this turn is here
        as well."""
        for method in self._each:
            method.arrived()

    # --- messages that come in pieces --------------------------------------------------------

    def begun(self, call: Call) -> None:
        """Its headers are here, and its message is not yet."""
        loop = asyncio.get_running_loop()
        self._begun[call] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.method(call).sink.patience_s, self._look)

    def ended(self, call: Call) -> None:
        """It is here, or will not come any more; its room goes with it or is given back."""
        self._begun.pop(call, None)
        cast(Caller, call.owner).let_go_of_headers(call)
        if not call.is_complete and call.counted:
            self.method(call).sink.give(call.counted, 0)
            call.counted = 0

    def _look(self) -> None:
        """Hands over what takes long, to where there is a limit: it has room that others wait for,
        or keeps a stream open for nothing."""
        loop = asyncio.get_running_loop()
        self._timer = None
        for call, since_s in list(self._begun.items()):
            due_s = since_s + self.method(call).sink.patience_s
            if due_s > loop.time():
                self._timer = loop.call_at(due_s, self._look)
                return
            if not cast(Caller, call.owner).hand_over(call):
                del self._begun[call]
                self._begun[call] = loop.time()
        for call in self._begun:
            self._timer = loop.call_later(self.method(call).sink.patience_s, self._look)
            return
