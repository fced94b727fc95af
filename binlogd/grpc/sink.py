"""What takes the messages of many unary calls at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from grpclib.exceptions import GRPCError

Outcomes = Sequence[GRPCError | None]
"""One for each message; None is OK with an empty answer."""


@dataclass(frozen=True, slots=True, eq=False)
class CallSink:
    """The batch-shaped side of a method.

    `write` returns one outcome for each message and waits for nothing that the same connections
    must bring. A message above `message_bytes_max` bytes, or above what there is `room` for, is not
    for it: the method by itself has the words, or the patience. `take` hears of bytes that have
    come or are announced and of how many messages became whole, `give` of what was answered. Who
    takes more than `patience_s` seconds for what it has announced is for the method by itself, too.
    """

    write: Callable[[Sequence[bytes]], Awaitable[Outcomes]]
    room: Callable[[], int]
    take: Callable[[int, int], None]
    give: Callable[[int, int], None]
    message_bytes_max: int
    patience_s: float
