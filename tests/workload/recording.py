"""Recordings of a real TiDB as a stream to feed: what arrived, in the order of arrival.

`binlogs.rec.gz` holds, little-endian, for each WriteBinlog request: u64 microseconds since 1970,
u32 number of the Pump, u32 length, payload. `info.json` holds the `cluster_id`.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path

from binlogd.binlog import BinlogType
from binlogd.client.pump_client import ClientLimits, PumpClient
from binlogd.errors import ConfigError
from binlogd.tso import Tso
from binlogd.wire.peek import peek
from tests.workload.feed import Feeder, FeedStatistics
from tests.workload.timeline import Fate, Record

_HEADER = struct.Struct("<QII")
_BINLOGS, _INFO = "binlogs.rec.gz", "info.json"


def payloads(directory: Path) -> Iterator[tuple[int, bytes]]:
    """(number of the Pump, payload) of each request, probes left out. Raises ConfigError."""
    path = directory / _BINLOGS
    with gzip.open(path) as file:
        while header := file.read(_HEADER.size):
            if len(header) < _HEADER.size:
                raise ConfigError(f"{path} ends inside a record")
            _, pump, size = _HEADER.unpack(header)
            payload = file.read(size)
            if len(payload) < size:
                raise ConfigError(f"{path} ends inside a record")
            if payload:
                yield pump, payload


def cluster_id(directory: Path) -> int:
    """The cluster that the recording was made of."""
    value = json.loads((directory / _INFO).read_text())["cluster_id"]
    return int(value)


def records(directory: Path) -> Iterator[Record]:
    """The recording as records; reads it twice, to know beforehand when transactions commit."""
    fates: dict[int, Fate] = {}
    for _, payload in payloads(directory):
        head = peek(payload)
        fate = fates.setdefault(head.start_ts, Fate(Tso(head.start_ts)))
        if head.tp == BinlogType.COMMIT:
            fate.commit_ts = Tso(head.commit_ts)
    prewritten: set[int] = set()
    for pump, payload in payloads(directory):
        head = peek(payload)
        kind = BinlogType(head.tp)
        is_repeat = kind == BinlogType.PREWRITE and head.start_ts in prewritten
        if kind == BinlogType.PREWRITE:
            prewritten.add(head.start_ts)
        yield Record(
            kind,
            Tso(max(head.start_ts, head.commit_ts)),
            payload,
            fates[head.start_ts],
            is_repeat=is_repeat,
            pump=pump,
        )


async def stream(directory: Path, first: int | None = None) -> AsyncIterator[Record]:
    """`records`, or so many of them, for a Feeder."""
    for record in islice(records(directory), first):
        yield record


async def feed_recording(
    directory: Path,
    *targets: tuple[str, int],
    in_flight: int = 64,
    patience_s: float = 60.0,
    first: int | None = None,
) -> FeedStatistics:
    """Feeds a recording, or its first binlogs, to Pumps at (host, port); one may stand for several.

    Survives servers that die and come back within `patience_s`, by repeating what was not
    acknowledged. Raises Refused, or Unavailable when a binlog was not taken for so long.
    """
    own = cluster_id(directory)
    limits = ClientLimits(
        prewrite_retry_s=patience_s, outcome_retry_s=patience_s, outcome_retry_interval_s=0.1
    )
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(PumpClient(host, port, cluster_id=own, limits=limits))
            for host, port in targets
        ]
        feeder = Feeder(clients, in_flight=in_flight, patience_s=0)
        await feeder.feed(stream(directory, first))
        return replace(
            feeder.statistics(), retries=sum(each.statistics().retried for each in clients)
        )
