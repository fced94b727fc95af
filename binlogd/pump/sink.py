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
    must bring. A message above `message_bytes_max` bytes, or one for which `has_room` says no, is
    not for it: the method by itself has the words, or the patience.
    """

    write: Callable[[Sequence[bytes]], Awaitable[Outcomes]]
    has_room: Callable[[int], bool]
    message_bytes_max: int
