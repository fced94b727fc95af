"""What the original Pump and Drainer asked a TiKV, and its answers, request by request.

They ask many things on one stream (BatchCommands: requests with their numbers, answered in any
order); here each stands by itself. Of a long answer the recording has the beginning.

Source: pingcap/kvproto proto/tikvpb.proto, BatchCommandsRequest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.wire_recordings import calls

_BATCHED = {1: "KvGet", 2: "KvScan"}


@dataclass(frozen=True)
class Asked:
    """One request and its answer, or the beginning of it."""

    method: str
    request: bytes
    answer: bytes


def asked(who: str) -> Iterator[Asked]:
    """All requests of the recording `<who>-to-tikv`, each with its answer."""
    for call in calls(who, "tikv"):
        method = call.method.rpartition("/")[2]
        for request, answer in zip(call.requests, call.responses, strict=True):
            if method == "BatchCommands":
                field, command = _command(request)
                yield Asked(_BATCHED[field], command, _command(answer)[1])
            else:
                yield Asked(method, request, answer)


def _command(batch: bytes) -> tuple[int, bytes]:
    """The one command of a batch: its number and its message, as far as it is there."""
    return _first(_first(batch)[1])


def _first(message: bytes) -> tuple[int, bytes]:
    """The number and content of a message's first field, which has a length."""
    at, length, shift = 1, 0, 0
    while True:  # a varint has ten bytes at most
        byte = message[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return message[0] >> 3, message[at : at + length]
