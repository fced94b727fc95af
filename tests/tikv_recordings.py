"""What the original Pump and Drainer asked a TiKV, and its answers, request by request.

They ask many things on one stream (BatchCommands: requests with their numbers, answered in any
order); here each stands by itself. A message that the recording cut off is marked as such.

Source: pingcap/kvproto proto/tikvpb.proto, BatchCommandsRequest.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass

from tests.recordings_reader import RECORDINGS

_CUT = "..."
_BATCHED = {1: "KvGet", 2: "KvScan"}


@dataclass(frozen=True)
class Asked:
    """One request and its answer; of one that is cut, `answer` is the beginning."""

    phase: str
    method: str
    request: bytes
    answer: bytes
    is_cut: bool


def asked(who: str, whom: str = "tikv") -> Iterator[Asked]:
    """All requests of the recording `<who>-to-<whom>`, in their order."""
    methods: dict[int, str] = {}
    requests: dict[int, bytes] = {}
    with gzip.open(RECORDINGS / "wire" / f"{who}-to-{whom}.jsonl.gz", "rt") as lines:
        for line in lines:
            said = json.loads(line)
            call, text = said["call"], said.get("hex", "")
            message = bytes.fromhex(text.removesuffix(_CUT))
            if said["dir"] == "start":
                methods[call] = said["method"].rpartition("/")[2]
            elif said["dir"] == "request":
                requests[call] = message
            elif said["dir"] == "response":
                is_cut = text.endswith(_CUT)
                yield from _each(
                    Asked(said["phase"], methods[call], requests[call], message, is_cut)
                )


def _each(said: Asked) -> Iterator[Asked]:
    if said.method != "BatchCommands":
        yield said
        return
    (field, request), (_, answer) = _command(said.request), _command(said.answer)
    yield Asked(said.phase, _BATCHED[field], request, answer, said.is_cut)


def _command(batch: bytes) -> tuple[int, bytes]:
    """The one command of a batch: its number and its message, as far as it is there."""
    command = _first(batch)[1]
    return _first(command)


def _first(message: bytes) -> tuple[int, bytes]:
    """The first field of a message, which has a length; what is cut off is not missed."""
    key, at = message[0], 1
    length = shift = 0
    while True:  # a varint has ten bytes at most
        byte = message[at]
        at += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return key >> 3, message[at : at + length]
